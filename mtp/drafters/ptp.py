"""Parallel token prediction with partial quadratic decoding (PTP, 2512.21323).

A step's forward verifies a chain of drafts and, behind each of them, runs branches of noise rows
that draft the step after it, for the case that the text ends just there. The noise is the run's
own, so that under `coupled` a good drafter foresees what plain sampling will pick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as fn
from torch.nn.utils.rnn import pad_sequence

from mtp.drafters.base import Context, Draft, Outcome, ProbeOutput
from mtp.models.backbone import Backbone
from mtp.ptp.allocate import allocate, chances_of_ending
from mtp.ptp.head import Behind, behind
from mtp.ptp.weights import PtpWeights
from mtp.records.trace import DrafterWeights
from mtp.sampling import cumulative, final_probabilities, picks_from
from mtp.tree import Probes, chain

Branching = Literal["partial", "full", "single"]


@dataclass(frozen=True)
class Guess:
    """A foreseen token: the drafter's log-probability, its confidence as a calibrated chance to
    stand, and for C-PTP the distribution it was picked from.
    """

    token: int
    log_q: float
    chance: float
    q: Tensor | None = None


@dataclass(frozen=True)
class _Below:
    """A branch of R noise rows: whose positions' noise they read, what they say (R, V), and their
    final states (R, D). Without rows in the base, places alone.
    """

    places: list[int]
    logits: Tensor | None = None
    states: Tensor | None = None


class ParallelTokens:
    """Drafts what the branch behind the last accepted draft foresaw.

    most: M, tokens a call at most. budget: B, noise rows a call. branching: partial shares B by
    confidence, full gives every branch M rows, single has one branch behind all drafts. text_of:
    how a token is shown in the record. trained: what the weights are called in it.
    """

    def __init__(
        self,
        weights: PtpWeights,
        backbone: Backbone,
        most: int = 8,
        budget: int = 24,
        branching: Branching = "partial",
        text_of: Callable[[int], str] = str,
        trained: DrafterWeights | None = None,
    ) -> None:
        self.weights = weights
        self.backbone = backbone
        self.hidden_layers: tuple[int, ...] = (-1,) if weights.head is not None else ()
        self.name: str = weights.config.variant
        self.most = most
        self.budget = budget
        self.branching: Branching = branching
        self.text_of = text_of
        self.trained = trained
        self.replaced = weights.config.replaced
        self._started = False
        self._came_from: int | None = None
        self._below: _Below | None = None
        """What the last step's branch said, until the next draft is made of it."""
        self._states: Tensor | None = None
        """Final states (W + 1, D) of the last rows of the text, for the head."""
        self._positions: list[int] = []
        """Of the last step's noise rows: whose position's noise each reads."""
        self._seen: tuple[Outcome, ProbeOutput] | None = None
        """What the last forward brought, for the record."""
        self._noise: dict[int, float] = {}
        """Of the positions asked for so far: branches and steps share most of them."""

    @property
    def rows(self) -> int:
        """The most rows of a block: root, drafts, noise."""
        noise = self.most * self.most if self.branching == "full" else self.budget
        if self.weights.adapter is None:
            noise = 0
        return self.most + noise

    def propose(self, context: Context) -> Draft:
        """The chain of guesses, and noise rows behind each place where it may end."""
        self._remember(context)
        if context.most_depth < 1:
            return Draft(budget_rows=self.rows, why_empty="One token is left to write.")
        guesses = self._foresee(context)[: min(self.most - 1, context.most_depth)]
        tokens = [guess.token for guess in guesses]
        q = [guess.q for guess in guesses if guess.q is not None]
        tree = chain(tokens, self.name, [g.log_q for g in guesses], q if q else None)
        sizes, ending = self._share(guesses, context)
        empty = "No noise rows lay behind the place where the step before ended."
        if self.weights.adapter is None:
            empty = "Drafts start from a verified state; the first forward brings it."
        elif not self._started:
            empty = "The first forward only places noise rows; what they foresee is drafted next."
        self._started = True
        return Draft(
            tree=tree,
            probes=self._probes(sizes, context),
            budget_rows=self.rows,
            expected=1.0 + sum(p * d for d, p in enumerate(ending)),
            insight=partial(self._insight, sizes, ending, self._came_from, _kept(context)),
            why_empty=None if tokens else empty,
        )

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        """Keeps the branch behind the deepest accepted draft; the others are dropped."""
        self._below = self._came_from = self._seen = None
        if probes is None or outcome.draft.probes is None:
            return
        self._seen = outcome, probes
        owners = outcome.draft.probes.owner
        if owners.count(outcome.deepest) <= self.replaced:
            return
        start = owners.index(outcome.deepest)
        self._came_from = len(outcome.accepted)
        self._below = self._branch(probes, start, start + owners.count(outcome.deepest))

    def _branch(self, probes: ProbeOutput, start: int, end: int) -> _Below:
        """The branch of these noise rows."""
        states = probes.hidden[-1][start:end] if self.weights.head is not None else None
        return _Below(self._positions[start:end], probes.logits[start:end], states)

    def _remember(self, context: Context) -> None:
        """Takes up the states of the text's newest rows."""
        if self.weights.head is None or -1 not in context.hidden:
            return
        newest = context.hidden[-1]
        known = newest if self._states is None else torch.cat([self._states, newest])
        self._states = known[-(self.weights.config.head_context + 1) :]

    def _foresee(self, context: Context) -> list[Guess]:
        """What is drafted behind the root: what the branch says, or the head above it."""
        root = context.root_position  # the verifier's own token, which a replaced row is for
        below = self._below
        if self.weights.adapter is None:
            count = min(self.most - 1, context.most_depth) + self.replaced
            below = _Below([root + slot for slot in range(count)])
        if below is None:
            return []
        logits = below.logits
        if self.weights.head is not None:
            if self._states is None:  # a prompt of one token has no state yet
                return []
            logits = self._above(below, context)
        assert logits is not None
        first = self.replaced
        return self._guesses(logits[first:], below.places[first:], context)

    def _above(self, below: _Below, context: Context) -> Tensor:
        """Logits (R, V) of a branch's rows above the head, which knows the token written last."""
        states = self._states
        assert states is not None
        # The last state is the row's that picked the root, whose token is the last one.
        count, tokens = len(states), context.token_ids
        before = self.weights.config.head_context + 1 - count  # rows before the text's start
        following = [-1] * before + [*tokens[-count:-1]]
        ids = torch.tensor([*following, tokens[-1]], device=states.device)
        if before:
            states = fn.pad(states, (0, 0, before, 0))
        text = Behind(states[None], ids[None, :-1])
        rows = None if below.states is None else below.states[None]
        return self._foreseen(rows, text, ids[-1:], [below.places], context)[0]

    def _foreseen(
        self,
        states: Tensor | None,
        text: Behind,
        picked: Tensor,
        places: Sequence[Iterable[int]],
        context: Context,
    ) -> Tensor:
        """Logits (B, L, V) above the head of rows with final states (B, L, D) that read the noise
        of these places, behind a text whose next token the verifier picked (B,).
        """
        noise = [[self._u(place, context) for place in branch] for branch in places]
        u = torch.tensor(noise, dtype=torch.float64, device=picked.device)
        with torch.inference_mode():
            return self.weights.foresee(self.backbone, states, text, picked, u, context.sampling)

    def _u(self, position: int, context: Context) -> float:
        """The noise of a position."""
        if position not in self._noise:
            self._noise[position] = context.noise.u(position, "pick")
        return self._noise[position]

    def _guesses(self, logits: Tensor, places: list[int], context: Context) -> list[Guess]:
        """What rows foresee: logits (R, V), and the positions whose noise they read."""
        config = self.weights.config
        own = [self._u(place + 1 - self.replaced, context) for place in places]
        u = torch.tensor(own, dtype=torch.float64, device=logits.device)
        found = config.drafts(logits, u, context.sampling)
        log_q = found.likely.double().log().tolist()
        q = [None] * len(own) if found.q is None else found.q
        told = zip(found.tokens.tolist(), log_q, found.sure.tolist(), q, strict=True)
        return [Guess(token, log_p, config.chance(sure), row) for token, log_p, sure, row in told]

    def _share(self, guesses: list[Guess], context: Context) -> tuple[list[int], list[float]]:
        """Rows of the branches behind 0, 1, … all drafts, and the chance that each is needed."""
        ending = chances_of_ending([guess.chance for guess in guesses])
        if self.weights.adapter is None:
            return [0] * len(ending), ending
        # Behind d drafts and the verifier's own token, so many can still count; rows see their
        # place's noise, and one of them may be needed only to be replaced.
        longest = [
            max(
                0,
                min(
                    min(self.most - 1, context.most_depth - d - 1) + self.replaced,
                    context.room - d,
                ),
            )
            for d in range(len(ending))
        ]
        longest = [size if size > self.replaced else 0 for size in longest]
        if self.branching == "full":
            return longest, ending
        if self.branching == "single":
            return [0] * len(guesses) + [min(longest[-1], self.budget)], ending
        return allocate(ending, self.budget, longest, self.weights.config.expected()), ending

    def _probes(self, sizes: list[int], context: Context) -> Probes | None:
        """Noise rows: row j behind d drafts reads the noise of the j-th token after them."""
        branch = np.repeat(np.arange(len(sizes)), sizes)
        slot = [j for size in sizes for j in range(size)]
        first = len(context.token_ids)  # the position behind the root
        positions = [first + int(d) + j for d, j in zip(branch, slot, strict=True)]
        self._positions = positions
        if not positions:
            return None
        noise = [self._u(position, context) for position in positions]
        u = torch.tensor(noise, dtype=torch.float64, device=self.weights.noise.table.device)
        with torch.inference_mode():
            embeds = self.weights.noise(u)
        order = np.arange(len(positions))
        sees = (branch[:, None] == branch[None, :]) & (order[None, :] <= order[:, None])
        owner = tuple(int(d) - 1 for d in branch)
        return Probes(owner, tuple(slot), embeds, sees, self.weights.adapter)

    def _insight(
        self, sizes: list[int], ending: list[float], came_from: int | None, context: Context
    ) -> dict[str, Any]:
        """Branches as [drafts before it, rows, chance of being needed], which branch of the step
        before foresaw these drafts, and once the forward is over, what each branch proposed.
        """
        found: dict[str, Any] = {
            "kind": "ptp",
            "variant": self.name,
            "branches": [
                [d, size, round(chance, 4)]
                for d, (size, chance) in enumerate(zip(sizes, ending, strict=True))
            ],
            "from": came_from,
        }
        if self._seen is not None:
            with torch.inference_mode():
                found["proposed"] = self._proposed(sizes, context)
        return found

    def _proposed(self, sizes: list[int], context: Context) -> list[dict[str, Any] | None]:
        """Of each branch whose rows propose something, as in `trace.Proposal`: the verifier's own
        token behind its drafts, and the tokens that it proposes behind that one.
        """
        assert self._seen is not None
        outcome, probes = self._seen
        ends = list(accumulate(sizes))
        branches = {
            d: self._branch(probes, end - size, end)
            for d, (size, end) in enumerate(zip(sizes, ends, strict=True))
            if size > self.replaced
        }
        if not branches:
            return [None] * len(sizes)
        picked = self._own(list(branches), outcome, context)
        if self.weights.head is not None:
            logits = list(self._all_above(branches, picked, outcome, context))
        else:
            logits = [probes.logits[ends[d] - sizes[d] : ends[d]] for d in branches]
        found: list[dict[str, Any] | None] = [None] * len(sizes)
        for (d, below), own, rows in zip(branches.items(), picked.tolist(), logits, strict=True):
            places = below.places[self.replaced :]
            guesses = self._guesses(rows[self.replaced : sizes[d]], places, context)
            tokens = [guess.token for guess in guesses]
            found[d] = {
                "own": {"id": own, "text": self.text_of(own)},
                "token_ids": tokens,
                "texts": [self.text_of(token) for token in tokens],
            }
        return found

    def _own(self, drafts: list[int], outcome: Outcome, context: Context) -> Tensor:
        """What the verifier picks behind the first d drafts, for each d: (B,)."""
        final = final_probabilities(outcome.logits[drafts], context.sampling)
        noise = [self._u(len(context.token_ids) + d, context) for d in drafts]
        u = torch.tensor(noise, dtype=torch.float64, device=final.device)
        picked = picks_from(u, cumulative(final))
        stood = len(outcome.accepted)
        if stood in drafts and stood < len(outcome.committed):  # by rejection it draws otherwise
            picked[drafts.index(stood)] = outcome.committed[stood]
        return picked

    def _all_above(
        self, branches: dict[int, _Below], picked: Tensor, outcome: Outcome, context: Context
    ) -> Tensor:
        """`_above` for the branches behind d drafts, as if the text went on there: (B, L, V)."""
        states, tokens = outcome.hidden[-1], context.token_ids
        count = 0 if self._states is None else len(self._states)
        if self._states is not None:
            states = torch.cat([self._states, states])
        line = [*tokens[len(tokens) - count - 1 :], *outcome.draft.tree.token_ids]
        ids = torch.tensor([line], device=states.device)
        roots = torch.tensor([[count + d for d in branches]], device=states.device)
        text = behind(states[None], ids, roots, self.weights.config.head_context)
        parts = [below.states for below in branches.values() if below.states is not None]
        rows = pad_sequence(parts, batch_first=True)
        starts = [below.places[0] for below in branches.values()]
        places = [range(start, start + rows.shape[1]) for start in starts]
        return self._foreseen(rows, text, picked, places, context)


def _kept(context: Context) -> Context:
    """The context with the text as it is now."""
    return replace(context, token_ids=tuple(context.token_ids))
