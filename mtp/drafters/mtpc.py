"""Self-speculative drafting with a probabilistic circuit over the next tokens (MTPC, 2511.11346).

The circuit of the hidden state behind which the root was picked covers the root and what follows.
It is conditioned on the root, so that a draft needs no forward of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtp.circuits.draft_tree import best_prefixes
from mtp.circuits.drafting import (
    Shape,
    WindowCircuit,
    advance,
    draw,
    responsible,
    sharpen,
    start,
)
from mtp.circuits.folded import FoldedHead
from mtp.drafters.base import Context, Draft, Outcome, ProbeOutput
from mtp.drafters.options import BEST, CHAIN
from mtp.models.backbone import Backbone
from mtp.models.cache import PathCache
from mtp.models.lora import LowRankAdapter
from mtp.records.trace import DrafterWeights, Kind
from mtp.sampling import Sampling, Stream, final_probabilities
from mtp.tree import ROOT, DraftTree, chain


class CircuitDrafter:
    """Drafts n − 1 tokens jointly, or the circuit's most probable prefixes as a tree.

    A chain is drawn with the verifier's noise under `coupled` and with the `draft` stream under
    `rejection`. With `tree` best, `budget` rows are filled best first by exact prefix probability.
    A chain has `longest` tokens at most; None: as many as the window has.
    With an adapter, drafts run the model's last K layers once more, with it, on the new rows.
    trained: what the head is called in a record.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: FoldedHead,
        adapter: LowRankAdapter | None = None,
        tree: str = CHAIN,
        budget: int = 16,
        longest: int | None = None,
        trained: DrafterWeights | None = None,
    ) -> None:
        self.backbone = backbone
        self.head = head
        self.trained = trained
        self.adapter = adapter
        self.layers = len(adapter.layers) if adapter is not None else 0
        """K."""
        depth = int(backbone.config.num_hidden_layers)
        self.hidden_layers: tuple[int, ...] = (depth - self.layers if self.layers else -1,)
        self._cache = PathCache()
        """Of the adapted layers; the verifier's own run without the adapter."""
        self.name = f"mtpc-{head.structure.circuit}"
        self.best = tree == BEST
        self.window = head.structure.window
        self.longest = self.window - 1 if longest is None else min(longest, self.window - 1)
        self.rows = budget if self.best else self.longest + 1

    def propose(self, context: Context) -> Draft:
        """The draft behind the root."""
        length = min(self.longest, context.most_depth)
        if length < 1:
            return Draft(budget_rows=self.rows, why_empty="One token is left to write.")
        states = context.hidden.get(self.hidden_layers[0])
        if states is None:
            return Draft(
                budget_rows=self.rows,
                why_empty="The prompt is a single token; no hidden state says what follows yet.",
            )
        circuit = self.head.circuit(self._final(states))
        given = int(self.head.vocabulary.places[context.token_ids[-1]])
        shape = _shape(context.sampling, self.head.temperature)
        if self.best:
            return self._tree(circuit, given, shape, context.most_depth)
        stream: Stream = "pick" if context.verification == "coupled" else "draft"
        first = len(context.token_ids)
        noise = [context.noise.u(first + depth, stream) for depth in range(length)]
        drafted = draw(circuit, noise, [given], shape)
        ids = self.head.vocabulary.ids[drafted.tokens].tolist()
        return Draft(
            tree=chain(ids, self.name, drafted.log_q, self._wide(drafted.q).unbind()),
            budget_rows=self.rows,
            insight=lambda: self._insight(circuit, given, drafted.tokens, range(-1, length - 1)),
        )

    def _final(self, states: Tensor) -> Tensor:
        """The final hidden state (D,) of the row that picked the root, of the new rows (R, D)."""
        if self.adapter is None:
            return states[-1]
        with torch.inference_mode():
            final = self.backbone.top(states[None], self.layers, self.adapter, self._cache)
        self._cache.keep(range(len(states)))
        return final[0, -1]

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        """Nothing to learn: the next draft starts from the hidden state."""

    def _tree(
        self, circuit: WindowCircuit, given: int, shape: Shape | None, most_depth: int
    ) -> Draft:
        behind_root = start(circuit, [given])
        found = best_prefixes(circuit, behind_root, self.rows - 1, shape, most_depth)
        size = len(found.tokens)
        kind: Kind = "deterministic"
        tree = DraftTree(
            token_ids=tuple(self.head.vocabulary.ids[found.tokens].tolist()),
            parents=tuple(found.parents),
            log_q=tuple(found.log_q),
            kind=(kind,) * size,
            origins=((self.name,),) * size,
        )
        return Draft(
            tree=tree,
            budget_rows=self.rows,
            expected=1.0 + found.expected,
            insight=lambda: self._insight(circuit, given, found.tokens, found.parents),
        )

    def _insight(
        self, circuit: WindowCircuit, given: int, tokens: Sequence[int], parents: Sequence[int]
    ) -> dict[str, Any]:
        """Of each node: the latent that chose its component, that component, and its share of the
        token's probability. The latents' names are their numbers in the structure.
        """
        owners = circuit.structure.owners
        prefixes = {ROOT: start(circuit, [given])}
        chosen = []
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            at = prefixes[parent]
            state, share = responsible(circuit, at, token)
            chosen.append([owners[at.position], state, round(share, 4)])
            if at.position + 1 < self.window:
                prefixes[node] = advance(circuit, at, token)
        return {
            "kind": "circuit",
            "circuit": circuit.structure.circuit,
            "window": self.window,
            "rank": circuit.structure.rank,
            "root": [round(float(weight), 4) for weight in circuit.root],
            "components": chosen,
        }

    def _wide(self, q: np.ndarray) -> Tensor:
        """Distributions over the draft vocabulary (L, v) as ones over the model's (L, V)."""
        mine = torch.from_numpy(q)
        vocabulary = self.head.vocabulary
        if len(vocabulary) == vocabulary.size:
            return mine
        wide = torch.zeros(len(mine), vocabulary.size, dtype=mine.dtype)
        wide[:, torch.from_numpy(vocabulary.ids)] = mine
        return wide


def _shape(sampling: Sampling, trained: float) -> Shape | None:
    """What turns a conditional into the distribution drafts are drawn from: the verifier's
    sampling, applied to q, which holds at the temperature that the head was trained for.
    """
    if sampling.top_k == 0 and sampling.top_p == 1:
        relative = sampling.temperature / trained
        return None if relative == 1 else sharpen(relative)

    def shaped(q: np.ndarray) -> np.ndarray:
        logits = trained * torch.from_numpy(q.astype(np.float64)).log()
        found: np.ndarray = final_probabilities(logits, sampling).numpy()
        return found

    return shaped
