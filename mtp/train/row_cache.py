"""A preallocated KV cache in which every row of the batch stands at its own position."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from mtp.errors import ModelError

ATTENTION = "one_query_a_row"  # the name under which `attend_one_query` is registered


class RowLayer(CacheLayerMixin):
    """Keys and values (B, H, L, d) of one layer; `update` writes one token a row and returns what
    the step attends to, (B, H, width, d)."""

    keys: Tensor
    values: Tensor

    def __init__(self, length: int):
        super().__init__()
        self.length = length
        self.width = 0
        self.rows = torch.empty(0, dtype=torch.long)
        self.positions = torch.empty(0, dtype=torch.long)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocates room for `length` tokens a row, shaped as the first states (B, H, 1, d)."""
        batch, heads, _, size = key_states.shape
        self.keys = key_states.new_zeros(batch, heads, self.length, size)
        self.values = value_states.new_zeros(batch, heads, self.length, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Stores the states (B, H, 1, d) at each row's position."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys[self.rows, :, self.positions] = key_states[:, :, 0]
        self.values[self.rows, :, self.positions] = value_states[:, :, 0]
        return self.keys[:, :, : self.width], self.values[:, :, : self.width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Width and offset of the keys a mask covers."""
        return self.width, 0

    def get_seq_length(self) -> int:
        """The longest row so far, in tokens."""
        return self.width

    def get_max_length(self) -> int:
        """Room a row has, in tokens."""
        return self.length


class RowCache(Cache):
    """A `RowLayer` for each layer of a model; `stand_at` says where the rows are before a step."""

    def __init__(self, layers: int, batch: int, length: int):
        self.batch = batch
        self.row_layers = [RowLayer(length) for _ in range(layers)]
        super().__init__(layers=list(self.row_layers))

    def stand_at(self, positions: Tensor) -> Tensor:
        """Sets the rows' positions (B,) for the next step and returns its mask (B, 1, 1, width)."""
        width = int(positions.max()) + 1
        rows = torch.arange(len(positions), device=positions.device)
        for layer in self.row_layers:
            layer.rows, layer.positions, layer.width = rows, positions, width
        reach = torch.arange(width, device=positions.device)
        return (reach <= positions[:, None])[:, None, None, :]

    def start_row(self, row: int, prefix: DynamicCache, tokens: int) -> None:
        """Copies the first `tokens` tokens of a cache of batch 1 into a row."""
        for mine, layer in zip(self.row_layers, prefix.layers, strict=True):
            theirs = cast(DynamicLayer, layer)
            keys, values = cast(Tensor, theirs.keys), cast(Tensor, theirs.values)  # (1, H, t, d)
            if not mine.is_initialized:
                everywhere = (self.batch, -1, -1, -1)
                mine.lazy_initialization(keys.expand(everywhere), values.expand(everywhere))
            mine.keys[row, :, :tokens] = keys[0, :, :tokens]
            mine.values[row, :, :tokens] = values[0, :, :tokens]


def attend_one_query(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attention of one token a row: query (B, H, 1, d), key (B, H_kv, width, d), mask
    (B, 1, 1, width); returns (B, 1, H, d).

    The query heads that share a key head go in as its queries, so keys are read once and never
    repeated.
    """
    batch, heads, _, size = query.shape
    grouped = query.view(batch, key.shape[1], heads // key.shape[1], size)  # (B, H_kv, group, d)
    out = F.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    return out.reshape(batch, 1, heads, value.shape[-1]), None


AttentionInterface.register(ATTENTION, attend_one_query)


def require_full_attention(model: PreTrainedModel) -> None:
    """Raises ModelError for a model with layers whose state is not plain keys and values."""
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ModelError(
            f"The model has layers of kind {', '.join(sorted(kinds))}; a corpus can be sampled "
            "from models whose layers are all full attention."
        )
