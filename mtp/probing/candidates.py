"""From masks' predictions to a draft tree: top-1 expansion, pruning, the most probable nodes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mtp.records.trace import Kind
from mtp.tree import ROOT, DraftTree

Candidates = Sequence[Sequence[tuple[int, float]]]
"""By depth, the most probable tokens first: (token, natural log of the mask's probability)."""


def most_probable(logits: Tensor, count: int) -> Candidates:
    """The `count` most probable tokens of each mask, from its logits (k, V), at temperature 1."""
    log_p = logits.float().log_softmax(dim=-1)
    found = log_p.topk(min(count, log_p.shape[-1]), dim=-1)
    pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
    return [list(zip(tokens, values, strict=True)) for tokens, values in pairs]


def grow(
    root: int,
    candidates: Candidates,
    most_nodes: int,
    children: Sequence[int] | None = None,
    origin: str = "esp",
) -> DraftTree:
    """The draft tree under the token `root`, breadth first (ESP: dynamic and static trees).

    Depth i takes its tokens from mask i + 1; only the best of each depth has children. A
    candidate equal to its parent gives way to the next best. Dynamic: the `most_nodes` most
    probable paths, probabilities multiplied, which closes over ancestors. With `children` per
    depth: that many at each, whatever their probability.
    """
    depths: list[list[tuple[int, float]]] = []
    ranked: list[tuple[float, int]] = []  # (log-probability of the path, depth)
    parent, path = root, 0.0
    for depth, pairs in enumerate(candidates if children is None else candidates[: len(children)]):
        allowed = most_nodes if children is None else children[depth]
        kept = [pair for pair in pairs if pair[0] != parent][:allowed]
        if not kept:
            break
        depths.append(kept)
        ranked += [(path + log_p, depth) for _, log_p in kept]
        parent, best = kept[0]
        path += best
    counts = [len(kept) for kept in depths]
    if children is None:
        ranked.sort(key=lambda node: (-node[0], node[1]))
        chosen = [depth for _, depth in ranked[:most_nodes]]
        counts = [chosen.count(depth) for depth in range(len(depths))]
    return _tree(depths, counts, origin)


def _tree(
    depths: Sequence[Sequence[tuple[int, float]]], counts: Sequence[int], origin: str
) -> DraftTree:
    """The first `counts` tokens of each depth, children of the first one above."""
    token_ids: list[int] = []
    parents: list[int] = []
    log_q: list[float] = []
    parent = ROOT
    for pairs, count in zip(depths, counts, strict=True):
        first = len(token_ids)
        for token, log_p in pairs[:count]:
            token_ids.append(token)
            parents.append(parent)
            log_q.append(log_p)
        parent = first
    kind: Kind = "deterministic"
    size = len(token_ids)
    return DraftTree(
        token_ids=tuple(token_ids),
        parents=tuple(parents),
        log_q=tuple(log_q),
        kind=(kind,) * size,
        origins=((origin,),) * size,
    )
