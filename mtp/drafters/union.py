"""Unions such as esp+pld: several drafters' candidates in one tree, verified in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from mtp.drafters.base import Context, Draft, Drafter, Outcome, ProbeOutput
from mtp.drafters.merge import Merged, merge, select, weigh
from mtp.drafters.standing import Standing
from mtp.tree import ROOT, DraftTree, Probes


@runtime_checkable
class PlacesProbes(Protocol):
    """A member whose probes go with any tree, so that it goes on from whatever node stands."""

    def probes_for(self, tree: DraftTree, context: Context) -> Probes | None:
        """Its probes for the union's tree."""
        ...


class Union:
    """Merges its members' trees and keeps the nodes likeliest to stand.

    How likely is what became of such candidates lately: of the same drafter, as sure of itself,
    at the same depth (`Standing`). So the rows go to the members whose drafts stand. `nodes` is
    the most that the union's budget of rows holds. Every member learns from every step.
    """

    def __init__(self, members: Sequence[Drafter], budget: int, nodes: int) -> None:
        self.name = "+".join(member.name for member in members)
        self.members = tuple(members)
        layers = {layer for member in members for layer in member.hidden_layers}
        self.hidden_layers: tuple[int, ...] = tuple(sorted(layers))
        self.budget = budget
        self.nodes = nodes
        self.standing = Standing(member.name for member in members)
        self._merged = Merged()
        self._probes: tuple[Probes | None, ...] = ()

    def propose(self, context: Context) -> Draft:
        """The members' likeliest nodes, and the probes each member needs on all of them."""
        self._merged, self._probes = Merged(), (None,) * len(self.members)
        if context.most_depth < 1:
            return Draft(budget_rows=self.budget, why_empty="One token is left to write.")
        drafts = {member.name: member.propose(context) for member in self.members}
        self._merged = merge({name: draft.tree for name, draft in drafts.items()})
        weigh(self._merged, self.standing.chance)
        tree, kept = select(self._merged, self.nodes)
        self._probes = tuple(
            member.probes_for(tree, context) if isinstance(member, PlacesProbes) else None
            for member in self.members
        )
        candidates = self._merged.candidates
        lately = dict(self.standing.lately)
        return Draft(
            tree=tree,
            probes=joined([probes for probes in self._probes if probes is not None]),
            budget_rows=self.budget,
            expected=1.0 + sum(candidates[index].value for index in kept),
            insight=(lambda: self._insight(tree, kept, drafts, lately)) if len(tree) else None,
            why_empty=None
            if len(tree)
            else " ".join(
                f"{name}: {draft.why_empty}" for name, draft in drafts.items() if draft.why_empty
            ),
        )

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        """Tells every member what became of the whole tree, each with its own probes' rows."""
        self._learn(outcome.committed)
        start = 0
        for member, own in zip(self.members, self._probes, strict=True):
            output = None
            if own is not None and probes is not None:
                rows = slice(start, start + len(own))
                start += len(own)
                hidden = {layer: states[rows] for layer, states in probes.hidden.items()}
                output = ProbeOutput(probes.logits[rows], hidden)
            member.observe(replace(outcome, draft=replace(outcome.draft, probes=own)), output)

    def _learn(self, committed: Sequence[int]) -> None:
        """Compares all candidates, drafted or not, with the tokens that came."""
        outcomes: list[tuple[str, float, int, bool]] = []
        foreseen: dict[str, int] = {}
        standing = {ROOT}
        for index, one in enumerate(self._merged.candidates):  # parents come first
            if one.parent not in standing or one.depth >= len(committed):
                continue
            stood = one.token == committed[one.depth]
            if stood:
                standing.add(index)
            for name, q in one.q.items():
                outcomes.append((name, q, one.depth, stood))
                if stood:
                    foreseen[name] = one.depth + 1
        self.standing.learn(outcomes, foreseen)

    def _insight(
        self,
        tree: DraftTree,
        kept: Sequence[int],
        drafts: dict[str, Draft],
        lately: dict[str, float],
    ) -> dict[str, Any]:
        """By member: nodes it proposed, how many are in the tree, what stood lately. Where one is
        a circuit, also what it says of its nodes; None for the others'.
        """
        return {
            **self._components(kept, drafts),
            "kind": "union",
            "members": {
                name: {
                    "proposed": len(draft.tree),
                    "drafted": sum(name in origins for origins in tree.origins),
                    "lately": round(lately[name], 3),
                }
                for name, draft in drafts.items()
            },
        }

    def _components(self, kept: Sequence[int], drafts: dict[str, Draft]) -> dict[str, Any]:
        for name, draft in drafts.items():
            found = draft.insight() if callable(draft.insight) else draft.insight
            if (found or {}).get("kind") == "circuit":
                assert found is not None
                nodes = [self._merged.candidates[index].nodes.get(name) for index in kept]
                said = [None if node is None else found["components"][node] for node in nodes]
                return {**found, "components": said}
        return {}


def joined(parts: Sequence[Probes]) -> Probes | None:
    """Several members' probes as one: those of different members do not see each other."""
    if len(parts) <= 1:
        return parts[0] if parts else None
    if any(part.adapter is not None for part in parts):
        raise ValueError("probes with an adapter cannot ride along with a second member's probes")
    total = sum(len(part) for part in parts)
    sees = np.zeros((total, total), dtype=bool)
    start = 0
    for part in parts:
        end = start + len(part)
        sees[start:end, start:end] = part.sees
        start = end
    return Probes(
        owner=tuple(owner for part in parts for owner in part.owner),
        slot=tuple(slot for part in parts for slot in part.slot),
        embeds=torch.cat([part.embeds.to(parts[0].embeds) for part in parts]),
        sees=sees,
    )
