"""Partial quadratic decoding: a budget of noise rows shared among branches. PTP §5."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def chances_of_ending(stands: Sequence[float]) -> list[float]:
    """A_d, the chance that exactly d drafts stand, d = 0 … k, from the chance of each draft to
    stand once those before it did (k numbers).
    """
    found, reached = [], 1.0
    for chance in stands:
        found.append(reached * (1 - chance))
        reached *= chance
    return [*found, reached]


def allocate(
    ending: Sequence[float], budget: int, longest: Sequence[int], gains: Sequence[float]
) -> list[int]:
    """Rows of each branch, at most `budget` in all and `longest[d]` in branch d.

    ending: A_d. gains: H(b), the expected number of drafts that stand from a branch of b rows,
    b = 1, 2, …; the last one stands for longer branches. Each time takes the best gain a row in
    Σ A_d · H(B_d): the best share where every further row brings less. Where H starts
    with rows that bring nothing alone, they are taken together with the next, and another share may
    be better by a few percent.
    """
    rows = [0] * len(ending)
    expected = [0.0, *gains]

    def h(count: int) -> float:
        return expected[min(count, len(expected) - 1)]

    def best(branch: int, room: int) -> tuple[float, int, int] | None:
        """The step up of this branch with the best gain a row: (−gain a row, more rows, branch)."""
        have = rows[branch]
        most = min(longest[branch], len(expected) - 1, have + room)
        steps = [
            (-ending[branch] * (h(have + more) - h(have)) / more, more, branch)
            for more in range(1, most - have + 1)
        ]
        found = min(steps, default=None)
        return found if found is not None and found[0] < 0 else None

    left = budget
    queue = [step for branch in range(len(rows)) if (step := best(branch, left)) is not None]
    heapq.heapify(queue)
    while queue and left > 0:
        _, more, branch = heapq.heappop(queue)
        if more <= left:
            rows[branch] += more
            left -= more
        again = best(branch, left)
        if again is not None:
            heapq.heappush(queue, again)
    return rows
