"""What noise does to a context's next tokens: predictions from one call, and the verifier's own."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from mtp.errors import TraceError
from mtp.records import versioned
from mtp.records.trace import Mode

VERSION = 2
PLACES = 8  # of a question, if not said
PLAIN = "plain"  # plain sampling, beside the drafters' names
IMPOSSIBLE = 1e-3  # below this, the verifier's probability of a token calls it impossible


@dataclass(frozen=True)
class Question:
    """What to look at: the noise of this many places behind which text, drawn with which seed."""

    prompt: str
    answer: str = ""
    mode: Mode = "chat"
    seed: int = 0
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    places: int = PLACES


@dataclass(frozen=True)
class Foreseen:
    """A drafter's token at one place: how sure it was, and what the verifier thinks of it.

    probability: the drafter's, of that token. chance: its confidence as a calibrated chance to
    stand. verifier: the verifier's probability, given the drafter's tokens before it. picked:
    whether the verifier picks it with the same noise behind the same tokens. told: whether it is
    the verifier's own pick, which the drafter is told.
    """

    id: int
    text: str
    probability: float
    chance: float
    verifier: float
    picked: bool
    told: bool = False

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
    """One setting of the noise: plain sampling's tokens, and each drafter's, from one call of its
    own.
    """

    noise: tuple[float, ...]
    plain: tuple[Picked, ...]
    foreseen: dict[str, tuple[Foreseen, ...]]

    def drafted(self, name: str) -> tuple[Foreseen, ...]:
        """A drafter's tokens but for the one it is told."""
        return tuple(one for one in self.foreseen[name] if not one.told)

    def right(self, name: str) -> int:
        """How many of the tokens drafted are plain sampling's, counted from the first."""
        count = 0
        for one in self.drafted(name):
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
    """Over many noises. right: mean tokens right in a row, from the first that is drafted: one that
    is told does not count. impossible: the share of adjacent pairs whose second token the verifier
    finds impossible behind the first.
    """

    right: float
    impossible: float


@dataclass(frozen=True)
class DrafterFacts:
    """What partial quadratic decoding knows of a drafter: H(b), b = 1, 2, …; how many rows at a
    branch's start the verifier's own token replaces; the SHA-256 of the drafter's weights; the
    temperature it was trained for; the rank of its adapter, 0 where it has no rows in the base; and
    the layers of its pick head, 0 for none.
    """

    gains: tuple[float, ...]
    replaced: int
    weights_sha256: str
    temperature: float
    rank: int
    head_layers: int


@dataclass(frozen=True)
class NoiseRecord:
    """A context looked at: a view, sweeps of its places for each drafter, tallies over `noises`
    draws (that of plain sampling under `plain`). seeded: whether the view's noise is the seed's.
    """

    model: str
    weights_sha256: str
    dtype: str
    device: str
    question: Question
    context: str
    view: NoiseView
    sweeps: dict[str, tuple[Sweep, ...]]
    noises: int
    tallies: dict[str, Tally]
    drafters: dict[str, DrafterFacts]
    seeded: bool = True

    @property
    def whole(self) -> bool:
        """Whether every drafter's sweep of every place is here."""
        places = len(self.view.noise)
        return all(len(self.sweeps[name]) == places for name in self.drafters)

    def sweep(self, name: str, place: int) -> Sweep | None:
        """A drafter's sweep of a place; None where it is not here."""
        return next((one for one in self.sweeps[name] if one.place == place), None)

    def to_json(self) -> str:
        """The record as JSON text; `from_json` reads it back."""
        return versioned.to_json(_ADAPTER, self, VERSION)

    @classmethod
    def from_json(cls, content: str | bytes) -> NoiseRecord:
        """Reads a record. Raises TraceError for what is none."""
        record = versioned.from_json(_ADAPTER, content, VERSION, "record of noise")
        if not _fits(record):
            raise TraceError("The record of noise is broken: its parts do not fit each other.")
        return record


_ADAPTER: TypeAdapter[NoiseRecord] = TypeAdapter(NoiseRecord)


def _fits(record: NoiseRecord) -> bool:
    """Whether a record's parts are of the same places and drafters."""
    view, names = record.view, set(record.drafters)
    places = len(view.noise)
    rows = [view.plain, *view.foreseen.values()]
    same = set(view.foreseen) == set(record.sweeps) == names
    return (
        places >= 2
        and record.question.places == places
        and all(0 <= u < 1 for u in view.noise)
        and all(len(row) == places for row in rows)
        and same
        and set(record.tallies) == {PLAIN, *names}
        and all(_swept(sweeps, places) for sweeps in record.sweeps.values())
    )


def _swept(sweeps: tuple[Sweep, ...], places: int) -> bool:
    """Whether each sweep is of another place, and holds all later ones."""
    return len({one.place for one in sweeps}) == len(sweeps) and all(
        0 <= one.place < places
        and len(one.noise) == len(one.texts) == len(one.probabilities) > 0
        and all(len(line) == places - one.place for line in (*one.texts, *one.probabilities))
        for one in sweeps
    )
