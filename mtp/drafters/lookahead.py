"""Lookahead decoding: a window of parallel guesses feeds a pool of n-grams (Fu et al. 2024)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

import numpy as np

from mtp.drafters.base import Context, Draft, Outcome, ProbeOutput
from mtp.drafters.jacobi import Window, offsets, window_mask
from mtp.models.backbone import Backbone
from mtp.tree import ROOT, DraftTree, Probes, trie


class Lookahead:
    """Verifies up to `guesses` pooled n-grams that start with the root, while the window of
    (n − 1) × `window` guesses rides along as probes and finds new ones.
    """

    name = "lookahead"
    hidden_layers: tuple[int, ...] = ()

    def __init__(
        self,
        backbone: Backbone,
        n: int = 4,
        window: int = 5,
        guesses: int = 5,
        pool: Literal["prompt", "window"] = "prompt",
    ) -> None:
        self.backbone = backbone
        self.n = n
        self.width = window
        self.guesses = guesses
        self.pool = Pool(guesses)
        self.from_prompt = pool == "prompt"
        self._window: Window | None = None
        self._random = np.random.default_rng(0)
        self._ids: list[int] = []

    def propose(self, context: Context) -> Draft:
        """The pooled n-grams behind the root as a tree, and the window's rows."""
        rows = (self.n - 1) * (self.width + self.guesses)
        if context.most_depth < 1:
            return Draft(budget_rows=rows, why_empty="One token is left to write.")
        self._begin(context)
        known = self.pool.after(context.token_ids[-1])
        # The latest first; the earlier ones weigh a little less.
        paths = [(run[: context.most_depth], 1.0 / (1 + age)) for age, run in enumerate(known)]
        tree = trie(paths, self.name, self.guesses * (self.n - 1))
        return Draft(
            tree=tree,
            probes=self.probes_for(tree, context),
            budget_rows=rows,
            insight={"kind": "lookahead", "pool": len(self.pool), "known": len(known)},
            why_empty=None if len(tree) else "No n-gram in the pool starts with the last token.",
        )

    def probes_for(self, tree: DraftTree, context: Context) -> Probes | None:
        """The window's rows behind the root; columns past the context limit stay out."""
        levels = self.n - 1
        columns = min(self.width, context.room - levels + 2)
        if self._window is None or columns < 1 or levels * columns == 1:
            return None
        places = offsets(levels, columns)
        return Probes(
            owner=(ROOT,) * len(places),
            slot=places,
            embeds=self.backbone.embed(self._window.rows(columns)),
            sees=window_mask(levels, columns),
        )

    def _begin(self, context: Context) -> None:
        """At first: guesses are words of the prompt in random order, the pool the prompt's own."""
        self._ids = list(context.token_ids)
        if self._window is not None:
            return
        self._random = np.random.default_rng(context.noise.seed)
        self._window = Window([self._words(self.width) for _ in range(self.n - 1)])
        if self.from_prompt:
            for start in range(len(self._ids) - self.n + 1):
                self.pool.add(self._ids[start : start + self.n])

    def _words(self, count: int) -> list[int]:
        return [int(token) for token in self._random.choice(self._ids, count)]

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        """Pools the window's new n-grams and moves the window on."""
        window = self._window
        if window is None or probes is None or outcome.draft.probes is None:
            return
        levels = self.n - 1
        columns = (1 + len(probes.logits)) // levels
        said = probes.logits[-columns:].argmax(dim=-1).tolist()  # behind the newest level
        if levels == 1:  # whose first row is the root's own
            said.insert(0, int(outcome.logits[0].argmax()))
        for ngram in window.ngrams(self._ids[-1], said, columns):
            self.pool.add(ngram)
        window.advance(said, len(outcome.accepted), self._words(self.width))


class Pool:
    """N-grams by their first token, the latest first, a limited number of each."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._runs: dict[int, OrderedDict[tuple[int, ...], None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        """Takes an n-gram in, the oldest with the same first token out."""
        runs = self._runs.setdefault(ngram[0], OrderedDict())
        runs[tuple(ngram[1:])] = None
        runs.move_to_end(tuple(ngram[1:]))
        if len(runs) > self.most:
            runs.popitem(last=False)

    def after(self, token: int) -> list[tuple[int, ...]]:
        """What followed the token, the latest first."""
        return list(reversed(self._runs.get(token, ())))

    def __len__(self) -> int:
        """All n-grams held."""
        return sum(len(runs) for runs in self._runs.values())
