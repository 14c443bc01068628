"""The draft tree, the probe rows that ride along, and the attention template of a block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mtp.records.trace import Kind

ROOT = -1  # parent of the tree's first nodes, and owner of the root's probes


@dataclass(frozen=True)
class DraftTree:
    """Drafted tokens as a tree under the root; node i's parent comes before it.

    log_q is the natural log of the drafter's probability given the path. `q` holds, for every
    parent with sampled children, the full distribution (V,) they were drawn from. Sampled
    siblings may repeat a token: each was a draw of its own.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    log_q: tuple[float, ...] = ()
    kind: tuple[Kind, ...] = ()
    origins: tuple[tuple[str, ...], ...] = ()
    q: Mapping[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = len(self.token_ids)
        columns = (self.parents, self.log_q, self.kind, self.origins)
        if any(len(column) != size for column in columns):
            raise ValueError("the columns of a draft tree must have one entry a node")
        if any(not ROOT <= parent < node for node, parent in enumerate(self.parents)):
            raise ValueError("a node's parent must come before it")
        for parent, kind in zip(self.parents, self.kind, strict=True):
            if kind == "sampled" and parent not in self.q:
                raise ValueError(f"sampled children of node {parent} need q there")

    def __len__(self) -> int:
        return len(self.token_ids)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """0 for a child of the root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> Mapping[int, tuple[int, ...]]:
        """The children of each node that has any, in order; the root is −1."""
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(node)
        return {parent: tuple(nodes) for parent, nodes in found.items()}

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from a child of the root down to `node`; empty for the root."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))


def chain(
    token_ids: Sequence[int],
    origin: str,
    log_q: Sequence[float] | None = None,
    q: Sequence[Tensor] | None = None,
) -> DraftTree:
    """A tree without branches; sampled when the distributions `q`, one a node, are given."""
    size = len(token_ids)
    kind: Kind = "deterministic" if q is None else "sampled"
    return DraftTree(
        token_ids=tuple(token_ids),
        parents=tuple(range(-1, size - 1)),
        log_q=tuple(log_q) if log_q is not None else (0.0,) * size,
        kind=(kind,) * size,
        origins=((origin,),) * size,
        q={} if q is None else {node - 1: dist for node, dist in enumerate(q)},
    )


class Adapter(Protocol):
    """Weights added on the probe rows only (gated LoRA)."""

    def gate(self, model: nn.Module, first_row: int) -> AbstractContextManager[None]:
        """While entered, rows from `first_row` on of each forward run with the added weights."""
        ...


@dataclass(frozen=True)
class Probes:
    """Rows of a block that are not tokens: mask tokens, noise.

    owner (R,) is a node or the root (−1); slot (R,) is added to the owner's position; embeds
    (R, D) enter in place of token embeddings; sees (R, R) says which probes each may attend to
    besides itself. A probe sees the cache, its owner's path and these; tokens never see probes.
    """

    owner: tuple[int, ...]
    slot: tuple[int, ...]
    embeds: Tensor
    sees: np.ndarray
    adapter: Adapter | None = None

    def __post_init__(self) -> None:
        rows = len(self.owner)
        if len(self.slot) != rows or len(self.embeds) != rows or self.sees.shape != (rows, rows):
            raise ValueError("probes need one owner, slot, embedding and row of `sees` each")

    def __len__(self) -> int:
        return len(self.owner)


@dataclass(frozen=True)
class Template:
    """The part of a block's mask and positions that depends on its shape alone.

    mask (T, T) bool, True where a row may attend; offsets (T,) are added to the root's position.
    Rows: root, nodes, probes.
    """

    mask: Tensor
    offsets: Tensor


class Templates:
    """Templates by shape, so that a shape met before costs a lookup; counts rebuilds."""

    def __init__(self, capacity: int = 256) -> None:
        self.capacity = capacity
        self.rebuilds = 0
        self._known: OrderedDict[tuple[object, ...], Template] = OrderedDict()

    def get(self, tree: DraftTree, probes: Probes | None) -> Template:
        """The template of this tree and these probes."""
        shape: tuple[object, ...] = (tree.parents,)
        if probes is not None:
            shape += (probes.owner, probes.slot, probes.sees.tobytes())
        template = self._known.get(shape)
        if template is None:
            template = build_template(tree, probes)
            self.rebuilds += 1
            self._known[shape] = template
            if len(self._known) > self.capacity:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(shape)
        return template


def build_template(tree: DraftTree, probes: Probes | None) -> Template:
    """Mask and position offsets of [root, nodes, probes]."""
    tokens = 1 + len(tree)
    rows = tokens + (len(probes) if probes is not None else 0)
    mask = np.zeros((rows, rows), dtype=bool)
    offsets = np.zeros(rows, dtype=np.int64)
    mask[0, 0] = True
    for node, parent in enumerate(tree.parents):
        mask[node + 1] = mask[parent + 1]  # the parent's path, the root is row 0
        mask[node + 1, node + 1] = True
        offsets[node + 1] = offsets[parent + 1] + 1
    if probes is not None:
        owners = np.asarray(probes.owner, dtype=np.int64) + 1
        mask[tokens:, :tokens] = mask[owners, :tokens]
        mask[tokens:, tokens:] = probes.sees | np.eye(len(probes), dtype=bool)
        offsets[tokens:] = offsets[owners] + np.asarray(probes.slot)
    return Template(torch.from_numpy(mask), torch.from_numpy(offsets))


def trie(paths: Iterable[tuple[Sequence[int], float]], origin: str, most_nodes: int) -> DraftTree:
    """Weighted token sequences merged into one tree of deterministic nodes, breadth first.

    A node's q is its weight over the weight of all that pass through its parent. Of more than
    `most_nodes`, those of most path weight stay, ancestors included.
    """
    weights: dict[tuple[int, ...], float] = {}
    for tokens, weight in paths:
        for end in range(1, len(tokens) + 1):
            prefix = tuple(tokens[:end])
            weights[prefix] = weights.get(prefix, 0.0) + weight
    # An ancestor weighs at least as much as its descendants and is shorter, so it is kept first.
    kept = sorted(weights, key=lambda prefix: (-weights[prefix], len(prefix)))[:most_nodes]
    kept.sort(key=lambda prefix: (len(prefix), -weights[prefix]))
    totals: dict[tuple[int, ...], float] = {}
    for prefix, weight in weights.items():
        totals[prefix[:-1]] = totals.get(prefix[:-1], 0.0) + weight
    index = {prefix: node for node, prefix in enumerate(kept)}
    kind: Kind = "deterministic"
    return DraftTree(
        token_ids=tuple(prefix[-1] for prefix in kept),
        parents=tuple(index.get(prefix[:-1], ROOT) for prefix in kept),
        log_q=tuple(float(np.log(weights[p] / totals[p[:-1]])) for p in kept),
        kind=(kind,) * len(kept),
        origins=((origin,),) * len(kept),
    )
