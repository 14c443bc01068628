"""Adaptive n-grams: drafts what followed these words so far in the prompt and the output (STAND).

No model of its own: counts from the text, and the verifier's probabilities instead of counts where
a forward gave them (Song et al. 2025).
"""

from __future__ import annotations

from collections.abc import Sequence

from mtp.drafters.base import Context, Draft, Outcome, ProbeOutput
from mtp.drafters.ngrams import NgramCounts, most_probable_tree
from mtp.tree import ROOT

_LEARNT = 8  # tokens a row of logits adds to the counts; 16 do no better on SmolLM2
_FALLEN = 2  # last tokens under which a fallen node's row is counted
_SHOWN = 5  # candidates behind the root kept in the trace


class AdaptiveNgrams:
    """A tree of the most probable continuations by n-gram counts, refreshed every step.

    `budget` counts the rows of a block, the root included; `n` is the longest run of last tokens
    that is looked up. A token of the prompt counts 1; where the verifier has judged, its most
    probable tokens count as much as their probability, after fallen nodes too.
    """

    name = "stand"
    hidden_layers: tuple[int, ...] = ()

    def __init__(self, budget: int = 30, n: int = 4) -> None:
        self.budget = budget
        self.counts = NgramCounts(n)
        self._ids: list[int] = []
        """The text at the last proposal."""
        self._temperature = 1.0

    def propose(self, context: Context) -> Draft:
        """The most probable tree within the budget."""
        if not self._ids:
            self._count_prompt(context.token_ids)
        self._ids = list(context.token_ids)
        self._temperature = context.sampling.temperature or 1.0
        if context.most_depth < 1:
            return Draft(budget_rows=self.budget, why_empty="One token is left to write.")
        tree = most_probable_tree(
            self.counts, context.token_ids, self.budget - 1, context.most_depth, self.name
        )
        if not len(tree):
            return Draft(
                budget_rows=self.budget,
                why_empty="The last token has not stood in the text before.",
            )
        first = self.counts.after(context.token_ids)
        return Draft(
            tree=tree,
            budget_rows=self.budget,
            insight={
                "kind": "ngrams",
                "matched": self.counts.matched(context.token_ids),
                "candidates": [[token, float(f"{p:.4g}")] for token, p in first[:_SHOWN]],
            },
        )

    def _count_prompt(self, token_ids: Sequence[int]) -> None:
        for position in range(1, len(token_ids)):
            before = token_ids[max(0, position - self.counts.longest) : position]
            self.counts.add(before, [(token_ids[position], 1.0)])

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        """Adds what the verifier said after the root and every node, those that fell included.

        A row's distribution is that of its own path whether or not the path is the text's.
        """
        tree = outcome.draft.tree
        scaled = outcome.logits.float() / self._temperature  # (1 + N, V)
        found = scaled.topk(min(_LEARNT, scaled.shape[-1]), dim=-1)
        p = (found.values - scaled.logsumexp(dim=-1, keepdim=True)).exp()
        paths = {ROOT: self._ids[-self.counts.longest :]}
        for node, (parent, token) in enumerate(zip(tree.parents, tree.token_ids, strict=True)):
            paths[node] = [*paths[parent], token][-self.counts.longest :]
        stood = {ROOT, *outcome.accepted}
        for row, (tokens, values) in enumerate(
            zip(found.indices.tolist(), p.tolist(), strict=True)
        ):
            path = paths[row - 1]
            # Long runs through a node that fell hardly come again, and would fill the memory.
            known = path if row - 1 in stood else path[-_FALLEN:]
            self.counts.add(known, list(zip(tokens, values, strict=True)))
