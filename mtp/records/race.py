"""A race: decoders on one prompt, each measured alone and in turn, to be replayed together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from mtp.errors import TraceError
from mtp.records import versioned
from mtp.records.trace import Source

VERSION = 1


@dataclass(frozen=True)
class Tick:
    """A moment of a lap: seconds after the prefill, and the text's pieces that came with it."""

    seconds: float
    pieces: tuple[tuple[str, Source], ...]


@dataclass(frozen=True)
class Lap:
    """One racer's run, alone on the machine. Seconds are after the prefill."""

    ticks: tuple[Tick, ...]
    tokens: int
    calls: int | None
    """Verifier forwards; None where `generate` does not tell."""
    rows: int | None
    seconds: float
    draft: float | None
    verify: float | None
    ids: tuple[int, ...]

    @property
    def speed(self) -> float:
        """Tokens a second after the prefill."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Racer:
    """A decoder with its laps in the order they were measured."""

    decoder: str
    laps: tuple[Lap, ...]

    @property
    def typical(self) -> Lap:
        """The lap of median speed, the faster of two middles: it is replayed."""
        ordered = sorted(self.laps, key=lambda lap: lap.speed)
        return ordered[len(ordered) // 2]


@dataclass(frozen=True)
class Race:
    """Who raced, on what, and how."""

    prompt: str
    model: str
    dtype: str
    device: str
    temperature: float
    seed: int
    max_new_tokens: int
    repeats: int
    racers: tuple[Racer, ...]
    mode: str = "chat"
    top_k: int = 0
    top_p: float = 1.0

    def to_json(self) -> str:
        """The race as JSON text; `from_json` reads it back."""
        return versioned.to_json(_ADAPTER, self, VERSION)

    @classmethod
    def from_json(cls, content: str | bytes) -> Race:
        """Reads a race. Raises TraceError for what is none."""
        race = versioned.from_json(_ADAPTER, content, VERSION, "saved race")
        names = [racer.decoder for racer in race.racers]
        if not names or len(set(names)) < len(names):
            raise TraceError("The race is broken: it has no racers, or one of them twice.")
        for racer in race.racers:
            if not racer.laps or not all(lap.ticks for lap in racer.laps):
                raise TraceError(f"The race is broken: {racer.decoder[:40]} has an empty lap.")
            if any(tick.seconds < 0 for lap in racer.laps for tick in lap.ticks):
                raise TraceError(f"The race is broken: {racer.decoder[:40]} has negative times.")
        return race


_ADAPTER: TypeAdapter[Race] = TypeAdapter(Race)


@dataclass(frozen=True)
class Standing:
    """What a race says of one racer; ratios are lap by lap against plain decoding."""

    decoder: str
    place: int
    speed: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    tokens_per_call: float | None
    call_cost: float | None
    """Seconds of a call over seconds of a plain one."""
    draft_share: float | None
    """Share of the time that drafting took."""
    same_text: bool | None
    """Whether its tokens are plain decoding's; None where there is nothing to compare with."""


def standings(race: Race) -> list[Standing]:
    """One line a racer, fastest first."""
    plain = next((racer for racer in race.racers if racer.decoder == "ar"), None)
    lines = sorted(race.racers, key=lambda racer: -racer.typical.speed)
    return [_standing(racer, place, plain) for place, racer in enumerate(lines, 1)]


def _standing(racer: Racer, place: int, plain: Racer | None) -> Standing:
    lap = racer.typical
    ratios = _ratios(racer.laps, plain.laps if plain else ())
    per_call = lap.tokens / lap.calls if lap.calls else None
    cost = None
    if plain is not None and lap.calls and plain.typical.calls:
        own, base = lap.seconds / lap.calls, plain.typical.seconds / plain.typical.calls
        cost = own / base if base else None
    return Standing(
        decoder=racer.decoder,
        place=place,
        speed=lap.speed,
        ratio=statistics.median(ratios) if ratios else None,
        ratio_low=min(ratios, default=None),
        ratio_high=max(ratios, default=None),
        tokens_per_call=per_call,
        call_cost=cost,
        draft_share=lap.draft / lap.seconds if lap.draft is not None and lap.seconds else None,
        same_text=lap.ids == plain.typical.ids if plain is not None else None,
    )


def _ratios(laps: Sequence[Lap], plain: Sequence[Lap]) -> list[float]:
    return [own.speed / base.speed for own, base in zip(laps, plain, strict=False) if base.speed]
