"""The trace of a run: every step's draft tree, verdict and timing, to and from public JSON."""

from __future__ import annotations

import base64
import binascii
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from mtp.errors import TraceError
from mtp.records.versioned import strict_json

VERSION = 1
MAX_BYTES = 64 * 2**20  # a trace of 500 steps is about 2.5 MB; larger files are not ours

Status = Literal["accepted", "rejected", "unreached"]
Mode = Literal["chat", "raw"]
Kind = Literal["sampled", "deterministic"]
Source = Literal["draft", "verifier"]
Verification = Literal["coupled", "rejection"]
StopReason = Literal["end", "length", "context", "stopped", "running"]


@dataclass(frozen=True)
class TokenText:
    """A token of the vocabulary and how it is shown."""

    id: int
    text: str


@dataclass(frozen=True)
class Branch:
    """Where a run that follows a rejected node left the run it came from."""

    step: int
    node: int
    forced: int
    """How many tokens of the prompt's end were taken over from the first run."""


@dataclass(frozen=True)
class DrafterWeights:
    """Trained weights that a run's drafter, or a union's member, drafted with: the name of their
    folder, and a SHA-256 that tells them from others.
    """

    drafter: str
    folder: str
    sha256: str


@dataclass(frozen=True)
class Run:
    """All that is needed to make the same run again; `drafter_weights` says what it needs of
    trained drafters, none where nothing is trained or the run is older than this was recorded.
    """

    model: str
    weights_sha256: str
    drafter: str
    drafter_options: dict[str, Any]
    mode: Mode
    temperature: float
    top_k: int
    top_p: float
    seed: int
    verification: Verification
    device: str
    dtype: str
    prompt: str
    prompt_tokens: tuple[TokenText, ...]
    max_new_tokens: int
    software: dict[str, str]
    branch: Branch | None = None
    drafter_weights: tuple[DrafterWeights, ...] = ()


@dataclass(frozen=True)
class Tree:
    """A step's draft tree, one entry a node; parent −1 is the root."""

    token_ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    parents: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    log_q: tuple[float, ...] = ()
    """Natural log of the drafter's probability given the path."""
    log_p: tuple[float | None, ...] = ()
    """Natural log of the verifier's final probability given the path; None where it is zero."""
    status: tuple[Status, ...] = ()
    origins: tuple[tuple[str, ...], ...] = ()
    kind: tuple[Kind, ...] = ()
    trials: tuple[tuple[float, float] | None, ...] = ()
    """Under rejection, (noise, chance of standing) of each node that was tried."""


@dataclass(frozen=True)
class Committed:
    """A token added to the text: the noise u that decided it, the interval of noise that gives the
    same token, and u's distance to its nearer edge.

    Under rejection, u is that of the accepted trial or of the residual draw. Under greedy decoding
    the margin is the gap between the two largest logits.
    """

    id: int
    text: str
    bytes: str
    source: Source
    u: float
    interval: tuple[float, float]
    margin: float


@dataclass(frozen=True)
class Candidate:
    """One of the verifier's most probable tokens at a visited row."""

    id: int
    text: str
    p: float


@dataclass(frozen=True)
class Proposal:
    """What a branch of noise rows behind d drafts proposed, for the case that just these stand: the
    verifier's own token there, and the tokens behind that one.

    One a branch under `proposed` of a PTP drafter's insight; None for a branch without such rows.
    """

    own: TokenText
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Budget:
    """Rows of the block allowed, and the tokens a call the drafter expected, if it says."""

    rows: int
    expected: float | None = None


@dataclass(frozen=True)
class Seconds:
    """Wall-clock seconds of a step's three parts."""

    draft: float
    verify: float
    commit: float

    @property
    def total(self) -> float:
        """The whole step."""
        return self.draft + self.verify + self.commit


@dataclass(frozen=True)
class Step:
    """One cycle: draft, verify in one forward, commit."""

    index: int
    context_length: int
    root: TokenText
    tree: Tree
    committed: tuple[Committed, ...]
    noise: tuple[float, ...]
    candidates: dict[str, tuple[Candidate, ...]]
    budget: Budget
    rows: int
    forwards: int
    seconds: Seconds
    insight: dict[str, Any] | None = None


