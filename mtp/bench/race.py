"""Running a race: every racer alone, in turn, repeated; nothing else decodes meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from mtp.bench.outside import OUTSIDE, OutsideRun, generate_outside
from mtp.drafters.options import settle_options
from mtp.errors import InputError
from mtp.models.verifier import Verifier
from mtp.models.vocabulary import Vocabulary
from mtp.records.race import Lap, Race, Racer, Tick
from mtp.records.settings import Settings
from mtp.records.trace import Source
from mtp.run import start

FEWEST, MOST = 2, 4  # racers
MOST_REPEATS = 9
WARM_UP = 6  # tokens of an unmeasured lap, from which the time is estimated

Report = Callable[[str, int, int, float | None], None]
"""Told the racer, which lap of how many is next, and the estimated seconds left."""


def check_racers(decoders: Sequence[str], repeats: int) -> None:
    """Raises InputError for too few, too many, unknown or repeated racers."""
    if not FEWEST <= len(decoders) <= MOST:
        raise InputError(f"{len(decoders)} decoders are chosen; a race has {FEWEST} to {MOST}.")
    if len(set(decoders)) != len(decoders):
        raise InputError("A decoder is chosen twice; each can race once.")
    if not 1 <= repeats <= MOST_REPEATS:
        raise InputError(f"Laps is {repeats}; it can be from 1 to {MOST_REPEATS}.")
    for decoder in decoders:
        if decoder not in OUTSIDE:
            settle_options(decoder, {})


def run_race(
    verifier: Verifier,
    decoders: Sequence[str],
    settings: Settings,
    repeats: int,
    report: Report,
    stop: Callable[[], bool],
) -> Race | None:
    """The race's record; None if it was stopped before every racer had a lap.

    Verification is coupled, so that all but `transformers`' own write one text. The order of the
    racers rotates from lap to lap.
    """
    check_racers(decoders, repeats)
    settings = dataclasses.replace(settings, verification="coupled")
    total = len(decoders) * repeats
    expected: dict[str, float] = {}
    warm = dataclasses.replace(settings, max_new_tokens=min(WARM_UP, settings.max_new_tokens))
    for decoder in decoders:
        report(decoder, 0, total, None)
        lap = _lap(verifier, decoder, warm, stop)
        if stop():
            return None
        if lap.tokens:
            expected[decoder] = lap.seconds / lap.tokens * settings.max_new_tokens
    laps: dict[str, list[Lap]] = {decoder: [] for decoder in decoders}
    for repeat in range(repeats):
        turn = repeat % len(decoders)
        for decoder in [*decoders[turn:], *decoders[:turn]]:
            left = sum(expected.get(d, 0.0) * (repeats - len(laps[d])) for d in decoders)
            report(decoder, sum(map(len, laps.values())) + 1, total, left)
            lap = _lap(verifier, decoder, settings, stop)
            if stop():
                return _race(verifier, settings, repeats, laps)
            laps[decoder].append(lap)
            expected[decoder] = lap.seconds
    return _race(verifier, settings, repeats, laps)


def _race(
    verifier: Verifier, settings: Settings, repeats: int, laps: dict[str, list[Lap]]
) -> Race | None:
    if not all(laps.values()):
        return None
    return Race(
        prompt=settings.prompt,
        model=verifier.name,
        dtype=verifier.dtype,
        device=verifier.device,
        temperature=settings.temperature,
        seed=settings.seed,
        max_new_tokens=settings.max_new_tokens,
        repeats=repeats,
        racers=tuple(Racer(decoder, tuple(done)) for decoder, done in laps.items()),
        mode=settings.mode,
        top_k=settings.top_k,
        top_p=settings.top_p,
    )


def _lap(verifier: Verifier, decoder: str, settings: Settings, stop: Callable[[], bool]) -> Lap:
    if decoder in OUTSIDE:
        out = generate_outside(decoder, verifier, settings, stop=stop)
        return lap_of_outside(out, verifier.vocabulary, plain=decoder == "hf")
    own = dataclasses.replace(settings, drafter=decoder, drafter_options={})
    decoding, run = start(verifier, own, stop, brief=True)
    ticks: list[Tick] = []
    seconds = 0.0
    for step in decoding:
        seconds += step.seconds.total
        ticks.append(Tick(seconds, tuple((token.text, token.source) for token in step.committed)))
    trace = decoding.trace(run)
    return Lap(
        ticks=tuple(ticks),
        tokens=trace.summary.new_tokens,
        calls=trace.summary.verifier_calls,
        rows=sum(step.rows for step in trace.steps),
        seconds=trace.summary.seconds,
        draft=sum(step.seconds.draft for step in trace.steps),
        verify=sum(step.seconds.verify for step in trace.steps),
        ids=tuple(decoding.output_ids),
    )


def lap_of_outside(out: OutsideRun, vocabulary: Vocabulary, plain: bool) -> Lap:
    """A lap from `generate`. Its clock starts with its first tokens, which end its prefill: they
    are shown at 0 s and not counted in its speed.
    """
    ticks: list[Tick] = []
    before = 0
    source: Source = "verifier"
    for seconds, count in out.ticks:
        new = out.ids[before:count]
        ticks.append(Tick(seconds, tuple((vocabulary.text_of(token), source) for token in new)))
        before = count
    return Lap(
        ticks=tuple(ticks),
        tokens=out.rest,
        calls=out.rest if plain else None,
        rows=out.rest if plain else None,
        seconds=out.seconds_rest,
        draft=None,
        verify=None,
        ids=out.ids,
    )
