"""A scaling study as a record: drafters of several sizes, what a call brings, as training goes."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from mtp.records import versioned

VERSION = 1


@dataclass(frozen=True)
class Point:
    """A moment of training: noise rows seen, minutes, drafts accepted per call on held-out
    completions; and `unread`, the same where the rows are given noise of another draw, which is
    what a drafter blind to its noise brings.
    """

    rows: int
    minutes: float
    accepted: float
    unread: float


@dataclass(frozen=True)
class Trained:
    """A drafter: hidden/layers/heads, its parameters, its curve."""

    label: str
    parameters: int
    curve: tuple[Point, ...]

    @property
    def last(self) -> Point:
        """The end of its training."""
        return self.curve[-1]


@dataclass(frozen=True)
class Scaling:
    """Drafters trained from scratch on the samples of `model`, the same budget for each.

    length: the most tokens a call may foresee. prompts: held-out completions measured.
    """

    model: str
    weights_sha256: str
    temperature: float
    length: int
    prompts: int
    software: dict[str, str]
    sizes: tuple[Trained, ...]

    def to_json(self) -> str:
        """The record as JSON text; `from_json` reads it back."""
        return versioned.to_json(_ADAPTER, self, VERSION)

    @classmethod
    def from_json(cls, content: str | bytes) -> Scaling:
        """Reads a record. Raises TraceError for what is none."""
        return versioned.from_json(_ADAPTER, content, VERSION, "scaling study")


_ADAPTER: TypeAdapter[Scaling] = TypeAdapter(Scaling)
