"""Adaptive n-gram counts: what followed the last tokens, the longest match first."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from mtp.records.trace import Kind
from mtp.tree import ROOT, DraftTree

_ESCAPE = 0.5  # weight of "something not seen after these tokens"; measured on SmolLM2
_LEAST = 1e-4  # a smaller weight says nothing


class NgramCounts:
    """Weighted counts of next tokens by their context of one to `longest` tokens."""

    def __init__(self, longest: int, escape: float = _ESCAPE) -> None:
        self.longest = longest
        self.escape = escape
        self._counts: dict[tuple[int, ...], dict[int, float]] = {}

    def add(self, context: Sequence[int], weights: Sequence[tuple[int, float]]) -> None:
        """Adds weight to tokens that follow the context's last tokens, at every length."""
        last = tuple(context[-self.longest :])
        for start in range(len(last)):
            counts = self._counts.setdefault(last[start:], {})
            for token, weight in weights:
                if weight > _LEAST:
                    counts[token] = counts.get(token, 0.0) + weight

    def matched(self, context: Sequence[int]) -> int:
        """How many of the context's last tokens were seen in a row before; 0 for none."""
        last = tuple(context[-self.longest :])
        return next((n for n in range(len(last), 0, -1) if last[-n:] in self._counts), 0)

    def after(self, context: Sequence[int]) -> list[tuple[int, float]]:
        """Tokens seen after the context with their probability, the most probable first.

        Prediction by partial matching: the longest context that was seen counts first, and leaves
        its escape weight to the tokens that only shorter ones know (Cleary & Witten 1984).
        """
        last = tuple(context[-self.longest :])
        found: dict[int, float] = {}
        left = 1.0
        for start in range(len(last)):
            counts = self._counts.get(last[start:])
            if counts is None:
                continue
            fresh = {token: w for token, w in counts.items() if token not in found}
            if not fresh:
                continue
            total = sum(fresh.values()) + self.escape
            for token, weight in fresh.items():
                found[token] = left * weight / total
            left *= self.escape / total
        return sorted(found.items(), key=lambda pair: -pair[1])


def most_probable_tree(
    counts: NgramCounts, ids: Sequence[int], most_nodes: int, most_depth: int, origin: str
) -> DraftTree:
    """The `most_nodes` most probable continuations of the text, as a tree, parents first."""
    nodes: list[tuple[int, int, float]] = []  # token, parent, log-probability given the path
    paths: dict[int, tuple[int, ...]] = {ROOT: tuple(ids[-counts.longest :])}
    depths = {ROOT: -1}
    waiting: list[tuple[float, int, int, int, float]] = []  # −path probability, order, …
    order = 0
    expand, path_p = ROOT, 1.0
    while True:
        if depths[expand] + 1 < most_depth:
            for token, p in counts.after(paths[expand])[:most_nodes]:
                heapq.heappush(waiting, (-path_p * p, order, expand, token, p))
                order += 1
        if not waiting or len(nodes) == most_nodes:
            break
        negative, _, parent, token, p = heapq.heappop(waiting)
        expand, path_p = len(nodes), -negative
        nodes.append((token, parent, p))
        paths[expand] = (*paths[parent], token)[-counts.longest :]
        depths[expand] = depths[parent] + 1
    return _tree(nodes, origin)


def _tree(nodes: Sequence[tuple[int, int, float]], origin: str) -> DraftTree:
    kind: Kind = "deterministic"
    return DraftTree(
        token_ids=tuple(token for token, _, _ in nodes),
        parents=tuple(parent for _, parent, _ in nodes),
        log_q=tuple(math.log(p) for _, _, p in nodes),
        kind=(kind,) * len(nodes),
        origins=((origin,),) * len(nodes),
    )
