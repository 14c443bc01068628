"""What page Race is sent: places, sentences, and which racer wrote another text."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest
from plotly.utils import PlotlyJSONEncoder

from mtp.errors import TraceError
from mtp.records.race import Lap, Race, Racer, Tick
from viz import shell
from viz.pages.race import RECORDED
from viz.race_shown import link_of, viewer_race


def lap(ids: tuple[int, ...], seconds: float) -> Lap:
    ticks = tuple(
        Tick(seconds * (k + 1) / len(ids), ((chr(i), "verifier"),)) for k, i in enumerate(ids)
    )
    return Lap(ticks, len(ids), len(ids), len(ids), seconds, 0.0, seconds, ids)


def race_of(*racers: tuple[str, tuple[int, ...], float]) -> Race:
    made = tuple(Racer(name, (lap(ids, seconds),)) for name, ids, seconds in racers)
    return Race("Hello", "tiny", "float32", "cpu", 0.7, 0, 8, 1, made)


def test_a_recorded_race_reads_back() -> None:
    content = RECORDED.read_bytes()
    race = Race.from_json(content)
    assert Race.from_json(race.to_json()) == race
    assert len({lap.ids for racer in race.racers for lap in racer.laps}) == 1  # one text
    plain = json.loads(content)
    lap = plain["racers"][0]["laps"][0]
    other_racers = [[], [plain["racers"][0]] * 2, [{"decoder": "ar", "laps": []}]]
    other_racers.append([{"decoder": "ar", "laps": [{**lap, "ticks": []}]}])
    broken = [json.dumps({**plain, "racers": racers}) for racers in other_racers]
    broken += [json.dumps({**plain, "prompt": "\ud800"}), json.dumps({**plain, "seed": math.nan})]
    broken += ["", "{}", "[" * 9000, json.dumps({**plain, "version": 9})]
    for words in broken:
        with pytest.raises(TraceError):
            Race.from_json(words)


def test_a_racer_with_another_text_says_how_long_it_is() -> None:
    shown = viewer_race(
        race_of(("ar", (65, 66, 67), 1.0), ("hf", (65, 70), 1.0), ("pld", (65, 66, 67), 0.5))
    )
    json.dumps(shown, cls=PlotlyJSONEncoder)
    words = {racer["decoder"]: racer["own_text"] for racer in shown["racers"]}
    assert words["ar"] is None and words["pld"] is None
    assert "2 tokens, not 3" in words["hf"]
    assert [racer["place"] for racer in shown["racers"]] == [2, 3, 1]


def test_without_plain_decoding_no_text_is_called_another() -> None:
    shown = viewer_race(race_of(("hf", (65, 70), 1.0), ("pld", (65, 66, 67), 0.5)))
    assert all(racer["own_text"] is None for racer in shown["racers"])


def test_a_link_holds_what_measures_the_race_again() -> None:
    race = Race.from_json(RECORDED.read_bytes())
    query = dict(parse_qsl(link_of(race) or ""))
    values = shell.from_query(query)
    assert shell.unusable(query) is None
    assert query["racers"].split(",") == [racer.decoder for racer in race.racers]
    assert (query["text"], int(query["laps"])) == (race.prompt, race.repeats)
    assert values["temperature"] == race.temperature and values["model"] == race.model
    assert values["max_new_tokens"] == race.max_new_tokens and values["dtype"] == race.dtype
    assert link_of(replace(race, prompt="x" * 7000)) is None
