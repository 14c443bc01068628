"""A scaling study as a record: drafters of several sizes, what a call brings, as training goes."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from mtp.records import versioned

VERSION = 1


@dataclass(frozen=True)
class Point:
    """A moment of training: noise rows seen, minutes, tokens per call on held-out completions."""

    rows: int
    minutes: float
    tokens_per_call: float


@dataclass(frozen=True)
class Trained:
    """A drafter: hidden/layers/heads, its parameters, its curve."""

    label: str
    parameters: int
    curve: tuple[Point, ...]

    @property
    def tokens_per_call(self) -> float:
        """At the end of its training."""
        return self.curve[-1].tokens_per_call


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
