"""Several drafters' trees as one: siblings with the same token become one node.

`rejection` stays lossless because sampled siblings are all kept and tried before the others. What
is tried after them may then depend on their values: whichever was drawn, once it has fallen the
target is the same residual, and trying fixed tokens against a target leaves it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from mtp.records.trace import Kind
from mtp.tree import ROOT, DraftTree

_LEAST = 1e-30  # so that a logarithm is finite


@dataclass
class Candidate:
    """A token some drafters propose at one place; `q` is each one's probability given the path,
    `nodes` the node that it is in each one's own tree.
    """

    token: int
    parent: int
    depth: int
    sampled: bool
    q: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    chance: float = 0.0
    """How likely it stands if its parent does."""
    value: float = 0.0
    """How likely it stands: the chances along its path multiplied."""


@dataclass(frozen=True)
class Merged:
    """All members' candidates, parents first, and the distributions (V,) sampled ones came from,
    by the candidate above them (−1 the root).
    """

    candidates: tuple[Candidate, ...] = ()
    sampled_from: Mapping[int, Tensor] = field(default_factory=dict)


def merge(trees: Mapping[str, DraftTree]) -> Merged:
    """Joins the trees. A sampled node is never joined with another one: each was a draw of its
    own. A deterministic one joins whatever has its token. Only one of the trees may have sampled
    nodes.
    """
    candidates: list[Candidate] = []
    sampled_from: dict[int, Tensor] = {}
    known: dict[tuple[int, int], int] = {}  # (candidate above, token) → candidate
    for name in sorted(trees, key=lambda name: not trees[name].q):  # the sampled one first
        tree = trees[name]
        place = {ROOT: ROOT}
        for node, token in enumerate(tree.token_ids):
            parent = place[tree.parents[node]]
            sampled = tree.kind[node] == "sampled"
            found = None if sampled else known.get((parent, token))
            if found is None:
                found = len(candidates)
                depth = 0 if parent == ROOT else candidates[parent].depth + 1
                candidates.append(Candidate(token, parent, depth, sampled))
                known.setdefault((parent, token), found)
            candidates[found].q[name] = math.exp(tree.log_q[node])
            candidates[found].nodes[name] = node
            if sampled:
                sampled_from[parent] = tree.q[tree.parents[node]]
            place[node] = found
    return Merged(tuple(candidates), sampled_from)


def weigh(merged: Merged, chance: Callable[[str, float, int], float]) -> None:
    """Sets each candidate's chance and value from `chance(drafter, q, depth)`.

    Drafters are taken as independent witnesses; siblings exclude each other, so that their chances
    add up to 1 at most.
    """
    totals: dict[int, float] = {}
    for one in merged.candidates:
        missed = math.prod(1.0 - chance(name, q, one.depth) for name, q in one.q.items())
        one.chance = 1.0 - missed
        totals[one.parent] = totals.get(one.parent, 0.0) + one.chance
    for one in merged.candidates:
        one.chance /= max(1.0, totals[one.parent])
        above = 1.0 if one.parent == ROOT else merged.candidates[one.parent].value
        one.value = above * one.chance


def select(merged: Merged, most_nodes: int) -> tuple[DraftTree, tuple[int, ...]]:
    """The tree of all sampled candidates and the likeliest others, breadth first, sampled siblings
    first; and which candidate each node is.
    """
    candidates = merged.candidates
    sampled = [index for index, one in enumerate(candidates) if one.sampled]
    others = [index for index, one in enumerate(candidates) if not one.sampled]
    others.sort(key=lambda index: (-candidates[index].value, candidates[index].depth))
    kept = sampled + _closed(candidates, others, sampled, most_nodes - len(sampled))
    order = {index: rank for rank, index in enumerate(kept)}
    kept.sort(key=lambda index: (candidates[index].depth, order[index]))
    place = {index: node for node, index in enumerate(kept)} | {ROOT: ROOT}
    kinds: tuple[Kind, ...] = tuple(
        "sampled" if candidates[index].sampled else "deterministic" for index in kept
    )
    tree = DraftTree(
        token_ids=tuple(candidates[index].token for index in kept),
        parents=tuple(place[candidates[index].parent] for index in kept),
        log_q=tuple(math.log(_q(merged, index)) for index in kept),
        kind=kinds,
        origins=tuple(tuple(candidates[index].q) for index in kept),
        q={place[parent]: q for parent, q in merged.sampled_from.items()},
    )
    return tree, tuple(kept)


def _q(merged: Merged, index: int) -> float:
    """The probability a node is shown with: a draw's own q, else the chance it stands."""
    one = merged.candidates[index]
    q = float(merged.sampled_from[one.parent][one.token]) if one.sampled else one.chance
    return max(q, _LEAST)


def _closed(
    candidates: Sequence[Candidate], ranked: Sequence[int], have: Sequence[int], most: int
) -> list[int]:
    """The first of `ranked`, `most` at most, whose parents are there."""
    there = {ROOT, *have}
    kept: list[int] = []
    for index in ranked:
        if len(kept) >= most:
            break
        if candidates[index].parent in there:
            there.add(index)
            kept.append(index)
    return kept
