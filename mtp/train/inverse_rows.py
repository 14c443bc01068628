"""Inverse autoregressive training of C-PTP: noise inside the model's own intervals. PTP §4.

Without a teacher: P_θ(t_k | t_<i, u_i … u_{k−1}) is computed one offset after another, u_k is drawn
inside t_k's interval under it, and one cross-entropy step follows with all of the noise known.
A noise row stands at the position of the token that its noise picks: the model is one for tokens
and noise, and what it has learnt to do with the one at that place serves the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as fn
from transformers import DynamicCache, LlamaForCausalLM

from mtp.ptp.embedding import NoiseEmbedding
from mtp.ptp.intervals import drawable, intervals, noise_inside
from mtp.sampling import Sampling, final_probabilities
from mtp.train.byte_data import IGNORED

Shares = Callable[[int], Tensor]
"""Gives ũ (count,) float64: where in its interval each noise value lies."""


@dataclass(frozen=True)
class Split:
    """Texts split at several places each: ids (B, T) and, behind each of N roots, L known tokens.

    roots (B, N): the last token given before a window. tokens (B, N, L): the window's own. known
    (B, N, L): those that count: nothing is asked about what follows a document's end.
    """

    ids: Tensor
    roots: Tensor
    tokens: Tensor
    known: Tensor

    @property
    def length(self) -> int:
        """L."""
        return self.tokens.shape[2]

    @property
    def rows(self) -> int:
        """Noise rows of a text: the last token's noise is not read by any row that is counted."""
        return self.roots.shape[1] * (self.length - 1)


def split(
    ids: Tensor, labels: Tensor, count: int, length: int, generator: torch.Generator
) -> Split:
    """`count` random roots in each text (B, T), with `length` tokens behind each. labels (B, T):
    the next tokens, IGNORED where nothing is learnt.
    """
    batch, width = ids.shape
    roots = torch.randint(width - length, (batch, count), generator=generator)
    place = roots[:, :, None] + torch.arange(length)

    def at(table: Tensor, places: Tensor) -> Tensor:
        return table.gather(1, places.flatten(1)).view(places.shape)

    known = (at(labels, place) != IGNORED).long().cumprod(2).bool()
    return Split(ids, roots, at(ids, place + 1), known)


@dataclass(frozen=True)
class Noise:
    """What a model finds for the windows of a `Split`.

    u (B, N, L): noise inside the tokens' intervals. log_p (B, N, L): log-probabilities at
    temperature 1. counted (B, N, L): known tokens behind which no noise was needed for a token that
    no run's noise picks. u and log_p lack the last token where its noise is not asked for.
    """

    u: Tensor
    log_p: Tensor
    counted: Tensor


@torch.no_grad()
def own_noise(
    model: LlamaForCausalLM,
    noise: NoiseEmbedding,
    found: Split,
    sampling: Sampling,
    shares: Shares,
    *,
    last: bool = True,
    another: Shares | None = None,
) -> Noise:
    """The noise of the windows' tokens under the model itself, and the log-probabilities it gave
    them: offset 1 given tokens alone, later ones given noise.

    last: whether the last token's is asked for as well, which no row that is trained reads.
    another: gives the noise (count,) that rows read instead, of another draw.
    """
    batch, count, length = found.tokens.shape
    width = found.ids.shape[1]
    cache = DynamicCache()
    text = model(input_ids=found.ids, cache=cache, use_cache=True).logits  # (B, T, V)
    logits = text.gather(1, found.roots[:, :, None].expand(-1, -1, text.shape[2]))
    drawn: list[Tensor] = []
    log_p: list[Tensor] = []
    counted = found.known.clone()
    asked = length if last else length - 1
    for offset in range(asked):
        tokens = found.tokens[:, :, offset]
        p = final_probabilities(logits, sampling).flatten(0, 1)
        low, high = intervals(p, tokens.flatten())
        u = noise_inside(low, high, shares(len(low))).view(batch, count)
        drawn.append(u)
        counted[:, :, offset + 1 :] &= drawable(low, high).view(batch, count, 1)
        log_p.append(logits.log_softmax(-1).gather(2, tokens[:, :, None])[:, :, 0])
        if offset + 1 < asked:
            read = u if another is None else another(len(low)).view(batch, count)
            logits = model(
                inputs_embeds=noise(read),
                position_ids=found.roots + 1 + offset,
                attention_mask=_step_mask(found, width, offset),
                cache=cache,
                use_cache=True,
            ).logits
    return Noise(torch.stack(drawn, 2), torch.stack(log_p, 2), counted)


def _step_mask(found: Split, width: int, offset: int) -> Tensor:
    """(B, 1, N, T + N · (offset + 1)): each window's row sees its text and its own earlier rows."""
    batch, count, _ = found.tokens.shape
    text = torch.arange(width) <= found.roots[:, :, None]  # (B, N, T)
    own = torch.eye(count, dtype=torch.bool).repeat(1, offset + 1)  # (N, N · (offset + 1))
    return torch.cat([text, own.expand(batch, -1, -1)], 2)[:, None]


def losses(
    model: LlamaForCausalLM, noise: NoiseEmbedding, found: Split, labels: Tensor, own: Noise
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy in nats of the text's next tokens (labels (B, T)), and of the counted
    offsets 2 … L of the windows (0 where none counts), in one forward. Gradients reach model and
    embedding, not u.
    """
    batch, _, length = found.tokens.shape
    width = found.ids.shape[1]
    read = own.u[:, :, : length - 1].detach().flatten(1)  # (B, rows)
    place = found.roots[:, :, None] + 1 + torch.arange(length - 1)
    embeds = torch.cat([model.get_input_embeddings()(found.ids), noise(read)], 1)
    positions = torch.cat([torch.arange(width).expand(batch, -1), place.flatten(1)], 1)
    out = model(
        inputs_embeds=embeds,
        position_ids=positions,
        attention_mask=_whole_mask(found, width),
        use_cache=False,
    ).logits
    text = fn.cross_entropy(
        out[:, :width].flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED
    )
    later = found.tokens.masked_fill(~own.counted, IGNORED)[:, :, 1:]
    windows = fn.cross_entropy(
        out[:, width:].flatten(0, 1).float(), later.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return text, windows / own.counted[:, :, 1:].sum().clamp(min=1)


def _whole_mask(found: Split, width: int) -> Tensor:
    """(B, 1, T + rows, T + rows): tokens are causal; a row sees its text and its window so far."""
    batch, _, length = found.tokens.shape
    rows = found.rows
    causal = torch.ones(width, width, dtype=torch.bool).tril().expand(batch, -1, -1)
    text = torch.arange(width) <= found.roots[:, :, None, None]  # (B, N, 1, T)
    text = text.expand(-1, -1, length - 1, -1).flatten(1, 2)
    row = torch.arange(rows)
    same = row[:, None] // (length - 1) == row // (length - 1)
    own = (same & (row[None] <= row[:, None])).expand(batch, -1, -1)
    above = torch.cat([causal, torch.zeros(batch, width, rows, dtype=torch.bool)], 2)
    return torch.cat([above, torch.cat([text, own], 2)], 1)[:, None]