@dataclass(frozen=True)
class DepthCount:
    """How drafts at one depth fared, counted once a step."""

    depth: int
    drafted: int
    """Steps whose tree had a node at this depth."""
    reached: int
    """Of these, steps in which such a node's parent stood."""
    stood: int
    """Of these, steps in which a node at this depth stood."""


@dataclass(frozen=True)
class Summary:
    """The run in numbers; each is defined in the README under "What the words and numbers mean"."""

    new_tokens: int
    verifier_calls: int
    tokens_per_call: float
    accepted_per_call: float
    drafted: int
    acceptance_rate: float | None
    accepted_by_depth: tuple[DepthCount, ...]
    tokens_per_second: float | None
    seconds: float
    seconds_prefill: float
    forwards: int
    rows: int
    peak_memory_mb: float


@dataclass(frozen=True)
class Trace:
    """A whole run: what was asked, every step, the text and its numbers."""

    run: Run
    steps: tuple[Step, ...]
    text: str
    stop_reason: StopReason
    summary: Summary
    version: int = field(default=VERSION)

    def to_json(self) -> str:
        """The trace as one line of JSON."""
        return _ADAPTER.dump_json(self).decode()

    @staticmethod
    def from_json(data: str | bytes) -> Trace:
        """Reads a trace. Raises TraceError with a sentence for anything that is not one."""
        if len(data) > MAX_BYTES:
            raise TraceError(
                f"The file has {len(data) / 2**20:.0f} MB; a trace has at most "
                f"{MAX_BYTES // 2**20} MB."
            )
        try:
            plain = strict_json(data)
        except (ValueError, RecursionError) as error:
            raise TraceError(
                "The file is not JSON, so it is not a trace. Open a file saved by Draftscope "
                "or by `python -m mtp generate --trace`."
            ) from error
        if not isinstance(plain, dict) or "version" not in plain or "steps" not in plain:
            raise TraceError("The file is JSON but not a trace: it has no version and steps.")
        if plain["version"] != VERSION:
            raise TraceError(
                f"The trace is of version {str(plain['version'])[:20]}; this Draftscope reads "
                f"version {VERSION}. A newer Draftscope may read it."
            )
        try:
            trace = _ADAPTER.validate_python(plain)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise TraceError(f"The trace is broken at {place[:120]}: {first['msg']}.") from error
        branch = trace.run.branch
        if branch is not None and not 0 <= branch.forced <= len(trace.run.prompt_tokens):
            raise TraceError("The trace is broken: its branch takes over more than there is.")
        for step in trace.steps:
            _check(step)
        return trace


_ROUNDING = 1e-3  # how far a log-probability may pass 0
_ADAPTER = TypeAdapter(Trace)
_STEP_ADAPTER = TypeAdapter(Step)
_PROPOSALS = TypeAdapter(list[Proposal | None])


def step_to_plain(step: Step) -> dict[str, Any]:
    """One step as JSON-ready data, for a run that is still going on."""
    return _STEP_ADAPTER.dump_python(step, mode="json")


def _check(step: Step) -> None:
    """Raises TraceError where the parts of a step contradict each other."""
    tree = step.tree
    size = len(tree.token_ids)
    columns = (
        tree.texts,
        tree.parents,
        tree.depths,
        tree.log_q,
        tree.log_p,
        tree.status,
        tree.origins,
        tree.kind,
        tree.trials,
    )
    where = f"The trace is broken at step {step.index}"
    if any(len(column) != size for column in columns):
        raise TraceError(f"{where}: the tree's columns differ in length.")
    for node, (parent, depth) in enumerate(zip(tree.parents, tree.depths, strict=True)):
        if not -1 <= parent < node or depth != (0 if parent < 0 else tree.depths[parent] + 1):
            raise TraceError(f"{where}: node {node} has no possible parent.")
    if not all(value <= _ROUNDING for value in (*tree.log_q, *tree.log_p) if value is not None):
        raise TraceError(f"{where}: a probability is above 1.")
    if not step.committed:
        raise TraceError(f"{where}: it commits no token.")
    for status, depth in zip(tree.status, tree.depths, strict=True):
        if status != "unreached" and depth >= len(step.committed):
            raise TraceError(f"{where}: a node is judged at a depth that commits no token.")
    if len(step.noise) <= max(tree.depths, default=0):
        raise TraceError(f"{where}: there is less noise than the tree is deep.")
    if not set(step.candidates) <= {str(row) for row in range(-1, size)}:
        raise TraceError(f"{where}: there are candidates for a node that is not there.")
    if not all(step.candidates.values()):
        raise TraceError(f"{where}: a list of candidates is empty.")
    _check_insight(step.insight or {}, size, where)
    for token in step.committed:
        try:
            base64.b64decode(token.bytes, validate=True)
        except (binascii.Error, ValueError) as error:
            raise TraceError(f"{where}: a token's bytes are not base64.") from error


