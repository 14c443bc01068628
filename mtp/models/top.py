"""The last layers of a Llama-shaped model on their own, for drafting above shared lower ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtp.errors import ModelError


class Gate(Protocol):
    """Weights added while rows run, such as `lora.LowRankAdapter`."""

    def gate(self, model: nn.Module, first_row: int) -> AbstractContextManager[None]:
        """While entered, rows from `first_row` on run with the added weights."""
        ...


def check_top(model: PreTrainedModel, layers: int) -> None:
    """Raises ModelError unless the model is Llama-shaped and has more layers than that."""
    inner: Any = model.base_model
    if not all(hasattr(inner, part) for part in ("layers", "norm", "rotary_emb")):
        raise ModelError(
            f"{type(model).__name__} is not Llama-shaped (layers, norm, rotary_emb): its last "
            "layers cannot run on their own. Use a circuit without adapted layers."
        )
    if not 0 < layers < len(inner.layers):
        raise ModelError(f"The model has {len(inner.layers)} layers; {layers} cannot be adapted.")


def run_top(
    model: PreTrainedModel,
    states: Tensor,
    layers: int,
    adapter: Gate | None,
    behind: int,
    cache: Mapping[str, object],
) -> Tensor:
    """Runs the last `layers` layers and the final norm on hidden states (B, T, D) that entered
    them, as a plain sequence behind `behind` rows of a cache, given as the layers' argument.
    """
    inner: Any = model.base_model
    rows = states.shape[1]
    positions = torch.arange(behind, behind + rows, device=states.device)[None]
    rotary = inner.rotary_emb(states, position_ids=positions)
    mask: Tensor | None = None
    if rows > 1:
        places = torch.arange(behind + rows, device=states.device)
        mask = (places[None, :] <= positions[0, :, None])[None, None]
        if getattr(model.config, "_attn_implementation", "eager") == "eager":
            lowest = torch.finfo(states.dtype).min
            mask = torch.zeros(mask.shape, dtype=states.dtype).masked_fill(~mask, lowest)
    with adapter.gate(model, 0) if adapter is not None else nullcontext():
        for layer in inner.layers[len(inner.layers) - layers :]:
            states = layer(
                states,
                attention_mask=mask,
                position_ids=positions,
                position_embeddings=rotary,
                **cache,
            )
    final: Tensor = inner.norm(states)
    return final
