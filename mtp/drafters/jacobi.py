"""The window of lookahead decoding: guesses for many positions at once, sharpened every step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np


class Window:
    """W columns of L − 1 guesses, a trajectory of Jacobi iterations (Fu et al. 2024, §3).

    `levels[j][i]` is the guess for position root + i + j; level 0 is the oldest. The token of
    level 0, column 0 is the root itself. Column i, read downwards, is a run of consecutive tokens;
    with what the model says after it, an n-gram of length L.
    """

    def __init__(self, levels: list[list[int]]) -> None:
        self.levels = levels

    @property
    def width(self) -> int:
        """W."""
        return len(self.levels[0])

    def rows(self, columns: int) -> list[int]:
        """The tokens of the first columns as block rows: level by level, without the root."""
        return [token for level in self.levels for token in level[:columns]][1:]

    def ngrams(self, root: int, said: Sequence[int], columns: int) -> list[tuple[int, ...]]:
        """The n-grams of this step: every column, and what the model `said` after its last row."""
        found = []
        for column in range(columns):
            run = [level[column] for level in self.levels]
            run[0] = root if column == 0 else run[0]
            found.append((*run, said[column]))
        return found

    def advance(self, said: Sequence[int], accepted: int, filler: Sequence[int]) -> None:
        """Moves on: the oldest level goes, what the model `said` becomes the newest.

        The root moved by 1 + `accepted` positions and the guesses stay at theirs, so that many
        columns less one run out at the left; `filler` tokens come in at the right.
        """
        for level, newer in enumerate([*self.levels[1:], list(said)]):
            moved = newer[accepted:]
            self.levels[level] = (moved + list(filler))[: self.width]


def offsets(levels: int, columns: int) -> tuple[int, ...]:
    """Positions of the window's rows behind the root, in the order of `Window.rows`."""
    return tuple(level + column for level in range(levels) for column in range(columns))[1:]


@lru_cache(maxsize=64)
def window_mask(levels: int, columns: int) -> np.ndarray:
    """sees (R, R): a guess sees level 0 up to its column, and its own column down to itself."""
    level = np.repeat(np.arange(levels), columns)[1:]
    column = np.tile(np.arange(columns), levels)[1:]
    base = (level[None, :] == 0) & (column[None, :] <= column[:, None])
    own = (column[None, :] == column[:, None]) & (level[None, :] <= level[:, None])
    sees: np.ndarray = base | own
    sees.setflags(write=False)  # shared between blocks
    return sees
