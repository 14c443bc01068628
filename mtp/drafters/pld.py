"""Prompt lookup: copies what followed the last words where they stood before (Saxena 2023)."""

from __future__ import annotations

import numpy as np

from mtp.drafters.base import Context, Draft, Outcome, ProbeOutput
from mtp.tree import trie


class PromptLookup:
    """Finds the last n tokens earlier in the text, longest n first, latest place first.

    With `branches` above 1 several places are copied and merged into a tree; a node's q is the
    share of the places that go on with it.
    """

    name = "pld"
    hidden_layers: tuple[int, ...] = ()

    def __init__(self, budget: int = 10, n: int = 3, length: int = 10, branches: int = 1) -> None:
        self.budget = budget
        self.n = n
        self.length = length
        self.branches = branches

    def propose(self, context: Context) -> Draft:
        """The tokens that followed, as a chain or a tree within the budget."""
        length = min(self.length, self.budget, context.most_depth)
        if length < 1:
            return Draft(budget_rows=1 + self.budget, why_empty="One token is left to write.")
        matched, places = find_continuations(np.asarray(context.token_ids), self.n, self.branches)
        if not places:
            return Draft(
                budget_rows=1 + self.budget,
                why_empty="The last token has not stood in the text before.",
            )
        ids = context.token_ids
        copies = [(ids[start : start + length], 1.0) for start in places]
        return Draft(
            tree=trie(copies, self.name, self.budget),
            budget_rows=1 + self.budget,
            insight={"kind": "lookup", "matched": matched, "places": places},
        )

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        """Nothing to learn: the text itself is the memory."""


def find_continuations(ids: np.ndarray, longest: int, most: int) -> tuple[int, list[int]]:
    """Where the text (T,) went on after its last n tokens stood earlier: n and start indices.

    The longest n with a match counts, and shorter ones fill up to `most` places; the latest come
    first. (0, []) where not even the last token was there before.
    """
    size = len(ids)
    best, starts = 0, list[int]()
    for n in range(min(longest, size - 1), 0, -1):
        matches = np.ones(size - n, dtype=bool)  # a match may start at 0 … size − n − 1
        for offset in range(n):
            matches &= ids[offset : size - n + offset] == ids[size - n + offset]
        found = [int(start) + n for start in np.flatnonzero(matches)[::-1]]
        if found and not best:
            best = n
        starts += [start for start in found if start not in starts]
        if len(starts) >= most:
            break
    return best, starts[:most]
