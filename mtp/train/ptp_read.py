"""Training texts as the frozen base reads them: noise intervals, states, keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mtp.models.backbone import Backbone
from mtp.ptp.intervals import drawable, intervals
from mtp.sampling import Sampling, final_probabilities
from mtp.train.texts import Text, in_answers, padded

SURVEYED = 16  # texts a forward
COLUMNS = 33  # bytes of a token's id, place, interval and doubt


@dataclass(frozen=True)
class Read:
    """Texts as the frozen base reads them.

    ids (B, S), −1 behind a text's end. places (B, S): True where an answer's token comes next and
    a run's noise can pick it. low, high (B, S): that noise's interval, float64. states (B, S, D):
    the final ones. doubt (B, S): 1 less the base's largest probability there. unembedding (V, D).
    Intervals and doubts are 0 outside answers.
    """

    ids: Tensor
    places: Tensor
    low: Tensor
    high: Tensor
    states: Tensor
    doubt: Tensor
    cache: DynamicCache | None
    unembedding: Tensor

    def logits_at(self, place: Tensor, rows: Tensor | None = None) -> Tensor:
        """The base's logits (B, N, W) of the rows at places (B, N), for all tokens or for those
        with these rows (W, D) of the unembedding.
        """
        index = place[:, :, None].expand(-1, -1, self.states.shape[2])
        return self.states.gather(1, index) @ (self.unembedding if rows is None else rows).T


@torch.no_grad()
def read(backbone: Backbone, texts: Sequence[Text], sampling: Sampling) -> Read:
    """One forward of the base over a batch of texts."""
    ids = padded(texts).to(backbone.device)
    cache = DynamicCache()
    states = backbone.model.base_model(
        input_ids=ids.clamp(min=0), use_cache=True, **{backbone.cache_name: cache}
    ).last_hidden_state
    places = in_answers(texts, ids.shape[1]).to(ids.device)
    low, high, doubt = torch.zeros(3, *ids.shape, dtype=torch.float64, device=ids.device)
    for row, asked in enumerate(places):  # one text at a time, as V may be large
        at = asked.nonzero()[:, 0]
        p = final_probabilities(states[row, at] @ backbone.unembedding.T, sampling)
        low[row, at], high[row, at] = intervals(p, ids[row, at + 1])
        doubt[row, at] = 1 - p.amax(-1)
    return Read(
        ids, places & drawable(low, high), low, high, states, doubt, cache, backbone.unembedding
    )


class Survey:
    """Texts as the frozen base reads them, read once and kept, so that training runs the base on
    noise rows alone, if at all.

    Kept for every token: a final state (D,), a few numbers and, with `caches`, each layer's key and
    value, for drafters with an adapter. States, keys and values are kept in bfloat16.
    """

    def __init__(
        self,
        backbone: Backbone,
        texts: Sequence[Text],
        sampling: Sampling,
        caches: bool = False,
    ) -> None:
        self._backbone = backbone
        self._kept: dict[int, Read] = {}
        self._starts: dict[int, int] = {}
        self._layers: Tensor | None = None
        """Keys and values (tokens, layers, 2, heads, width) of all texts, one after another: one
        piece of memory, as many small ones beside a step's would leave gaps many times their size.
        """
        order = sorted(range(len(texts)), key=lambda index: len(texts[index].ids))
        total = sum(len(text.ids) for text in texts)
        done = 0
        for start in range(0, len(order), SURVEYED):
            group = order[start : start + SURVEYED]
            found = read(backbone, [texts[index] for index in group], sampling)
            for row, index in enumerate(group):
                size, key = len(texts[index].ids), id(texts[index])
                self._kept[key] = Read(
                    ids=found.ids[row, :size].clone(),
                    places=found.places[row, :size].clone(),
                    low=found.low[row, :size].clone(),
                    high=found.high[row, :size].clone(),
                    states=found.states[row, :size].to(torch.bfloat16),
                    doubt=found.doubt[row, :size].clone(),
                    cache=None,
                    unembedding=found.unembedding,
                )
                if caches:
                    self._keep(key, layers_of(found.cache), row, size, done, total)
                    done += size

    def _keep(
        self,
        key: int,
        layers: list[tuple[Tensor, Tensor]],
        row: int,
        size: int,
        start: int,
        total: int,
    ) -> None:
        """Puts the keys and values of one text of a batch where it has its place."""
        if self._layers is None:
            heads, _, width = layers[0][0].shape[1:]
            self._layers = torch.empty(total, len(layers), 2, heads, width, dtype=torch.bfloat16)
        self._starts[key] = start
        for index, pair in enumerate(layers):
            for part, states in enumerate(pair):
                self._layers[start : start + size, index, part] = states[row, :, :size].transpose(
                    0, 1
                )

    @staticmethod
    def size(backbone: Backbone, texts: Sequence[Text], caches: bool) -> int:
        """Bytes that the texts take, about."""
        config = backbone.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        numbers = backbone.hidden_size  # of a token, in bfloat16
        if caches:
            numbers += 2 * config.num_hidden_layers * heads * width
        return (2 * int(numbers) + COLUMNS) * sum(len(text.ids) for text in texts)

    def read(self, texts: Sequence[Text]) -> Read:
        """What `read` gives for some of the texts; a cache where those are kept."""
        kept = [self._kept[id(text)] for text in texts]

        def padded_with(name: str, value: float) -> Tensor:
            parts = [getattr(one, name) for one in kept]
            return nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=value)

        return Read(
            padded_with("ids", -1),
            padded_with("places", False),
            padded_with("low", 0.0),
            padded_with("high", 0.0),
            padded_with("states", 0.0).to(self._backbone.dtype),
            padded_with("doubt", 0.0),
            self._cache_of(texts),
            self._backbone.unembedding,
        )

    def _cache_of(self, texts: Sequence[Text]) -> DynamicCache | None:
        if self._layers is None:
            return None
        places = [(self._starts[id(text)], len(text.ids)) for text in texts]
        kept = [self._layers[start : start + size] for start, size in places]
        padded = nn.utils.rnn.pad_sequence(
            kept, batch_first=True
        )  # (B, S, layers, 2, heads, width)
        cache = DynamicCache()
        for index in range(padded.shape[2]):
            keys, values = (
                padded[:, :, index, part].transpose(1, 2).to(self._backbone.device)
                for part in (0, 1)
            )
            cache.update(keys.to(self._backbone.dtype), values.to(self._backbone.dtype), index)
        return cache


def layers_of(cache: DynamicCache | None) -> list[tuple[Tensor, Tensor]]:
    """Keys and values (B, heads, S, width) of each layer."""
    found = []
    for layer in cache.layers if cache is not None else ():
        assert isinstance(layer, DynamicLayer)
        assert layer.keys is not None and layer.values is not None
        found.append((layer.keys, layer.values))
    return found
