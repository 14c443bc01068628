"""Embedding-space probing: mask tokens behind every node foresee the next step (ESP, 2603.17942).

One forward verifies this step's tree and, by the masks of its deepest accepted node, gives the
next one. Nothing is trained.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mtp.drafters.base import Context, Draft, Outcome, ProbeOutput
from mtp.drafters.rows import DYNAMIC, children_per_depth, most_nodes
from mtp.models.backbone import Backbone
from mtp.probing.candidates import Candidates, grow, most_probable
from mtp.probing.layout import mask_probes
from mtp.probing.masks import Init, follow, initial_masks
from mtp.tree import DraftTree, Probes

_SHOWN = 5  # candidates of each mask kept in the trace


class EmbeddingProbing:
    """Drafts what the masks of the last accepted node predicted.

    `budget` counts the rows of a block, masks included; with a fixed tree it does not matter.
    """

    name = "esp"
    hidden_layers: tuple[int, ...] = ()

    def __init__(
        self,
        backbone: Backbone,
        masks: int = 1,
        init: Init = "table",
        update: float = 0.0,
        budget: int = 30,
        tree: str = DYNAMIC,
    ) -> None:
        self.backbone = backbone
        self.masks = masks
        self.init: Init = init
        self.update = update
        self.children = children_per_depth(tree)
        self.nodes = (
            most_nodes({self.name: {"masks": masks}}, budget)
            if self.children is None
            else sum(self.children)
        )
        self._vectors: Tensor | None = None  # (k, D)
        self._candidates: Candidates = ()

    def propose(self, context: Context) -> Draft:
        """The most probable of what the masks foresaw, and the masks of this block."""
        rows = (1 + self.masks) * (1 + self.nodes)
        if context.most_depth < 1:
            return Draft(budget_rows=rows, why_empty="One token is left to write.")
        foreseen = self._candidates[: context.most_depth]
        tree = grow(context.token_ids[-1], foreseen, self.nodes, self.children, self.name)
        return Draft(
            tree=tree,
            probes=self.probes_for(tree, context),
            budget_rows=rows,
            insight=self._insight() if len(tree) else None,
            why_empty=None
            if len(tree)
            else "The first forward only places masks; what they foresee is drafted next.",
        )

    def probes_for(self, tree: DraftTree, context: Context) -> Probes | None:
        """Masks for the root and all nodes of any tree, so that drafting goes on from each."""
        if self._vectors is None:
            prompt = context.token_ids[: context.prompt_length]
            self._vectors = initial_masks(
                self.backbone, prompt, self.masks, self.init, context.noise.seed
            )
        # A mask j of the root foresees the root's j + 1st successor, and the first of these that
        # is drafted is the second: so much fewer can still count.
        return mask_probes(tree, self._vectors, context.most_depth - 1)

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        """Reads the masks of the deepest accepted node; the others are dropped."""
        self._candidates = ()
        if self._vectors is not None and self.update:
            new = self.backbone.embed(outcome.committed)
            self._vectors = follow(self._vectors, new, self.update)
        if probes is None or outcome.draft.probes is None:
            return
        owners = outcome.draft.probes.owner
        count = owners.count(outcome.deepest)
        if count:
            first = owners.index(outcome.deepest)
            wanted = 1 + (self.nodes if self.children is None else max(self.children))
            self._candidates = most_probable(probes.logits[first : first + count], wanted)

    def _insight(self) -> dict[str, Any]:
        """By depth, the first candidates as [token id, probability]."""
        return {
            "kind": "esp",
            "masks": self.masks,
            "candidates": [
                [[token, float(f"{log_p:.4g}")] for token, log_p in pairs[:_SHOWN]]
                for pairs in self._candidates
            ],
        }
