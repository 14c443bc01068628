"""What page Noise answers: rows, strips, sweeps, branches, links, forged input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import plotly.graph_objects as go
import pytest
from plotly.utils import PlotlyJSONEncoder

from mtp.errors import InputError, TraceError
from mtp.records.noise import (
    DrafterFacts,
    Foreseen,
    NoiseRecord,
    NoiseView,
    Picked,
    Question,
    Sweep,
    Tally,
)
from mtp.records.scaling import Point, Scaling, Trained
from viz import noise_shown
from viz.figures import noise_branches, noise_strips, noise_sweep
from viz.noise_shown import Shown, asked_from, branches, head_of, look_at, sweep_at
from viz.pages.noise import _head_of, _look_of, _sweep_of, ask_from
from viz.runs import Desk, Kept
from viz.texts import table


def foreseen(text: str, picked: bool, verifier: float = 0.5) -> Foreseen:
    return Foreseen(ord(text[0]), text, 0.8, 0.8, verifier, picked)


def record_of() -> NoiseRecord:
    plain = (
        Picked(97, "a", 0.3, (0.2, 0.6), (("<b>", 0.0, 0.2), ("a", 0.2, 0.6), ("z", 0.6, 0.98))),
        Picked(98, " ", 0.9, (0.5, 1.0), ((" ", 0.5, 1.0), ("b", 0.1, 0.5))),
        Picked(99, "c", 0.01, (0.0, 0.04), (("c", 0.0, 0.04),)),
    )
    drafted = {
        "o-ptp": (foreseen("a", True), foreseen(" ", True), foreseen("<i>", False, 1e-5)),
        "c-ptp": (foreseen("a", True), foreseen("b", False), foreseen("c", True)),
    }
    noise = (0.3, 0.9, 0.01)
    texts = tuple(("a" if u < 24 else "z", " ", "c") for u in range(48))
    sweep = Sweep(0, tuple((u + 0.5) / 48 for u in range(48)), texts, ((0.9, 0.5, 0.2),) * 48)
    return NoiseRecord(
        "tiny", "sha", "float32", "cpu", Question("Hello <b>", places=3), "Hello <b>",
        NoiseView(noise, plain, drafted), {"o-ptp": sweep, "c-ptp": sweep}, 40,
        {"plain": Tally(3.0, 0.0), "o-ptp": Tally(2.1, 0.01), "c-ptp": Tally(1.9, 0.02)},
        {
            "o-ptp": DrafterFacts((0.0, 0.9, 1.5), 1, "one", 0.7),
            "c-ptp": DrafterFacts((0.9, 1.5, 1.9), 0, "two", 0.7),
        },
    )  # fmt: skip


def test_all_that_a_page_is_sent_is_json_and_figures_are_plotlys() -> None:
    record = record_of()
    answer = look_at(record, record.view, asked_from({}, record))
    sweep = sweep_at(record.sweeps["o-ptp"], 0.3)
    sent = json.dumps([head_of(Shown(record)), answer, sweep], cls=PlotlyJSONEncoder)
    assert "NaN" not in sent
    for figure in answer["figures"].values():
        go.Figure(figure)  # validates every name and value


def test_strips_hold_the_intervals_and_mark_what_u_picks() -> None:
    record = record_of()
    _, bars = noise_strips.figure(record.view, table())["data"]
    assert len(bars["x"]) == 6
    for at, (place, low, height) in enumerate(zip(bars["x"], bars["base"], bars["y"], strict=True)):
        picked = record.view.plain[place]
        mine = bars["marker"]["color"][at] == noise_strips.CHOSEN
        assert mine == (low <= picked.u < low + height)
    assert bars["text"][0] == "&lt;b&gt;" and bars["text"][-1] == ""  # no room for 0.04


def test_rows_say_where_a_draft_ends_and_what_is_impossible() -> None:
    record = record_of()
    rows = look_at(record, record.view, asked_from({}, record))["rows"]
    assert [cell["state"] for cell in rows["o-ptp"]] == ["accepted", "accepted", "rejected"]
    assert [cell["state"] for cell in rows["c-ptp"]] == ["accepted", "rejected", "unreached"]
    assert [cell["impossible"] for cell in rows["o-ptp"]] == [False, False, True]
    assert rows["plain"][1]["text"] == "\u2423"
    assert record.view.right("o-ptp") == 2 and record.view.right("c-ptp") == 1


def test_a_sweep_is_labelled_once_a_run() -> None:
    drawn = noise_sweep.figure(record_of().sweeps["o-ptp"], 0.3, table())
    words = next(one for one in drawn.data if one.name == "tokens")
    assert list(words.text) == ["a", "z", "\u2423", "c"]
    edges = next(one for one in drawn.data if one.name == "changes")
    assert list(edges.x) == [0.5, 0.5, None]
    assert next(one for one in drawn.data if one.name == "now").x == (0.3, 0.3)


def test_branches_share_the_budget_by_chance() -> None:
    record = record_of()
    asked = asked_from({"budget": 4, "drafter": "o-ptp"}, record)
    rows, ending = branches(record, record.view, asked)
    assert ending == pytest.approx([0.2, 0.16, 0.64])
    assert sum(rows) <= 4 and rows[2] == 3
    asked = asked_from({"budget": 40, "drafter": "c-ptp"}, record)
    most, _ = branches(record, record.view, asked)  # all of its rows are of use, one fewer
    assert len(most) == 3 and max(most) == 2
    figure = noise_branches.figure(rows, ending, table())
    assert figure["data"][0]["y"] == rows and figure["data"][1]["y"] == ending


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        (None, "not one this page asks"),
        ([1], "not one this page asks"),
        ({"noise": [0.1]}, "The noise is 3 numbers"),
        ({"noise": [0.1, 0.2, 1.0]}, "The noise is 3 numbers"),
        ({"noise": [0.1, 0.2, float("nan")]}, "The noise is 3 numbers"),
        ({"noise": [0.1, 0.2, True]}, "The noise is 3 numbers"),
        ({"noise": "abc"}, "The noise is 3 numbers"),
        ({"place": 3}, "from 1 to 3"),
        ({"place": "0"}, "from 1 to 3"),
        ({"budget": 0}, "from 1 to 256"),
        ({"budget": 2.5}, "from 1 to 256"),
        ({"drafter": "<b>"}, "no drafter <b>"),
    ],
)
def test_forged_questions_get_a_sentence(plain: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        asked_from(plain, record_of())


def test_the_recorded_noise_is_answered_without_a_model() -> None:
    kept: Kept[Shown] = Kept()
    key = kept.add(Shown(record_of()))
    desk = Desk()
    assert _head_of(kept)(key)["names"][0][0] == "plain"
    assert "rows" in _look_of(desk, kept)([key, {}])
    assert "figure" in _sweep_of(desk, kept)([key, {"place": 0}])
    assert desk.loaded() == ""
    for request in (None, [], ["x", {}], [key]):
        assert "no longer kept" in _look_of(desk, kept)(request)["error"]
    assert "from 1 to 3" in _look_of(desk, kept)([key, {"place": 9}])["error"]


def test_a_context_without_drafters_shows_the_verifiers_picks() -> None:
    record = record_of()
    bare = replace(record, view=replace(record.view, foreseen={}), sweeps={}, drafters={})
    shown = Shown(bare)
    assert "No drafter is trained for tiny" in head_of(shown)["none"]
    answer = look_at(bare, bare.view, asked_from({}, bare))
    assert list(answer["figures"]) == ["strips"] and list(answer["rows"]) == ["plain"]
    kept: Kept[Shown] = Kept()
    assert _sweep_of(Desk(), kept)([kept.add(shown), {}]) == {}


def test_a_link_holds_what_makes_the_context_again() -> None:
    query = dict(parse_qsl(head_of(Shown(record_of()))["link"], keep_blank_values=True))
    assert query["behind"] == "Hello <b>" and query["tab"] == "noise" and query["model"] == "tiny"
    assert head_of(Shown(record_of(), "first"))["link"] == "tab=noise&noises=first"
    asked = ask_from({"u": "0.1,0.2,0.3", "place": "2", "rows": "9", "drafts": "c-ptp"})
    assert asked == {"noise": [0.1, 0.2, 0.3], "place": 1, "budget": 9, "drafter": "c-ptp"}
    for name, value in {"u": "x,y", "place": "-1", "rows": "1e3"}.items():
        with pytest.raises(InputError, match=f"The link says {name}={value}, which cannot be used"):
            ask_from({name: value})
    for value in ("1.5", "nan", ",", "0.1," * 64 + "0.1"):
        with pytest.raises(InputError, match="The link says u="):
            ask_from({"u": value})


def test_a_scaling_study_is_drawn_where_one_ships(tmp_path: Path) -> None:
    points = (Point(100, 1.0, 1.2), Point(200, 2.0, 1.9))
    sizes = (Trained("64/1/1", 70_000, points[:1]), Trained("128/2/2", 500_000, points))
    path = tmp_path / "scaling.json"
    path.write_text(Scaling("tiny", "sha", 0.7, 8, 40, {}, sizes).to_json())
    study = noise_shown._study(path, "tiny")
    assert study is not None and len(study["table"]["rows"]) == 3
    left, *right = study["figure"]["data"]
    assert list(left["y"]) == [1.2, 1.9] and [line["name"] for line in right] == [
        "64/1/1",
        "128/2/2",
    ]
    assert noise_shown._study(path, "other") is None
    assert noise_shown._study(tmp_path / "none.json", "tiny") is None


def test_recorded_contexts_are_found_by_name_only() -> None:
    for name in ("../traces/first", "", "nosuch", "a/b"):
        with pytest.raises(TraceError):
            noise_shown.keep_recorded(name, Kept())
