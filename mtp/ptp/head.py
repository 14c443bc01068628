"""A layer above the noise rows that picks: noise turns each row's distribution into its token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama.modeling_llama import rotate_half

from mtp.sampling import Sampling, cumulative, final_probabilities, picks_from

HEAD_WIDTH = 64  # of one attention head
MLP = 3  # times the layers' width
FIRST_WIDTH = 0.1  # of a soft edge, before training
Keys = tuple[Tensor, Tensor]
"""Keys and values (B, heads, T, width) of a layer."""

UNREAD = 0.1  # share of a soft pick that leaves the noise unread


@dataclass(frozen=True)
class Behind:
    """The text that each of B branches starts behind, as the base reads it.

    states (B, W + 1, D): final states of W rows and of the root, the row that the branch starts
    behind; 0 before the text's start. following (B, W): the token behind each of the W rows, −1
    before the text's start.
    """

    states: Tensor
    following: Tensor

    @property
    def root(self) -> Tensor:
        """The root's state (B, D)."""
        return self.states[:, -1]

    def expand(self, branches: int) -> Behind:
        """The same text for many branches, from that of one."""
        return Behind(self.states.expand(branches, -1, -1), self.following.expand(branches, -1))


def behind(states: Tensor, ids: Tensor, roots: Tensor, width: int) -> Behind:
    """The text behind which N branches start in each of B texts; B · N branches.

    states (B, S, D): final states of all rows. ids (B, S): the texts. roots (B, N): indices of the
    roots. width: W.
    """
    at = roots[:, :, None] + torch.arange(-width, 1, device=roots.device)  # (B, N, W + 1)
    there = at >= 0
    index = at.clamp(min=0).flatten(1)
    found = states.gather(1, index[:, :, None].expand(-1, -1, states.shape[2]))
    found = found.view(*at.shape, -1) * there[..., None]
    next_one = (at[..., :-1] + 1).clamp(min=0)
    tokens = ids.gather(1, next_one.flatten(1)).view(next_one.shape)
    tokens = tokens.masked_fill(~there[..., :-1], -1)
    return Behind(found.flatten(0, 1), tokens.flatten(0, 1))


