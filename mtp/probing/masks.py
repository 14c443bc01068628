"""Mask vectors in the embedding space: where they start, and how they follow the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mtp.models.backbone import Backbone

Init = Literal["table", "mean", "sample", "last"]
_CHUNK = 8192  # rows of the embedding table read at once


def initial_masks(
    backbone: Backbone, prompt_ids: Sequence[int], count: int, init: Init, seed: int
) -> Tensor:
    """The k masks (k, D) a run starts with, in float32 at least.

    `mean`: all are the mean of the prompt's token embeddings. `sample`: one draw each from
    N(μ, σ²), by dimension, of the whole embedding table. `last`: the last k prompt embeddings,
    one each; of a shorter prompt the first is repeated (ESP's three). `table`: all are μ, which is
    `sample` without its noise; on SmolLM2 it foresees twice as many tokens as any of the three.
    """
    if init in ("table", "sample"):
        mean, deviation = _table_statistics(backbone)
        masks = mean.repeat(count, 1)
        if init == "table":
            return masks
        generator = torch.Generator().manual_seed(seed)
        normal = torch.randn(count, len(mean), generator=generator, dtype=mean.dtype)
        return masks + deviation * normal.to(mean.device)
    embeds = _wide(backbone.embed(prompt_ids))  # (T, D)
    if init == "mean":
        return embeds.mean(dim=0, keepdim=True).repeat(count, 1)
    rows = [max(0, len(embeds) - count + mask) for mask in range(count)]
    return embeds[rows]


def follow(masks: Tensor, embeds: Tensor, rate: float) -> Tensor:
    """m ← m + λ(e − m) for each new token's embedding in turn: masks (k, D), embeds (T, D)."""
    if rate:
        for embed in embeds.to(masks):
            masks = torch.lerp(masks, embed, rate)
    return masks


def _table_statistics(backbone: Backbone) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (D,) of the embedding table, as the first layer meets it."""
    size = backbone.vocabulary_size
    total = squares = torch.zeros((), device=backbone.device)
    for start in range(0, size, _CHUNK):
        rows = _wide(backbone.embed(range(start, min(size, start + _CHUNK))))
        total = total + rows.sum(dim=0)
        squares = squares + rows.square().sum(dim=0)
    mean = total / size
    return mean, (squares / size - mean.square()).clamp_min(0).sqrt()


def _wide(embeds: Tensor) -> Tensor:
    """In float32 or wider: a small step of the update is lost in bfloat16."""
    return embeds.to(torch.promote_types(embeds.dtype, torch.float32))
