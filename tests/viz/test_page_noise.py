"""What page Noise answers: rows, strips, sweeps, branches, links, forged input."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import plotly.graph_objects as go
import pytest
from plotly.utils import PlotlyJSONEncoder
from starlette.requests import Request

from mtp.errors import InputError, TraceError
from mtp.models.trouble import FetchStoppedError
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
from viz import noise_shown, noise_tables
from viz.figures import noise_branches, noise_strips, noise_sweep
from viz.noise_asked import MOST_READ, Explorers, Questions, tab_of
from viz.noise_shown import (
    MOST_VIEWS,
    Shown,
    asked_from,
    branches,
    head_of,
    look_at,
    opened_from,
    sweep_at,
)
from viz.pages.noise import _head_of, ask_from, places_from
from viz.runs import Desk, Job, Kept
from viz.texts import table

TAB = "tab"


def foreseen(text: str, picked: bool, verifier: float = 0.5, told: bool = False) -> Foreseen:
    return Foreseen(ord(text[0]), text, 0.8, 0.8, verifier, picked, told)


def record_of() -> NoiseRecord:
    plain = (
        Picked(97, "a", 0.3, (0.2, 0.6), (("<b>", 0.0, 0.2), ("a", 0.2, 0.6), ("z", 0.6, 0.98))),
        Picked(98, " ", 0.9, (0.5, 1.0), ((" ", 0.5, 1.0), ("b", 0.1, 0.5))),
        Picked(99, "c", 0.01, (0.0, 0.04), (("c", 0.0, 0.04),)),
    )
    drafted = {
        "o-ptp": (foreseen("a", True), foreseen(" ", True), foreseen("<i>", False, 1e-5)),
        "c-ptp": (foreseen("a", True, told=True), foreseen("b", False), foreseen("c", True)),
    }
    noise = (0.3, 0.9, 0.01)
    texts = tuple(("a" if u < 24 else "z", " ", "c") for u in range(48))
    sweep = Sweep(0, tuple((u + 0.5) / 48 for u in range(48)), texts, ((0.9, 0.5, 0.2),) * 48)
    return NoiseRecord(
        "tiny", "sha", "float32", "cpu", Question("Hello <b>", places=3), "Hello <b>",
        NoiseView(noise, plain, drafted), {"o-ptp": (sweep,), "c-ptp": (sweep,)}, 40,
        {"plain": Tally(3.0, 0.0), "o-ptp": Tally(2.1, 0.01), "c-ptp": Tally(1.9, 0.02)},
        {
            "o-ptp": DrafterFacts((0.0, 0.9, 1.5), 1, "one", 0.7, 32, 0),
            "c-ptp": DrafterFacts((0.9, 1.5, 1.9), 0, "two", 0.7, 32, 1),
        },
    )  # fmt: skip


def test_all_that_a_page_is_sent_is_json_and_figures_are_plotlys() -> None:
    record = record_of()
    answer = look_at(record, record.view, asked_from({}, record))
    sweep = sweep_at(record, record.sweeps["o-ptp"][0], asked_from({}, record))
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
    assert [cell["state"] for cell in rows["c-ptp"]] == ["verifier", "rejected", "unreached"]
    assert "The verifier's own pick, told to the drafter" in rows["c-ptp"][0]["about"]
    assert [cell["impossible"] for cell in rows["o-ptp"]] == [False, False, True]
    assert rows["plain"][1]["text"] == "\u2423"
    assert record.view.right("o-ptp") == 2 and record.view.right("c-ptp") == 0


def test_what_a_drafter_is_told_is_said_and_does_not_count() -> None:
    record = record_of()
    said = noise_tables.said_of(record.view)
    assert "O-PTP 2 of 3, C-PTP 0 of 2." in said and "Place 1 is the verifier's own pick" in said
    own = replace(record.view, foreseen={"o-ptp": record.view.foreseen["o-ptp"]})
    assert "Place 1" not in noise_tables.said_of(own)
    rows = head_of(Shown(record))["tally"]["rows"]
    assert [row[1] for row in rows] == ["–", "2.10 of 3", "1.90 of 2"]
    about = {name: words for name, _, words in head_of(Shown(record))["names"]}
    assert "told" not in about["o-ptp"] and "a small head" not in about["o-ptp"]
    assert "a small head runs above them a few times" in about["c-ptp"]
    assert "which the drafter is told" in about["c-ptp"]
    for facts in record.drafters.values():
        alone = replace(facts, rank=0, head_layers=1)
        assert "no rows in the model" in noise_tables.definition_of("independent", alone, True)


def test_the_main_pictures_tokens_are_numbers_and_a_table() -> None:
    record = record_of()
    answer = look_at(record, record.view, asked_from({}, record))
    tokens = answer["drafts"]
    assert len(tokens) == len(answer["tables"]["drafts"]["rows"]) == 9
    last = next(one for one in tokens if one["row"] == "o-ptp" and one["place"] == 3)
    assert last == {"place": 3, "row": "o-ptp", "token": "<i>", "noise": 0.01, "drafter": 0.8,
                    "verifier": 1e-5, "state": "rejected", "impossible": True}  # fmt: skip
    told = next(one for one in tokens if one["row"] == "c-ptp")
    assert told["drafter"] is None and told["state"] == "verifier"
    assert answer["tables"]["drafts"]["rows"][5][3:] == [
        *("0.8", "1e-05", "the first wrong one", "●")
    ]


def test_a_sweep_is_labelled_once_a_run() -> None:
    drawn = noise_sweep.figure(record_of().sweeps["o-ptp"][0], 0.3, table())
    words = next(one for one in drawn.data if one.name == "tokens")
    assert list(words.text) == ["a", "z", "\u2423", "c"]
    edges = next(one for one in drawn.data if one.name == "changes")
    assert list(edges.x) == [0.5, 0.5, None]
    assert next(one for one in drawn.data if one.name == "now").x == (0.3, 0.3)
    assert list(drawn.layout.yaxis.ticktext) == ["1", "2", "3"]
    told = noise_sweep.figure(record_of().sweeps["o-ptp"][0], 0.3, table(), told=True)
    assert list(told.layout.yaxis.ticktext) == ["◆ 1", "2", "3"]
    whose = [row[0][2] for row in told.data[0].customdata]
    assert whose == ["told; verifier's probability", *["drafter's probability"] * 2]


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
    bare = replace(record.drafters["o-ptp"], rank=0, head_layers=1)
    alone = replace(record, drafters={**record.drafters, "o-ptp": bare})
    rows, same = branches(alone, record.view, asked_from({"drafter": "o-ptp"}, record))
    assert rows == [0, 0, 0] and same == ending
    shared = [look_at(one, one.view, asked_from({}, one))["shared"] for one in (record, alone)]
    assert shared[0] == "" and "no budget is shared" in shared[1]


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
        ({"budget": 1}, "from 2 to 256"),
        ({"budget": 257}, "from 2 to 256"),
        ({"budget": 2.5}, "from 2 to 256"),
        ({"drafter": "<b>"}, "no drafter <b>"),
    ],
)
def test_forged_questions_get_a_sentence(plain: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        asked_from(plain, record_of())


def answered(questions: Questions, kind: str, request: Any, owner: str = TAB) -> dict[str, Any]:
    return asyncio.run(getattr(questions, kind)(request, owner))  # type: ignore[no-any-return]


def test_the_recorded_noise_is_answered_without_a_model() -> None:
    kept: Kept[Shown] = Kept()
    questions = Questions(Desk(), kept)
    record = record_of()
    key = kept.add(Shown(record))
    assert _head_of(kept)(key)["names"][0][0] == "plain"
    assert "rows" in answered(questions, "look", [key, {}])
    assert "figure" in answered(questions, "sweep", [key, {"place": 0}])
    # The swept noise is what moves: with another of it the sweep is the same.
    moved = {"noise": [0.7, *record.view.noise[1:]], "place": 0}
    now = answered(questions, "sweep", [key, moved])["figure"]["data"][-1]
    assert list(now["x"]) == [0.7, 0.7]
    for request in (None, [], ["x", {}], [key], [[], {}], {"key": key}):
        assert "no longer kept" in answered(questions, "look", request)["error"]
    assert "from 1 to 3" in answered(questions, "look", [key, {"place": 9}])["error"]
    assert questions.desk.loaded() == ""


def test_the_tab_is_named_by_the_request() -> None:
    body = json.dumps({"data": [], "session_hash": "abc"}).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    asked: Any = Request({"type": "http", "method": "POST", "headers": []}, receive)
    assert asyncio.run(tab_of(asked)) == "abc"


def recorded() -> NoiseRecord:
    """The first recorded context that ships."""
    name = noise_shown.recorded_names()[0]
    return NoiseRecord.from_json((noise_shown.FOLDER / f"{name}.json").read_bytes())


def moved(record: NoiseRecord, u: float) -> dict[str, Any]:
    return {"noise": [*record.view.noise[:-1], u]}


def test_every_recorded_context_answers_for_all_places_without_a_model() -> None:
    for name in noise_shown.recorded_names():
        kept: Kept[Shown] = Kept()
        questions = Questions(Desk(), kept)
        key, shown = noise_shown.keep_recorded(name, kept)
        assert kept.get(key) is shown and shown.record.whole
        assert (noise_shown.FOLDER / f"{name}.json").stat().st_size < 400_000
        for drafter in shown.record.drafters:
            for place in range(len(shown.record.view.noise)):
                asked = [key, {"drafter": drafter, "place": place}]
                assert "figure" in answered(questions, "sweep", asked)
        assert "rows" in answered(questions, "look", [key, {}])
        saved = answered(questions, "file", [key, {}])
        assert opened_from(saved["content"].encode()).record == shown.record
        assert questions.desk.loaded() == ""


def test_a_moved_slider_is_answered_and_saved_and_what_it_needs_goes_with_the_model() -> None:
    record = recorded()
    kept: Kept[Shown] = Kept()
    desk = Desk()
    questions = Questions(desk, kept)
    key = kept.add(Shown(record))
    asked = [key, moved(record, 0.25)]
    assert answered(questions, "look", asked)["noise"][-1] == 0.25
    assert questions.job_of(TAB) is None  # it is over
    saved = answered(questions, "file", asked)
    again = opened_from(saved["content"].encode())
    assert again.record.view.noise[-1] == 0.25 and again.record.whole
    assert not again.record.seeded and "noise set by hand" in head_of(again)["title"]
    assert head_of(again)["label"] == "opened from a file"
    assert saved["name"] == "draftscope-noise-byte.json"

    other = kept.add(Shown(replace(record, weights_sha256="another")))
    refused = answered(questions, "look", [other, moved(record, 0.25)])
    assert "recorded with other weights of byte" in refused["error"]
    facts = {name: replace(one, weights_sha256="x") for name, one in record.drafters.items()}
    other = kept.add(Shown(replace(record, drafters=facts)))
    refused = answered(questions, "look", [other, moved(record, 0.25)])
    assert "The drafters of byte are others now" in refused["error"]

    assert desk._loaded is not None
    model = weakref.ref(desk._loaded[1].backbone)
    desk.submit(lambda job: None, TAB).future.result()  # type: ignore[union-attr]
    desk._loaded = None  # as another model's coming does
    gc.collect()
    assert model() is None
    # What has been met is kept without the model.
    assert answered(questions, "look", asked)["noise"][-1] == 0.25
    assert desk._loaded is None


def test_stop_and_leaving_reach_what_a_slider_asked() -> None:
    record = recorded()
    kept: Kept[Shown] = Kept()
    desk = Desk()
    questions = Questions(desk, kept)
    key = kept.add(Shown(record))
    gate = threading.Event()
    desk.submit(lambda job: gate.wait(30), "another")

    async def stopped() -> dict[str, Any]:
        asking = asyncio.create_task(questions.look([key, moved(record, 0.25)], TAB))
        while questions.job_of(TAB) is None:
            await asyncio.sleep(0.01)
        job = questions.job_of(TAB)
        assert job is not None and "1 before you" in desk.describe(job)
        desk.stop_all(TAB)
        return await asking

    answer = asyncio.run(stopped())
    gate.set()
    assert "Stopped before the model answered" in answer["error"]
    assert questions.job_of(TAB) is None and desk.loaded() == ""


def test_a_stop_that_interrupts_a_download_is_no_failure(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    kept: Kept[Shown] = Kept()
    desk = Desk()
    questions = Questions(desk, kept)
    record = recorded()

    def interrupted(model: str, dtype: str | None, job: Job) -> None:
        job.stop()
        raise FetchStoppedError("Stopped.")

    monkeypatch.setattr(desk, "verifier", interrupted)
    answer = asyncio.run(questions.look([kept.add(Shown(record)), moved(record, 0.25)], TAB))
    assert "Stopped before the model answered" in answer["error"]


def test_the_newest_contexts_stay_read() -> None:
    class Model:
        weights_sha256 = "sha"

    explorers, model = Explorers(), Model()
    record = record_of()
    for key in range(MOST_READ + 1):
        explorers.keep(str(key), model, key)  # type: ignore[arg-type]
    job = Job(TAB)
    newest = explorers.of(str(MOST_READ), record, model, job)  # type: ignore[arg-type]
    assert newest == MOST_READ
    other = replace(record, weights_sha256="another")
    with pytest.raises(InputError, match="other weights"):
        explorers.of("0", other, model, job)  # type: ignore[arg-type]


def test_views_are_kept_and_the_oldest_dropped() -> None:
    shown = Shown(record_of())
    views = [replace(shown.record.view, noise=(k / 32, 0.0, 0.0)) for k in range(MOST_VIEWS + 1)]
    for view in views:
        shown.keep(view)
    assert shown.view(views[0].noise) is None and shown.view(views[-1].noise) is views[-1]
    assert shown.view(shown.record.view.noise) is shown.record.view


def test_a_saved_context_opens_and_others_get_a_sentence() -> None:
    record = record_of()
    content = record.to_json()
    assert opened_from(content.encode()).record == record
    other_mode = content.replace('"chat"', '"talk"').encode()
    assert other_mode != content.encode()
    for broken in (b"", b"{}", b"\xff\x00", content[:-5].encode(), b"[" * 9000, other_mode):
        with pytest.raises(TraceError, match="not a record of noise, or it is broken"):
            opened_from(broken)
    strange = content.replace('"o-ptp"', '"<b>"')
    with pytest.raises(TraceError, match="a drafter <b>, which is unknown here"):
        opened_from(strange.encode())


def test_a_context_without_drafters_shows_the_verifiers_picks() -> None:
    record = record_of()
    bare = replace(record, view=replace(record.view, foreseen={}), sweeps={}, drafters={},
                   tallies={"plain": Tally(3.0, 0.0)})  # fmt: skip
    shown = Shown(bare)
    assert "No drafter is trained for tiny" in head_of(shown)["none"]
    answer = look_at(bare, bare.view, asked_from({}, bare))
    assert list(answer["figures"]) == ["strips"] and list(answer["rows"]) == ["plain"]
    kept: Kept[Shown] = Kept()
    questions = Questions(Desk(), kept)
    key = kept.add(shown)
    assert answered(questions, "sweep", [key, {}]) == {}
    saved = answered(questions, "file", [key, {}])
    assert opened_from(saved["content"].encode()).record == bare


def test_a_link_holds_what_makes_the_context_again() -> None:
    query = dict(parse_qsl(head_of(Shown(record_of()))["link"], keep_blank_values=True))
    assert query["places"] == "3" and places_from(query) == 3 and places_from({}) == 8
    assert query["behind"] == "Hello <b>" and query["tab"] == "noise" and query["model"] == "tiny"
    assert head_of(Shown(record_of(), "first"))["link"] == "tab=noise&noises=first"
    asked = ask_from({"u": "0.1,0.2,0.3", "place": "2", "rows": "9", "drafts": "c-ptp"})
    assert asked == {"noise": [0.1, 0.2, 0.3], "place": 1, "budget": 9, "drafter": "c-ptp"}
    for name, value in {"u": "x,y", "place": "-1", "rows": "1e3"}.items():
        with pytest.raises(InputError, match=f"The link says {name}={value}, which cannot be used"):
            ask_from({name: value})
    for value in ("x", "-1", "8.0", "999"):
        with pytest.raises(InputError, match=f"The link says places={value}"):
            places_from({"places": value})
    for value in ("1.5", "nan", ",", "0.1," * 64 + "0.1"):
        with pytest.raises(InputError, match="The link says u="):
            ask_from({"u": value})


def test_a_scaling_study_is_drawn_where_one_ships(tmp_path: Path) -> None:
    points = (Point(100, 1.0, 0.2, 0.1), Point(200, 2.0, 0.9, 0.4))
    sizes = (Trained("64/1/1", 70_000, points[:1]), Trained("128/2/2", 500_000, points))
    path = tmp_path / "scaling.json"
    path.write_text(Scaling("tiny", "sha", 0.7, 8, 40, {}, sizes).to_json())
    study = noise_shown._study(path, "tiny")
    assert study is not None and len(study["table"]["rows"]) == 3
    unread, left, *right = study["figure"]["data"]
    assert list(left["y"]) == [0.2, 0.9] and list(unread["y"]) == [0.1, 0.4]
    assert study["table"]["rows"][-1][-2:] == ["0.90", "0.40"]
    assert [line["name"] for line in right] == [
        "64/1/1",
        "128/2/2",
    ]
    assert noise_shown._study(path, "other") is None
    assert noise_shown._study(tmp_path / "none.json", "tiny") is None


def test_recorded_contexts_are_found_by_name_only() -> None:
    for name in ("../traces/first", "", "nosuch", "a/b"):
        with pytest.raises(TraceError):
            noise_shown.keep_recorded(name, Kept())