class PickHead(nn.Module):
    """A few causal layers above a branch's noise rows (beyond the paper).

    Noise rows run beside the tokens they continue, so that they meet neither the verifier's
    distribution behind their root nor the token it picks there. Once the forward is over both are
    known. The head reads the final states of the root and of a few rows before it with their
    tokens, the rows' final states, and in each row the token before the one it foresees: the
    verifier's for the first, Pick(u, P̂) of the row before for the others. So the noise decides what
    later rows are given, as it does in plain sampling. At first it adds nothing.

    hidden: of the base. width: of the head's layers, a multiple of the attention heads' 64 or
    less than that; 0 for the base's. spread: of the base's embeddings, so that the token a row is
    given counts as much as the states it reads, which are about 1.
    """

    def __init__(self, hidden: int, layers: int, width: int = 0, spread: float = 1.0) -> None:
        super().__init__()
        width = width or hidden
        heads = max(1, width // HEAD_WIDTH)
        config = LlamaConfig(
            vocab_size=1,
            hidden_size=width,
            intermediate_size=MLP * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.body = LlamaModel(config)
        del self.body.embed_tokens  # it is given states, never tokens
        self.root = nn.Linear(hidden, width, bias=False)
        self.given = nn.Linear(hidden, width, bias=False)
        self.row = nn.Linear(hidden, width, bias=False)
        self.out = nn.Linear(width, hidden, bias=False)
        nn.init.zeros_(self.out.weight)
        with torch.no_grad():
            self.given.weight.div_(spread)
        self.log_width = nn.Parameter(torch.tensor(FIRST_WIDTH).log())

    def read(self, states: Tensor, following: Tensor) -> list[Keys]:
        """What rows see of the text before them: keys and values of each layer.

        states (B, W + 1, D): as in `Behind`. following (B, W, D): embeddings of the tokens behind
        the W rows, 0 for none.
        """
        line = self.root(states)
        if following.shape[1]:
            line = line + fn.pad(self.given(following), (0, 0, 0, 1))
        rotary = self._rotary(line, 0)
        seen: list[Keys] = []
        for number, layer in enumerate(self.body.layers, 1):
            last = number == len(self.body.layers)
            keys, line = _run_layer(layer, line, rotary, None, keys_only=last)
            seen.append(keys)
        return seen

    def over(self, seen: Sequence[Keys], states: Tensor) -> Callable[[Tensor], Tensor]:
        """A function from what L noise rows in each of B branches are given to what is added to
        their states, (B, L, D) both. They are given the embeddings of the tokens before those that
        they foresee, 0 for none.

        seen: what `read` gives. states (B, L, D): final states of the rows.
        """
        fixed = self.row(states)
        rotary = self._rotary(fixed, seen[0][0].shape[2])

        def added(given: Tensor) -> Tensor:
            rows = fixed + self.given(given)
            for layer, before in zip(self.body.layers, seen, strict=True):
                _, rows = _run_layer(layer, rows, rotary, before)
            out: Tensor = self.out(_normed(rows, self.body.norm))
            return out

        return added

    def _rotary(self, rows: Tensor, start: int) -> tuple[Tensor, Tensor]:
        places = torch.arange(start, start + rows.shape[1], device=rows.device)
        cos, sin = self.body.rotary_emb(rows, position_ids=places[None])
        return cos, sin

    def softly_picked(self, logits: Tensor, u: Tensor, sampling: Sampling) -> Tensor:
        """Log-probabilities (B, L, V) of the token that noise u (B, L) picks, where the
        distribution of logits (B, L, V) is known only nearly.

        Pick's steps at the edges F become logistic ones of a learned width w: token j gets a share
        in proportion to σ((F_j − u) / w) − σ((F_{j−1} − u) / w). With a narrow width that is Pick's
        own token, with a wide one the distribution as it is; gradients tell how far u is from
        another token's interval. A small share is the distribution itself, so that no token which
        it allows is ruled out by the noise.
        """
        p = final_probabilities(logits, sampling, logits.dtype)
        edges = fn.pad(p.cumsum(-1).clamp(max=1.0), (1, 0))
        edges[..., -1] = 1.0
        above = torch.sigmoid((edges - u[..., None].to(logits)) / self.log_width.exp())
        picked = above.diff(dim=-1) / (above[..., -1:] - above[..., :1])
        return torch.lerp(picked, p, UNREAD).clamp(min=torch.finfo(p.dtype).tiny).log()


def _run_layer(
    layer: Any,
    x: Tensor,
    rotary: tuple[Tensor, Tensor],
    before: Keys | None,
    keys_only: bool = False,
) -> tuple[Keys, Tensor]:
    """Keys and values of all rows, and the states (B, T, D) of T rows x behind those `before`.

    The same arithmetic as the layer's own forward, without the bookkeeping that takes most of its
    time on ten rows: a call of the drafter runs the head about five times. keys_only: of the last
    layer of rows that are only read; x comes back as it is.
    """
    attention, mlp = layer.self_attn, layer.mlp
    normed = _normed(x, layer.input_layernorm)
    v = _by_head(fn.linear(normed, attention.v_proj.weight), attention)
    k = fn.linear(normed, attention.k_proj.weight)
    if keys_only:
        return (_turned(_by_head(k, attention), rotary), v), x
    qk = torch.cat([fn.linear(normed, attention.q_proj.weight), k], -1)
    q, k = _turned(_by_head(qk, attention), rotary).chunk(2, 1)
    if before is not None:
        k, v = torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)
    mask = _mask(q.shape[2], k.shape[2], x.device)
    seen = fn.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
    x = x + fn.linear(seen, attention.o_proj.weight)
    normed = _normed(x, layer.post_attention_layernorm)
    inner = fn.silu(fn.linear(normed, mlp.gate_proj.weight)) * fn.linear(normed, mlp.up_proj.weight)
    return (k, v), x + fn.linear(inner, mlp.down_proj.weight)


def _by_head(x: Tensor, attention: Any) -> Tensor:
    """(B, heads, T, width of a head) from (B, T, all heads' width)."""
    return x.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)


def _turned(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys (B, heads, T, width) turned by their places."""
    cos, sin = (part.unsqueeze(1) for part in rotary)
    turned: Tensor = x * cos + rotate_half(x) * sin
    return turned


@lru_cache(maxsize=64)
def _mask(new: int, total: int, device: torch.device) -> Tensor:
    """What the last `new` of `total` rows see (new, total); the same one in every pass of a call,
    and made so that it can be used in training too.
    """
    with torch.inference_mode(False):
        return torch.ones(new, total, dtype=torch.bool, device=device).tril(total - new)


def _normed(x: Tensor, norm: Any) -> Tensor:
    return fn.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


def picks(logits: Tensor, u: Tensor, sampling: Sampling) -> Tensor:
    """Tokens (B, L) that noise u (B, L) picks from logits (B, L, V)."""
    return picks_from(u, cumulative(final_probabilities(logits, sampling)))


def settle(
    step: Callable[[Tensor], Tensor],
    given: Tensor,
    first: int,
    pick: Callable[[Tensor], Tensor],
) -> Tensor:
    """Logits (B, L, V) of rows of which each is given the pick of the row before it.

    step: logits from the tokens (B, L) that the rows are given. pick: the tokens (B, L) that the
    rows' own noise picks from logits. given (B, L): those known, up to row `first`, and any guess
    of the others, which decides nothing but how soon it ends. All rows pick at once, again and
    again until no pick changes (Jacobi iteration): at most L times, as each pass settles one more
    row at least.
    """
    start, guess = given[:, : first + 1], given[:, first + 1 :]
    while True:
        logits = step(given)
        after = pick(logits)[:, first:-1]
        if torch.equal(after, guess):
            return logits
        given, guess = torch.cat([start, after], 1), after
