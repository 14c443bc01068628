"""Which drafted tokens stand, and what the verifier puts in place of the first that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mtp.records.trace import Source, Verification
from mtp.sampling import Noise, cumulative, interval, pick_from
from mtp.tree import ROOT, DraftTree

VERIFICATIONS: tuple[Verification, ...] = ("coupled", "rejection")

Distribution = Callable[[int], Tensor]
"""The verifier's final distribution (V,), float64, at a node's row; −1 is the root's."""


@dataclass(frozen=True)
class Decision:
    """One token put into the text: picked at `row` by noise u in [low, high)."""

    token: int
    row: int
    source: Source
    u: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Verdict:
    """The accepted nodes from the root down, and the tokens to commit: theirs and one more.

    `trials` holds, under rejection, the noise and the chance of standing of each node tried.
    """

    accepted: tuple[int, ...]
    decisions: tuple[Decision, ...]
    trials: dict[int, tuple[float, float]]


def verify(
    verification: Verification,
    tree: DraftTree,
    distribution: Distribution,
    noise: Noise,
    position: int,
) -> Verdict:
    """Judges a draft tree whose first nodes stand at `position` of the text."""
    rule = coupled if verification == "coupled" else rejection
    return rule(tree, distribution, noise, position)


def coupled(tree: DraftTree, distribution: Distribution, noise: Noise, position: int) -> Verdict:
    """At each visited node the verifier picks with that position's noise; a child with that token
    stands, else the pick is committed as the verifier's own. The text is plain sampling's.
    """
    accepted: list[int] = []
    decisions: list[Decision] = []
    row = ROOT
    while True:
        edges = cumulative(distribution(row))
        u = noise.u(position + len(decisions), "pick")
        token = pick_from(u, edges)
        match = next((n for n in tree.children.get(row, ()) if tree.token_ids[n] == token), None)
        source: Source = "verifier" if match is None else "draft"
        decisions.append(Decision(token, row, source, u, interval(token, edges)))
        if match is None:
            return Verdict(tuple(accepted), tuple(decisions), {})
        accepted.append(match)
        row = match


def rejection(tree: DraftTree, distribution: Distribution, noise: Noise, position: int) -> Verdict:
    """Speculative sampling (Leviathan et al. 2023; Chen et al. 2023), for trees as in SpecInfer.

    Siblings are tried in order against r, at first the verifier's p. A deterministic child x
    stands with chance r(x), else r(x) becomes 0; a sampled one with min(1, r(x)/q(x)), else r
    becomes (r − q)₊; r is renormalised. When none stands, the token is drawn from r.
    """
    accepted: list[int] = []
    decisions: list[Decision] = []
    trials: dict[int, tuple[float, float]] = {}
    row = ROOT
    while True:
        here = position + len(decisions)
        r = distribution(row)
        children = tree.children.get(row, ())
        stands: int | None = None
        for sibling, node in enumerate(children):
            token = tree.token_ids[node]
            q = tree.q[row] if tree.kind[node] == "sampled" else None
            chance = float(r[token]) if q is None else min(1.0, float(r[token]) / float(q[token]))
            u = noise.u(here, "accept", sibling)
            trials[node] = (u, chance)
            if u < chance:
                stands = node
                decisions.append(Decision(token, row, "draft", u, (0.0, chance)))
                break
            r = _without(r, token) if q is None else _residual(r, q)
        if stands is None:
            u = noise.u(here, "residual" if children else "pick")
            edges = cumulative(r)
            token = pick_from(u, edges)
            decisions.append(Decision(token, row, "verifier", u, interval(token, edges)))
            return Verdict(tuple(accepted), tuple(decisions), trials)
        accepted.append(stands)
        row = stands


def _without(r: Tensor, token: int) -> Tensor:
    rest = r.clone()
    rest[token] = 0.0
    return _normalised(rest, r)


def _residual(r: Tensor, q: Tensor) -> Tensor:
    return _normalised((r - q.to(r)).clamp_min(0.0), r)


def _normalised(rest: Tensor, r: Tensor) -> Tensor:
    """`rest` over its sum; r itself when nothing is left, which rounding alone can bring about."""
    total = rest.sum()
    return torch.where(total > 0, rest / total, r)
