"""Noise of known tokens: the u for which Pick gives a token. PTP §3."""

from __future__ import annotations

import torch
from torch import Tensor

from mtp.sampling import NOISE_BITS, cumulative, picks_from

GRID = 2**NOISE_BITS
BETA = 0.3  # Beta(0.3, 0.3): more mass near an interval's edges than uniform


def intervals(p: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """[low, high) of the noise that picks each of tokens (...): (...) each, from final p (..., V).

    float64. Empty (low = high) where a token has no probability.
    """
    return _ends(cumulative(p), tokens)


def picked(p: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (...) that noise u (...) picks from final p (..., V), and twice the distance from u to
    the nearer end of its interval.
    """
    edges = cumulative(p)
    tokens = picks_from(u, edges)
    low, high = _ends(edges, tokens)
    return tokens, 2 * torch.minimum(u - low, high - u)


def _ends(edges: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    high = edges.gather(-1, tokens[..., None])[..., 0]
    below = edges.gather(-1, (tokens - 1).clamp(min=0)[..., None])[..., 0]
    return torch.where(tokens > 0, below, 0.0), high


def noise_inside(low: Tensor, high: Tensor, share: Tensor) -> Tensor:
    """u = low + share · (high − low) on the grid of run noise, k / 2²⁴: (N,) float64.

    share is in [0, 1]. u stays inside [low, high) wherever that holds a grid point; where it holds
    none, no run can draw the token, and the grid point below its lower edge is given.
    """
    first = torch.ceil(low * GRID)  # the smallest grid point that is not below the interval
    last = torch.ceil(high * GRID) - 1  # the largest one below its upper edge
    wanted = torch.floor((low + share * (high - low)) * GRID)
    return torch.minimum(torch.maximum(wanted, first), last).clamp(0, GRID - 1) / GRID


def drawable(low: Tensor, high: Tensor) -> Tensor:
    """(N,) bool: whether [low, high) holds a grid point, so that a run's noise can pick it."""
    return torch.ceil(low * GRID) < torch.ceil(high * GRID)


def training_shares(count: int, generator: torch.Generator) -> Tensor:
    """ũ ~ Beta(0.3, 0.3) (count,), float64, from a seeded generator."""
    # Jöhnk: (U^(1/a), V^(1/b)) kept where their sum is at most 1 gives Beta(a, b).
    kept = torch.empty(0, dtype=torch.float64)
    while len(kept) < count:
        pair = torch.rand(2, 2 * count + 16, generator=generator, dtype=torch.float64) ** (1 / BETA)
        total = pair.sum(0)
        fits = (total <= 1) & (total > 0)
        kept = torch.cat([kept, pair[0][fits] / total[fits]])
    return kept[:count]
