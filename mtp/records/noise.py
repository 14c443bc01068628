"""What noise does to a context's next tokens: predictions from one call, and the verifier's own."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from mtp.records import versioned

VERSION = 1
IMPOSSIBLE = 1e-3  # below this, the verifier's probability of a token calls it impossible


@dataclass(frozen=True)
class Question:
    """What to look at: the noise of this many places behind which text, drawn with which seed."""

    prompt: str
    answer: str = ""
    mode: str = "chat"
    seed: int = 0
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    places: int = 8


@dataclass(frozen=True)
class Foreseen:
    """A drafter's token at one place: how sure it was, and what the verifier thinks of it.

    probability: the drafter's, of that token. chance: its confidence as a calibrated chance to
    stand. verifier: the verifier's probability, given the drafter's tokens before it. picked:
    whether the verifier picks it with the same noise behind the same tokens.
    """

    id: int
    text: str
    probability: float
    chance: float
    verifier: float
    picked: bool

    @property
    def impossible(self) -> bool:
        """Whether the verifier calls the token impossible behind those before it."""
        return self.verifier < IMPOSSIBLE


@dataclass(frozen=True)
class Picked:
    """A token of plain sampling with this noise: its interval, and the most probable others, each
    as (text, low, high) in the order of the vocabulary.
    """

    id: int
    text: str
    u: float
    interval: tuple[float, float]
    strip: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True)
class NoiseView:
    """One setting of the noise: plain sampling's tokens, and each drafter's from one call."""

    noise: tuple[float, ...]
    plain: tuple[Picked, ...]
    foreseen: dict[str, tuple[Foreseen, ...]]

    def right(self, name: str) -> int:
        """How many of a drafter's tokens are plain sampling's, counted from the first."""
        count = 0
        for one in self.foreseen[name]:
            if not one.picked:
                break
            count += 1
        return count


@dataclass(frozen=True)
class Sweep:
    """The noise of one place swept over [0, 1): `noise` (S,), and the tokens at it and every later
    place for each value, `texts` (S, N − place), with the drafter's probability of each.
    """

    place: int
    noise: tuple[float, ...]
    texts: tuple[tuple[str, ...], ...]
    probabilities: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Tally:
    """Over many noises. right: mean tokens right in a row from the first, of N. impossible: the
    share of adjacent pairs whose second token the verifier finds impossible behind the first.
    """

    right: float
    impossible: float


@dataclass(frozen=True)
class DrafterFacts:
    """What partial quadratic decoding knows of a drafter: H(b), b = 1, 2, …; how many rows at a
    branch's start the verifier's own token replaces; the SHA-256 of the drafter's weights; and the
    temperature it was trained for.
    """

    gains: tuple[float, ...]
    replaced: int
    weights_sha256: str
    temperature: float


@dataclass(frozen=True)
class NoiseRecord:
    """A context looked at: its first view, a sweep for each drafter, tallies over `noises` draws
    (that of plain sampling under `plain`).
    """

    model: str
    weights_sha256: str
    dtype: str
    device: str
    question: Question
    context: str
    view: NoiseView
    sweeps: dict[str, Sweep]
    noises: int
    tallies: dict[str, Tally]
    drafters: dict[str, DrafterFacts]

    def to_json(self) -> str:
        """The record as JSON text; `from_json` reads it back."""
        return versioned.to_json(_ADAPTER, self, VERSION)

    @classmethod
    def from_json(cls, content: str | bytes) -> NoiseRecord:
        """Reads a record. Raises TraceError for what is none."""
        return versioned.from_json(_ADAPTER, content, VERSION, "record of noise")


_ADAPTER: TypeAdapter[NoiseRecord] = TypeAdapter(NoiseRecord)
