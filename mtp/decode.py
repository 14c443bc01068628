"""The loop: draft, verify in one forward, commit; a step is yielded as it happens."""

from __future__ import annotations

import base64
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from mtp.drafters.base import Context, Draft, Drafter, Outcome, ProbeOutput
from mtp.errors import InputError
from mtp.models.backbone import Backbone, Block, Rows
from mtp.models.cache import PathCache
from mtp.models.memory import forget_peak_memory, peak_memory_mb
from mtp.models.vocabulary import Vocabulary
from mtp.records import trace as records
from mtp.sampling import Noise, Sampling, final_probabilities
from mtp.tree import ROOT
from mtp.verify import Decision, Verdict, Verification, verify

CANDIDATES = 5  # the verifier's most probable tokens kept for each visited row
MAX_NEW_TOKENS = 4096


def check_length(new_tokens: int) -> None:
    """Raises InputError for a number of new tokens that is not allowed."""
    if not 1 <= new_tokens <= MAX_NEW_TOKENS:
        raise InputError(f"New tokens is {new_tokens}; it can be from 1 to {MAX_NEW_TOKENS}.")


@dataclass(frozen=True)
class Request:
    """What to decode and how. Raises InputError outside what is allowed."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    verification: Verification = "coupled"
    max_new_tokens: int = 64
    stop_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise InputError("The prompt is empty. Write at least one word.")
        check_length(self.max_new_tokens)


class Decoding:
    """One run. Iterate over it for its steps; it can be stopped between them.

    `token_ids` is prompt + output so far, `steps` the records so far, `stop_reason` why it ended.
    brief: records without what takes time and only pictures need, for measuring: insights, the
    verifier's probabilities of nodes, candidates.
    """

    def __init__(
        self,
        backbone: Backbone,
        vocabulary: Vocabulary,
        drafter: Drafter,
        request: Request,
        stop: Callable[[], bool] = lambda: False,
        brief: bool = False,
    ) -> None:
        limit = backbone.context_limit
        if limit is not None and len(request.prompt_ids) >= limit:
            raise InputError(
                f"The prompt has {len(request.prompt_ids):,} tokens; this model reads at most "
                f"{limit - 1:,}. Shorten the prompt."
            )
        self.backbone = backbone
        self.vocabulary = vocabulary
        self.drafter = drafter
        self.request = request
        self.stop = stop
        self.brief = brief
        self.token_ids = list(request.prompt_ids)
        self.steps: list[records.Step] = []
        self.stop_reason: records.StopReason = "running"
        self.seconds_prefill = 0.0
        self.prefill_forwards = 0
        self.prefill_rows = 0
        self.seconds_forward = 0.0  # of the steps, inside the model
        self._noise = Noise(request.seed)
        self._cache = PathCache()

    @property
    def output_ids(self) -> list[int]:
        """The tokens written so far."""
        return self.token_ids[len(self.request.prompt_ids) :]

    def __iter__(self) -> Iterator[records.Step]:
        if self._cache.length:
            raise RuntimeError("a decoding runs once; make another to run again")
        hidden = self._prefill()
        while self.stop_reason == "running":
            if self.stop():
                self.stop_reason = "stopped"
                return
            step, hidden = self._step(hidden)
            self.steps.append(step)
            yield step

    def _prefill(self) -> dict[int, Tensor]:
        """Runs all of the prompt but its last token; returns the rows' hidden states."""
        forget_peak_memory(self.backbone.device)
        begin = time.perf_counter()
        forwards, rows = self.backbone.forwards, self.backbone.rows
        hidden = self.backbone.prefill(
            self.token_ids[:-1], self._cache, self.drafter.hidden_layers, self.stop
        )
        self.seconds_prefill = time.perf_counter() - begin
        self.prefill_forwards = self.backbone.forwards - forwards
        self.prefill_rows = self.backbone.rows - rows
        return dict(hidden)

    def _step(self, hidden: dict[int, Tensor]) -> tuple[records.Step, dict[int, Tensor]]:
        begin = time.perf_counter()
        forwards, rows_before = self.backbone.forwards, self.backbone.rows
        position = len(self.token_ids)
        context = self._context(hidden)
        draft = self.drafter.propose(context)
        drafted = time.perf_counter()

        inside = self.backbone.seconds
        block = Block(self.token_ids[-1], draft.tree, draft.probes, self.drafter.hidden_layers)
        rows = self.backbone.forward(block, self._cache)
        self.seconds_forward += self.backbone.seconds - inside
        final = _FinalRows(rows.logits, self.request.sampling)
        verdict = verify(self.request.verification, draft.tree, final, self._noise, position)
        verified = time.perf_counter()

        decisions = self._until_end(verdict.decisions)
        root = self.token_ids[-1]
        self.token_ids += [decision.token for decision in decisions]
        kept = [0, *(node + 1 for node in verdict.accepted)]
        self._cache.keep(kept)
        self._tell(draft, verdict, decisions, rows)
        self._settle(decisions)
        step = self._record(draft, verdict, decisions, final, root, position)
        done = time.perf_counter()
        step = replace(
            step,
            rows=self.backbone.rows - rows_before,
            forwards=self.backbone.forwards - forwards,
            seconds=records.Seconds(drafted - begin, verified - drafted, done - verified),
            insight=self._insight(draft),  # only to be shown, and off the clock
        )
        return step, {layer: states[kept] for layer, states in rows.hidden.items()}

    def _context(self, hidden: dict[int, Tensor]) -> Context:
        left = self.request.max_new_tokens - len(self.output_ids)
        limit = self.backbone.context_limit
        room = limit - len(self.token_ids) if limit is not None else sys.maxsize
        return Context(
            token_ids=self.token_ids,
            prompt_length=len(self.request.prompt_ids),
            hidden=hidden,
            noise=self._noise,
            sampling=self.request.sampling,
            verification=self.request.verification,
            most_depth=max(0, min(left - 1, room)),
            room=room,
        )

    def _until_end(self, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
        """The decisions that count: up to a stop token and the token limit."""
        left = self.request.max_new_tokens - len(self.output_ids)
        kept: list[Decision] = []
        for decision in decisions[:left]:
            kept.append(decision)
            if decision.token in self.request.stop_ids:
                break
        return tuple(kept)

    def _settle(self, decisions: Sequence[Decision]) -> None:
        """Sets the stop reason once the text has come to an end."""
        limit = self.backbone.context_limit
        if decisions[-1].token in self.request.stop_ids:
            self.stop_reason = "end"
        elif len(self.output_ids) >= self.request.max_new_tokens:
            self.stop_reason = "length"
        elif limit is not None and len(self.token_ids) > limit:
            self.stop_reason = "context"

    def _tell(
        self, draft: Draft, verdict: Verdict, decisions: Sequence[Decision], rows: Rows
    ) -> None:
        tokens = 1 + len(draft.tree)
        probes = None
        if draft.probes is not None:
            probes = ProbeOutput(
                rows.logits[tokens:], {layer: h[tokens:] for layer, h in rows.hidden.items()}
            )
        self.drafter.observe(
            Outcome(
                draft=draft,
                accepted=verdict.accepted,
                committed=tuple(decision.token for decision in decisions),
                logits=rows.logits[:tokens],
                hidden={layer: h[:tokens] for layer, h in rows.hidden.items()},
            ),
            probes,
        )

    def _record(
        self,
        draft: Draft,
        verdict: Verdict,
        decisions: Sequence[Decision],
        final: _FinalRows,
        root: int,
        position: int,
    ) -> records.Step:
        tree = draft.tree
        vocabulary = self.vocabulary
        # A node past the end of the text did not count, whatever the verifier thought of it.
        standing = {n for n in verdict.accepted if tree.depths[n] < len(decisions)}
        visited = [ROOT, *(node for node in verdict.accepted if node in standing)]
        if len(visited) > len(decisions):
            visited = visited[: len(decisions)]
        status = _statuses(tree.parents, standing, set(visited))
        spots = range(max(tree.depths, default=-1) + 2)  # drafted ones, and the verifier's behind
        return records.Step(
            index=len(self.steps),
            context_length=position,
            root=vocabulary.token_text(root),
            tree=records.Tree(
                token_ids=tree.token_ids,
                texts=tuple(vocabulary.text_of(token) for token in tree.token_ids),
                parents=tree.parents,
                depths=tree.depths,
                log_q=tuple(_short(value) for value in tree.log_q),
                log_p=(None,) * len(tree)
                if self.brief
                else final.log_p(tree.parents, tree.token_ids),
                status=status,
                origins=tree.origins,
                kind=tree.kind,
                trials=tuple(verdict.trials.get(node) for node in range(len(tree))),
            ),
            committed=tuple(self._committed(decision, final) for decision in decisions),
            noise=tuple(self._noise.u(position + depth, "pick") for depth in spots),
            candidates={
                str(row): tuple(
                    records.Candidate(token, vocabulary.text_of(token), _short(p))
                    for token, p in final.most_probable(row, CANDIDATES)
                )
                for row in ([] if self.brief else visited)
            },
            budget=records.Budget(draft.budget_rows, draft.expected),
            rows=0,
            forwards=0,
            seconds=records.Seconds(0.0, 0.0, 0.0),
        )

    def _insight(self, draft: Draft) -> dict[str, Any] | None:
        """What the drafter says of its proposal, and of a draft that is empty, why."""
        found = None
        if not self.brief:
            found = draft.insight() if callable(draft.insight) else draft.insight
        if draft.why_empty is not None and not len(draft.tree):
            found = {"kind": "empty", "why": draft.why_empty, **(found or {})}
        return found

    def _committed(self, decision: Decision, final: _FinalRows) -> records.Committed:
        low, high = decision.interval
        margin = min(decision.u - low, high - decision.u)
        if self.request.sampling.greedy:
            margin = final.greedy_margin(decision.row)
        return records.Committed(
            id=decision.token,
            text=self.vocabulary.text_of(decision.token),
            bytes=base64.b64encode(self.vocabulary.bytes_of(decision.token)).decode(),
            source=decision.source,
            u=decision.u,
            interval=decision.interval,
            margin=margin,
        )

    def trace(self, run: records.Run) -> records.Trace:
        """The run so far as a trace."""
        steps = tuple(self.steps)
        hidden = self.vocabulary.special_ids | self.request.stop_ids
        return records.Trace(
            run=run,
            steps=steps,
            text=records.text_of(steps, hidden),
            stop_reason=self.stop_reason,
            summary=records.summarise(
                steps,
                self.seconds_prefill,
                self.prefill_forwards,
                self.prefill_rows,
                peak_memory_mb(self.backbone.device),
            ),
        )


class _FinalRows:
    """The verifier's final distributions of a block's rows, each computed when first asked for."""

    def __init__(self, logits: Tensor, sampling: Sampling) -> None:
        self._logits = logits  # (T, V)
        self._sampling = sampling
        self._known: dict[int, Tensor] = {}

    def __call__(self, row: int) -> Tensor:
        """The distribution (V,) at a node; −1 is the root."""
        if row not in self._known:
            self._known[row] = final_probabilities(self._logits[row + 1], self._sampling)
        return self._known[row]

    def log_p(self, parents: Sequence[int], token_ids: Sequence[int]) -> tuple[float | None, ...]:
        """Log-probability of each node's token at its parent; None where it is zero."""
        values = []
        for parent, token in zip(parents, token_ids, strict=True):
            p = float(self(parent)[token])
            values.append(_short(math.log(p)) if p > 0 else None)
        return tuple(values)

    def most_probable(self, row: int, count: int) -> list[tuple[int, float]]:
        """Up to `count` tokens with their probabilities, zero ones left out; those at temperature 1
        when decoding is greedy, whose own distribution has a single token.
        """
        p = self._logits[row + 1].double().softmax(-1) if self._sampling.greedy else self(row)
        p, tokens = p.topk(min(count, p.shape[-1]))
        pairs = zip(tokens.tolist(), p.tolist(), strict=True)
        return [(token, value) for token, value in pairs if value > 0]

    def greedy_margin(self, row: int) -> float:
        """The gap between the row's two largest logits."""
        first, second = self._logits[row + 1].float().topk(2).values.tolist()
        return first - second


def _statuses(
    parents: Sequence[int], standing: set[int], visited: set[int]
) -> tuple[records.Status, ...]:
    return tuple(
        "accepted" if node in standing else "rejected" if parent in visited else "unreached"
        for node, parent in enumerate(parents)
    )


def _short(value: float) -> float:
    """Six significant digits: enough to show, small in a file."""
    return float(np.format_float_positional(value, 6, fractional=False)) if value else 0.0


@cache
def software() -> dict[str, str]:
    """Versions that a run depends on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