def _check_insight(insight: dict[str, Any], size: int, where: str) -> None:
    """What the player reads of a drafter's words on its `size` nodes."""
    kind = insight.get("kind")
    if kind == "circuit" or "components" in insight:
        found = insight.get("components")
        parts = found if isinstance(found, list) else []
        spoken = [part for part in parts if part is not None or kind == "circuit"]
        whole = all(isinstance(part, list) and len(part) == 3 for part in spoken)
        if len(parts) != size or not whole:
            raise TraceError(f"{where}: a circuit's components are not one for each node.")
    if kind == "ptp" and not isinstance(insight.get("from", ""), int | None):
        raise TraceError(f"{where}: it does not say which branch its drafts come from.")
    if kind == "ptp" and not _triples(insight.get("branches")):
        raise TraceError(f"{where}: its branches are not drafts, rows and a chance each.")
    if kind == "ptp" and not _proposals(insight.get("proposed"), len(insight["branches"])):
        raise TraceError(f"{where}: what its branches proposed is not told of each.")


def _proposals(found: object, branches: int) -> bool:
    """Whether there is a proposal or None for each branch; older traces have none at all."""
    if found is None:
        return True
    try:
        known = _PROPOSALS.validate_python(found)
    except ValidationError:
        return False
    whole = all(one is None or len(one.token_ids) == len(one.texts) for one in known)
    return whole and len(known) == branches


def _triples(found: object) -> bool:
    if not isinstance(found, list):
        return False
    return all(
        isinstance(one, list)
        and len(one) == 3
        and all(isinstance(number, int | float) for number in one)
        for one in found
    )


def text_of(steps: tuple[Step, ...], hidden_ids: frozenset[int] = frozenset()) -> str:
    """The text of all committed tokens; bytes that are not UTF-8 become U+FFFD."""
    return b"".join(
        base64.b64decode(token.bytes)
        for step in steps
        for token in step.committed
        if token.id not in hidden_ids
    ).decode("utf-8", errors="replace")


def summarise(
    steps: tuple[Step, ...],
    seconds_prefill: float,
    prefill_forwards: int,
    prefill_rows: int,
    peak_memory_mb: float,
) -> Summary:
    """The numbers of a run from its steps; `seconds` are those after the prefill."""
    new = sum(len(step.committed) for step in steps)
    calls = len(steps)
    accepted = sum(token.source == "draft" for step in steps for token in step.committed)
    drafted = sum(len(step.tree.token_ids) for step in steps)
    seconds = math.fsum(step.seconds.total for step in steps)
    return Summary(
        new_tokens=new,
        verifier_calls=calls,
        tokens_per_call=new / calls if calls else 0.0,
        accepted_per_call=accepted / calls if calls else 0.0,
        drafted=drafted,
        acceptance_rate=accepted / drafted if drafted else None,
        accepted_by_depth=count_by_depth(steps),
        tokens_per_second=new / seconds if seconds > 0 else None,
        seconds=seconds,
        seconds_prefill=seconds_prefill,
        forwards=prefill_forwards + sum(step.forwards for step in steps),
        rows=prefill_rows + sum(step.rows for step in steps),
        peak_memory_mb=peak_memory_mb,
    )


def count_by_depth(steps: tuple[Step, ...]) -> tuple[DepthCount, ...]:
    """Drafted, reached and stood at each depth, one count a step."""
    deepest = max((max(step.tree.depths) for step in steps if step.tree.depths), default=-1)
    counts = []
    for depth in range(deepest + 1):
        drafted = reached = stood = 0
        for step in steps:
            tree = step.tree
            nodes = [node for node, d in enumerate(tree.depths) if d == depth]
            drafted += bool(nodes)
            reached += any(tree.status[node] != "unreached" for node in nodes)
            stood += any(tree.status[node] == "accepted" for node in nodes)
        counts.append(DepthCount(depth, drafted, reached, stood))
    return tuple(counts)
