"""How well the noise-reading model of an inverse pair foresees, beside its twin."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtp.sampling import Sampling
from mtp.train.byte_data import Documents, windows
from mtp.train.inverse_recipe import Pair, Recipe
from mtp.train.inverse_rows import Shares, Split, own_noise, split

HELD_OUT_SEED = 2**31
HELD_OUT_BATCHES = 6
HELD_OUT_WINDOWS = 8  # a text


@torch.no_grad()
def perplexities(pair: Pair, held_out: Documents, recipe: Recipe) -> dict[str, Any]:
    """Held-out perplexity by offset 1 … L of the noise-reading model, and of its twin at the same
    tokens; `gap` is the ratio of their means over offsets 2 … L, less 1. What follows a document's
    end does not count.
    """
    own, twin, counted = [], [], []
    sampling = Sampling(recipe.temperature)
    for found, uniform in _splits(held_out, recipe):
        noise = own_noise(pair.model, pair.noise, found, sampling, uniform)
        log_p = pair.twin(input_ids=found.ids, use_cache=False).logits.log_softmax(-1)
        place = found.roots[:, :, None] + torch.arange(recipe.longest)
        rows = log_p.gather(1, place.flatten(1)[:, :, None].expand(-1, -1, log_p.shape[2]))
        tokens = found.tokens.flatten(1)[:, :, None]
        own.append(noise.log_p.flatten(0, 1))
        twin.append(rows.gather(2, tokens)[:, :, 0].view(place.shape).flatten(0, 1))
        counted.append(noise.counted.flatten(0, 1))
    mine, theirs = _by_offset(own, counted), _by_offset(twin, counted)
    later = sum(mine[1:]) / sum(theirs[1:]) - 1
    return {
        "perplexity": [round(value, 4) for value in mine],
        "twin_perplexity": [round(value, 4) for value in theirs],
        "gap": round(later, 4),
    }


@torch.no_grad()
def unread_perplexity(pair: Pair, held_out: Documents, recipe: Recipe) -> list[float]:
    """`perplexities` of the noise-reading model by offset where its rows read noise of another
    draw: what it loses by that it owes to its noise.
    """
    log_p, counted = [], []
    sampling = Sampling(recipe.temperature)
    for found, uniform in _splits(held_out, recipe):
        noise = own_noise(pair.model, pair.noise, found, sampling, uniform, another=uniform)
        log_p.append(noise.log_p.flatten(0, 1))
        counted.append(noise.counted.flatten(0, 1))
    return [round(value, 4) for value in _by_offset(log_p, counted)]


def _splits(held_out: Documents, recipe: Recipe) -> Iterator[tuple[Split, Shares]]:
    """The same windows of held-out text every time, and where in its interval each noise lies."""
    for number in range(HELD_OUT_BATCHES):
        rng = np.random.default_rng([HELD_OUT_SEED, number])
        generator = torch.Generator().manual_seed(number)
        given = windows(held_out, rng, recipe.batch, recipe.context)
        inputs, labels = map(torch.from_numpy, given)
        found = split(inputs, labels, HELD_OUT_WINDOWS, recipe.longest, generator)
        yield found, partial(torch.rand, generator=generator, dtype=torch.float64)


def _by_offset(log_p: list[Tensor], counted: list[Tensor]) -> list[float]:
    """Perplexity of each offset from parts (windows, L) of log-probabilities, those counted."""
    these = torch.cat(counted)
    total = torch.cat(log_p).double().masked_fill(~these, 0.0).sum(0)
    found: list[float] = (total / these.sum(0).clamp(min=1)).neg().exp().tolist()
    return found
