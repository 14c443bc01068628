"""A draft tree from a circuit: the most probable prefixes under a node budget, exactly priced.

MTPC drafts one window; since a circuit prices every prefix, the prefixes with the highest
q(x_1 … x_k) can be enumerated best first. They form a tree, because a prefix is never less probable
than what continues it, and they maximise the expected number of accepted tokens when the verifier
follows q (the sum of prefix probabilities).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from mtp.circuits.drafting import Prefix, Shape, WindowCircuit, advance, conditional

ROOT = -1


@dataclass(frozen=True)
class BestPrefixes:
    """Nodes in order of falling prefix probability, parents before children.

    tokens: indices into the circuit's vocabulary. parents: node index, or ROOT. log_q: natural log
    of the token's probability given its path. expected: Σ of the nodes' prefix probabilities, the
    number of drafted tokens expected to stand if the verifier followed q.
    """

    tokens: list[int]
    parents: list[int]
    log_q: list[float]
    expected: float


@dataclass(frozen=True)
class _Fork:
    """A path whose continuations are tried in order of falling probability."""

    prefix: Prefix
    node: int
    log_path: float
    ranked: np.ndarray  # the likeliest tokens, best first
    log_q: np.ndarray  # their conditional log-probabilities


def best_prefixes(
    circuit: WindowCircuit,
    prefix: Prefix,
    budget: int,
    shape: Shape | None = None,
    most: int | None = None,
) -> BestPrefixes:
    """The `budget` most probable continuations of `prefix` as a tree (fewer if there are fewer).

    `shape` is applied to every conditional first, as in `drafting.draw`. Continuations are at most
    `most` tokens long, or as long as the window. Costs one conditional per node. Tokens of
    probability zero are left out.
    """
    window = circuit.structure.window
    end = window if most is None else min(window, prefix.position + most)
    tokens: list[int] = []
    parents: list[int] = []
    log_q: list[float] = []
    expected = 0.0
    forks: list[_Fork] = []
    queue: list[tuple[float, int, int]] = []  # (-log prefix probability, fork, rank)

    def offer(fork: int, rank: int) -> None:
        at = forks[fork]
        if rank < len(at.ranked):
            heapq.heappush(queue, (-(at.log_path + float(at.log_q[rank])), fork, rank))

    def fork(at: Prefix, node: int, log_path: float) -> None:
        left = budget - len(tokens)
        if left > 0 and at.position < end:
            q = conditional(circuit, at)
            ranked, logs = _ranked(q if shape is None else shape(q), left)
            forks.append(_Fork(at, node, log_path, ranked, logs))
            offer(len(forks) - 1, 0)

    fork(prefix, ROOT, 0.0)
    while queue and len(tokens) < budget:
        negative, index, rank = heapq.heappop(queue)
        parent = forks[index]
        token = int(parent.ranked[rank])
        tokens.append(token)
        parents.append(parent.node)
        log_q.append(float(parent.log_q[rank]))
        expected += math.exp(-negative)
        offer(index, rank + 1)
        fork(advance(circuit, parent.prefix, token), len(tokens) - 1, -negative)
    return BestPrefixes(tokens, parents, log_q, expected)


def _ranked(q: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The `most` likeliest tokens of q (v,), best first, and their log-probabilities."""
    if most < len(q):
        kept = np.argpartition(q, -most)[-most:]
        kept = kept[np.argsort(-q[kept], kind="stable")]
    else:
        kept = np.argsort(-q, kind="stable")
    kept = kept[q[kept] > 0]
    return kept, np.log(q[kept].astype(np.float64) / float(q.sum()))
