"""What every drafter is given, what it gives, and what it is told afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from mtp.records.trace import Verification
from mtp.sampling import Noise, Sampling
from mtp.tree import DraftTree, Probes


@dataclass(frozen=True)
class Context:
    """What a drafter may look at before a forward.

    `token_ids` is prompt + output; its last token is the root, at position len − 1. `hidden`
    holds, for the layers the drafter asked for, the states (R, D) of the rows that the cache keeps
    since the last draft, in the text's order: at first the prompt's. The last one picked the root:
    it is that of the token before. A prompt of one token has none. `most_depth` is how many tokens
    below the root can still count, and `room` how many positions are left behind the root.
    """

    token_ids: Sequence[int]
    prompt_length: int
    hidden: Mapping[int, Tensor]
    noise: Noise
    sampling: Sampling
    verification: Verification
    most_depth: int
    room: int

    @property
    def root_position(self) -> int:
        """The root's index in the text."""
        return len(self.token_ids) - 1


@dataclass(frozen=True)
class Draft:
    """A proposal: a tree, the probes that ride along, what to show of it, and if empty, why.

    What to show may be a function; it is called when the step is recorded, not while drafting.
    """

    tree: DraftTree = field(default_factory=DraftTree)
    probes: Probes | None = None
    budget_rows: int = 1
    expected: float | None = None
    insight: dict[str, Any] | Callable[[], dict[str, Any]] | None = None
    why_empty: str | None = None


@dataclass(frozen=True)
class ProbeOutput:
    """Logits (R, V) and hidden states by layer (R, D) of the probe rows, in their order."""

    logits: Tensor
    hidden: Mapping[int, Tensor]


@dataclass(frozen=True)
class Outcome:
    """What became of a draft: the nodes that stood and the tokens now in the text.

    `logits` (1 + N, V) are those of the root's and the nodes' rows; `hidden` by layer likewise.
    """

    draft: Draft
    accepted: tuple[int, ...]
    committed: tuple[int, ...]
    logits: Tensor
    hidden: Mapping[int, Tensor]

    @property
    def deepest(self) -> int:
        """The deepest accepted node; −1 where none stood."""
        return self.accepted[-1] if self.accepted else -1


class Drafter(Protocol):
    """A way of drafting. One object serves one run; it never touches the cache."""

    name: str
    hidden_layers: tuple[int, ...]

    def propose(self, context: Context) -> Draft:
        """The draft for the next forward."""
        ...

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        """Learns what became of it."""
        ...
