"""From logits to a token: temperature, top-k, top-p, and Pick with noise that depends on position.

The randomness of a run is a pure function of (seed, position, stream), so any drafter meets the
same noise at the same place in the text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mtp.errors import InputError

Stream = Literal["pick", "accept", "residual", "draft"]
_STREAMS: dict[Stream, int] = {"pick": 0, "accept": 1, "residual": 2, "draft": 3}

MAX_TEMPERATURE = 5.0
MAX_SEED = 2**53 - 1  # the largest integer that JSON and JavaScript keep exactly
NOISE_BITS = 24  # u = k / 2**24 is exact in float32


@dataclass(frozen=True)
class Sampling:
    """How the verifier's logits become its final distribution.

    temperature 0 is greedy; top_k 0 and top_p 1 leave the distribution whole.
    Raises InputError outside these ranges.
    """

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= MAX_TEMPERATURE):
            raise InputError(
                f"The temperature is {self.temperature}; it can be from 0 (greedy) "
                f"to {MAX_TEMPERATURE:g}."
            )
        if self.top_k < 0:
            raise InputError(f"Top-k is {self.top_k}; it can be 0 (off) or a positive number.")
        if not (math.isfinite(self.top_p) and 0 < self.top_p <= 1):
            raise InputError(f"Top-p is {self.top_p}; it can be above 0 and at most 1 (off).")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0


def final_probabilities(
    logits: Tensor, sampling: Sampling, dtype: torch.dtype = torch.float64
) -> Tensor:
    """The distribution tokens are drawn from: logits (..., V) to probabilities (..., V).

    Greedy is a distribution with all its mass on the first largest logit. dtype: float64 for
    whatever decides a token; less where a distribution is only learned from.
    """
    if sampling.greedy:
        best = logits.argmax(dim=-1, keepdim=True)
        one_hot = torch.zeros(logits.shape, dtype=dtype, device=logits.device)
        return one_hot.scatter_(-1, best, 1.0)
    scaled = logits.to(dtype) / sampling.temperature
    if 0 < sampling.top_k < scaled.shape[-1]:
        kept = scaled.topk(sampling.top_k, dim=-1)
        scaled = torch.full_like(scaled, -math.inf).scatter(-1, kept.indices, kept.values)
    p = scaled.softmax(dim=-1)
    if sampling.top_p < 1:
        ordered, order = p.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered  # mass of the more probable tokens
        ordered = ordered.masked_fill(before >= sampling.top_p, 0.0)
        p = torch.zeros_like(p).scatter(-1, order, ordered)
        p = p / p.sum(dim=-1, keepdim=True)
    return p


def cumulative(p: Tensor) -> Tensor:
    """F of Pick: the float64 cumulative sum (V,) in vocabulary order, its last edge exactly 1."""
    total = p.to(torch.float64).cumsum(dim=-1)
    return total / total[..., -1:]


def pick(u: float, p: Tensor) -> int:
    """Pick(u, P) = min{j : F_j > u} for probabilities p (V,) and u in [0, 1) (PTP §3)."""
    return pick_from(u, cumulative(p))


def pick_from(u: float, edges: Tensor) -> int:
    """Pick on a cumulative sum (V,) that is already there."""
    wanted = torch.tensor(u, dtype=edges.dtype, device=edges.device)
    return int(torch.searchsorted(edges, wanted, right=True))


def picks_from(u: Tensor, edges: Tensor) -> Tensor:
    """Pick for many: tokens (...) from noise u (...) and cumulative sums (..., V) or (V,)."""
    found = torch.searchsorted(edges, u[..., None].to(edges).contiguous(), right=True)
    return found[..., 0].clamp(max=edges.shape[-1] - 1)


def interval(token: int, edges: Tensor) -> tuple[float, float]:
    """The noise [low, high) for which Pick gives `token`; empty where it has no probability."""
    low = float(edges[token - 1]) if token > 0 else 0.0
    return low, float(edges[token])


@dataclass(frozen=True)
class Noise:
    """The randomness of a run: u in [0, 1) by position and stream, from a counter (Philox)."""

    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise InputError(f"The seed is {self.seed}; it can be from 0 to {MAX_SEED}.")

    def u(self, position: int, stream: Stream, index: int = 0) -> float:
        """The noise for the token at 0-based `position` in prompt + output; `index` tells siblings
        apart."""
        return _drawn(self.seed, position, _STREAMS[stream], index)


@lru_cache(maxsize=1 << 14)  # windows of a run overlap, and making a generator takes longer
def _drawn(seed: int, position: int, stream: int, index: int) -> float:
    counter = np.array([0, index, position, stream], dtype=np.uint64)
    bits = np.random.Philox(key=seed, counter=counter).random_raw()
    return (int(bits) >> (64 - NOISE_BITS)) / 2**NOISE_BITS
