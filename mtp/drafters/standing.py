"""What stood lately: how far each drafter's own probabilities came true, an exponential average."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

_BANDS = 8  # of a drafter's probability: (1/2, 1], (1/4, 1/2], … and all below 1/128
_KEPT = 0.97  # of the past, a step: the last 30 steps or so count
_PRIOR = 8.0  # candidates: a drafter is at first taken at its word, as if seen so often
_SUREST = 0.98  # a child is never as sure as its parent, so that ancestors come first


class Standing:
    """Shares of candidates that stood, by drafter, depth (first or deeper) and probability band."""

    def __init__(self, names: Iterable[str]) -> None:
        self._tried: dict[tuple[str, bool, int], float] = {}
        self._stood: dict[tuple[str, bool, int], float] = {}
        self.lately: dict[str, float] = dict.fromkeys(names, 0.0)
        """By drafter, how many tokens of a step it foresaw, an exponential average."""
        self._steps = 0.0

    def chance(self, name: str, q: float, depth: int) -> float:
        """How likely a candidate stands if its parent does, given what became of such ones."""
        key = (name, depth == 0, band(q))
        tried, stood = self._tried.get(key, 0.0), self._stood.get(key, 0.0)
        return min(_SUREST, (stood + _PRIOR * q) / (tried + _PRIOR))

    def learn(
        self, outcomes: Iterable[tuple[str, float, int, bool]], foreseen: Mapping[str, int]
    ) -> None:
        """Takes in a step: its candidates whose parent stood, as (drafter, q, depth, stood), and
        how many tokens in a row each drafter foresaw.
        """
        for counts in (self._tried, self._stood):
            for key in counts:
                counts[key] *= _KEPT
        for name, q, depth, stood in outcomes:
            key = (name, depth == 0, band(q))
            self._tried[key] = self._tried.get(key, 0.0) + 1.0
            self._stood[key] = self._stood.get(key, 0.0) + stood
        self._steps = self._steps * _KEPT + 1.0
        for name in self.lately:
            self.lately[name] += (foreseen.get(name, 0) - self.lately[name]) / self._steps


def band(q: float) -> int:
    """0 for q in (1/2, 1], 1 for (1/4, 1/2], and so on."""
    return min(_BANDS - 1, int(-math.log2(q))) if q > 0 else _BANDS - 1
