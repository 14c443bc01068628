"""The other figures hold the numbers they are given."""

from __future__ import annotations

import pytest

from mtp.records.race import Lap, Race, Racer, Tick, standings
from mtp.records.trace import DepthCount
from viz.figures import by_depth, race, timeline
from viz.race_shown import sentence, viewer_race
from viz.texts import table


def lap(speed: float, tokens: int = 10, calls: int | None = 10, ids: int = 1) -> Lap:
    seconds = tokens / speed
    ticks = tuple(
        Tick(seconds * (n + 1) / tokens, (("t", "draft" if n % 2 else "verifier"),))
        for n in range(tokens)
    )
    parts = (None, None) if calls is None else (0.1 * seconds, 0.8 * seconds)
    draft, verify = parts
    return Lap(ticks, tokens, calls, calls, seconds, draft, verify, (ids,) * tokens)


@pytest.fixture
def measured() -> Race:
    racers = (
        Racer("ar", (lap(10.0), lap(12.0), lap(11.0))),
        Racer("pld", (lap(20.0, calls=5), lap(18.0, calls=5), lap(22.0, calls=5))),
        Racer("hf", (lap(9.0, calls=None, ids=2), lap(8.0, calls=None, ids=2))),
    )
    return Race("p", "m", "float32", "cpu", 0.7, 0, 10, 3, racers)


def test_depth_shows_both_shares() -> None:
    counts = [DepthCount(0, 8, 8, 4), DepthCount(1, 6, 3, 2), DepthCount(2, 2, 0, 0)]
    drawn = by_depth.figure(counts, table())
    assert list(drawn.data[0].x) == [1, 2, 3]
    assert list(drawn.data[0].y) == [0.5, 2 / 6, 0.0]
    assert list(drawn.data[1].y) == [0.5, 2 / 3, None]


def test_timeline_stacks_what_was_accepted_under_the_verifiers_own() -> None:
    drawn = timeline.template(table())
    assert drawn.layout.barmode == "stack"
    assert [trace.name for trace in drawn.data] == [
        table()["timeline.accepted"],
        table()["timeline.verifier"],
    ]


def test_ratios_are_lap_by_lap_against_plain_decoding(measured: Race) -> None:
    lines = {line.decoder: line for line in standings(measured)}
    assert lines["pld"].ratio == pytest.approx(2.0)
    assert lines["pld"].ratio_low == pytest.approx(1.5)
    assert lines["pld"].ratio_high == pytest.approx(2.0)
    assert lines["pld"].tokens_per_call == 2.0
    assert lines["pld"].call_cost == pytest.approx((0.5 / 5) / (10 / 11 / 10))
    assert lines["ar"].ratio == 1.0
    assert lines["pld"].same_text is True and lines["hf"].same_text is False
    drawn = race.speeds(measured, table())
    ticks = {trace.y[0]: list(trace.x) for trace in drawn.data if trace.type == "scatter"}
    assert ticks["pld"] == pytest.approx([2.0, 1.5, 2.0])


def test_a_replay_has_the_measured_times(measured: Race) -> None:
    shown = viewer_race(measured)
    for racer, drawn in zip(measured.racers, shown["racers"], strict=True):
        assert [tick["seconds"] for tick in drawn["ticks"]] == [
            tick.seconds for tick in racer.typical.ticks
        ]
    places = {racer["decoder"]: racer["place"] for racer in shown["racers"]}
    assert places == {"pld": 1, "ar": 2, "hf": 3}


def test_a_race_says_who_was_slower_and_why(measured: Race) -> None:
    said = {line.decoder: sentence(line, measured) for line in standings(measured)}
    assert "2.00 times as fast" in said["pld"] and "brought 2.00 tokens" in said["pld"]
    assert "slower than plain decoding" in said["hf"] and "own random numbers" in said["hf"]


def test_times_of_a_token_add_up(measured: Race) -> None:
    drawn = race.times(measured, table())
    for place, racer in enumerate(reversed(measured.racers)):
        total = sum(trace.x[place] for trace in drawn.data)
        assert total == pytest.approx(1000 * racer.typical.seconds / racer.typical.tokens)
