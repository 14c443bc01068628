"""A key-value cache that grows in place and keeps just the accepted path of each block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

_FIRST_CAPACITY = 256  # positions; doubled whenever a block does not fit


class PathLayer(CacheLayerMixin):
    """One layer's keys and values (1, heads, positions, D) in buffers with room to grow.

    Nothing is ever dropped by a sliding window: a rejected block would need it back.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocates the first buffers, shaped after the states."""
        self.keys = _room(key_states, _FIRST_CAPACITY)
        self.values = _room(value_states, _FIRST_CAPACITY)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Appends the block's states; returns views of all that is cached (1, heads, P + T, D)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        end = self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            self.keys = _grown(self.keys, self.length, end)
            self.values = _grown(self.values, self.length, end)
        self.keys[..., self.length : end, :] = key_states
        self.values[..., self.length : end, :] = value_states
        self.length = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def keep(self, prefix: int, rows: Tensor, in_place: bool) -> None:
        """Keeps `prefix` positions and, after them, the block's rows with these indices."""
        assert self.keys is not None and self.values is not None
        end = prefix + len(rows)
        if not in_place:
            self.keys[..., prefix:end, :] = self.keys.index_select(-2, rows + prefix)
            self.values[..., prefix:end, :] = self.values.index_select(-2, rows + prefix)
        self.length = end

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the mask that transformers would build."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Cached positions."""
        return self.length

    def get_max_length(self) -> int:
        """−1: it grows."""
        return -1


class PathCache(Cache):
    """All layers' caches of one run."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=PathLayer)
        self.length = 0
        """Positions kept; a forward adds its rows behind them, `keep` settles which stay."""

    @torch.inference_mode()  # the buffers were made in a forward under it
    def keep(self, rows: Sequence[int]) -> None:
        """Of the rows appended since the last `keep`, keeps these, in order; drops the rest."""
        in_place = list(rows) == list(range(len(rows)))
        index: Tensor | None = None
        for layer in self.layers:
            assert isinstance(layer, PathLayer)
            if not layer.is_initialized:
                continue  # a layer that shares another's keys
            if index is None:
                assert layer.keys is not None
                index = torch.tensor(list(rows), dtype=torch.long, device=layer.keys.device)
            layer.keep(self.length, index, in_place)
        self.length += len(rows)


def _room(states: Tensor, capacity: int) -> Tensor:
    batch, heads, _, width = states.shape
    return states.new_empty(batch, heads, capacity, width)


def _grown(buffer: Tensor, used: int, needed: int) -> Tensor:
    larger = _room(buffer, max(needed, 2 * buffer.shape[-2]))
    larger[..., :used, :] = buffer[..., :used, :]
    return larger
