"""What page Circuit answers: questions and their evidence, links, recorded views, forged input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest
from plotly.utils import PlotlyJSONEncoder

from mtp.circuits.view import beliefs, circuit_of, given, information, top_pairs
from mtp.errors import InputError, TraceError
from mtp.records.circuit import CircuitView
from tests.circuit_views import circuit_view
from viz import circuit_shown
from viz.circuit_asked import Asked, answer, asked_from
from viz.circuit_shown import Shown, look_at, opened_from, view_of
from viz.pages.circuit import SIZES, _look_of, ask_from, fields_of, sizes_from
from viz.runs import Kept

CIRCUITS = ("ff", "cp", "hmm", "btree")


@pytest.mark.parametrize("name", CIRCUITS)
def test_all_that_a_page_is_sent_is_json(name: str) -> None:
    shown = Shown(circuit_view(name))
    sent = json.dumps([view_of(shown), look_at(shown, Asked())], cls=PlotlyJSONEncoder)
    assert "NaN" not in sent
    assert len(sent) < 200_000


def test_a_view_without_a_question_needs_no_circuit() -> None:
    view = circuit_view("btree")
    broken = replace(view, numbers=replace(view.numbers, inputs=view.numbers.inputs[:0]))
    assert look_at(Shown(broken), Asked())["said"]


def test_holding_a_state_answers_as_the_circuit_does() -> None:
    view = circuit_view("hmm")
    found = answer(view, Asked(clamped=(2, 1)))
    circuit = circuit_of("hmm", view.numbers)
    held, log_evidence = given(circuit, clamped=(2, 1))
    assert found.now == beliefs(held, log_evidence, circuit)
    assert found.now.latents[2].marginal[1] == 1
    assert found.now.positions != view.beliefs.positions
    assert found.before == view.beliefs.latents[2].marginal[1]
    said = look_at(Shown(view), Asked(clamped=(2, 1)))["said"]
    assert f"state 2, which has probability {found.before:.3g}" in said


def test_a_typed_window_conditions_what_follows() -> None:
    view = circuit_view("btree")
    found = answer(view, Asked(given="a "))
    assert found.tokens == (0, 1)
    assert [one.top[0].token for one in found.now.positions[:2]] == [0, 1]
    assert [one.top[0].p for one in found.now.positions[:2]] == [1, 1]
    assert found.now.latents != view.beliefs.latents


def test_taken_tokens_come_before_what_is_typed() -> None:
    view = circuit_view("btree")
    assert answer(view, Asked(given="a", taken=(2, 1))).tokens == (2, 1, 0)
    found = look_at(Shown(view), Asked(given="a", taken=(2, 1)))
    assert found["tokens"] == [2, 1, 0]
    assert found["texts"] == ["\u2039e2\u242396\u203a", "\u2423", "a"]
    places = [
        share.token for one in answer(view, Asked(taken=(2,))).now.positions for share in one.top
    ]
    assert look_at(Shown(view), Asked(taken=(2,)))["bars"] == places
    for taken in ((9,), (0,) * 5):
        assert set(look_at(Shown(view), Asked(taken=taken))) == {"error"}


def test_the_map_follows_the_evidence_and_a_pair_is_told() -> None:
    view = circuit_view("hmm")
    held = given(circuit_of("hmm", view.numbers), (1,), (2, 1))[0]
    asked = Asked(taken=(1,), clamped=(2, 1), pair=(1, 3))
    found = answer(view, asked)
    assert found.information == information(held) != view.information
    assert found.pairs == top_pairs(held, 1, 3)
    shown = look_at(Shown(view), asked)
    assert shown["informed"] == circuit_shown.text("circuit.informed.evidence")
    bits = found.information[1][3]
    assert shown["pair"]["said"].startswith(f"+2 and +4 share {bits:.3g} bits")
    assert shown["pair"]["heads"][:2] == ["+2", "+4"]
    assert [row[2] for row in shown["pair"]["rows"]] == [f"{one.p:.3g}" for one in found.pairs]
    assert shown["tables"]["information"]["rows"][1][4] == f"{bits:.3g}"
    plain = look_at(Shown(view), Asked(pair=(1, 3)))
    assert plain["informed"] == circuit_shown.text("circuit.informed.prior")
    assert plain["tables"]["information"]["rows"][1][4] == f"{view.information[1][3]:.3g}"
    assert look_at(Shown(view), Asked())["pair"] is None
    assert set(look_at(Shown(view), Asked(pair=(1, 4)))) == {"error"}


def test_a_chosen_sample_shows_its_posterior_and_leaves_the_marginals() -> None:
    view = circuit_view("cp")
    found = answer(view, Asked(sample=("joint", 1)))
    assert found.now == view.beliefs
    assert found.sample == view.joint[1]
    wanted = beliefs(given(circuit_of("cp", view.numbers), view.joint[1].tokens)[0])
    assert found.latents.latents == wanted.latents
    independent = look_at(Shown(view), Asked(sample=("independent", 0)))
    assert "no tree drew it" in independent["said"]
    lit = look_at(Shown(view), Asked(sample=("joint", 1)))
    assert "The lit tree drew" in lit["said"]


def test_samples_drawn_with_a_held_state_have_it() -> None:
    view = circuit_view("hmm")
    for number in range(1, 8):
        found = answer(view, Asked(clamped=(3, 2), sample=("drawn", number)))
        assert found.sample is not None and found.sample.states[3] == 2
    texts = {
        look_at(Shown(view), Asked(sample=("drawn", number)))["said"] for number in range(1, 8)
    }
    assert len(texts) > 1


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        "x",
        {"given": 3},
        {"clamp": [0]},
        {"clamp": [0, "1"]},
        {"clamp": ["0", 1]},
        {"clamp": [0, True]},
        {"clamp": {"0": 1}},
        {"sample": [0, 0]},
        {"sample": "joint"},
        {"given": "x" * 401},
        {"taken": "1"},
        {"taken": [True]},
        {"taken": ["1"]},
        {"taken": [0] * 1025},
        {"pair": [1]},
        {"pair": ["1", 2]},
        {"pair": [True, 2]},
    ],
)
def test_forged_questions_get_a_sentence(plain: object) -> None:
    with pytest.raises(InputError):
        asked_from(plain)


@pytest.mark.parametrize(
    "asked",
    [
        Asked(clamped=(99, 0)),
        Asked(clamped=(0, 99)),
        Asked(clamped=(-1, 0)),
        Asked(clamped=(0, -1)),
        Asked(sample=("joint", 99)),
        Asked(sample=("joint", -1)),
        Asked(sample=("drawn", 0)),
        Asked(sample=("nobody", 0)),
        Asked(given="zzz"),
    ],
)
def test_questions_that_cannot_be_answered_get_a_sentence(asked: Asked) -> None:
    found = look_at(Shown(circuit_view("hmm")), asked)
    assert set(found) == {"error"} and found["error"].endswith(".")


def test_the_pages_request_is_checked() -> None:
    views: Kept[Shown] = Kept()
    key = views.add(Shown(circuit_view("cp")))
    look = _look_of(views)
    assert "figures" in look([key, {"given": "", "clamp": None, "sample": None}])
    for request in (None, [], [key], ["gone", {}], [key, 3], [{}, {}]):
        assert set(look(request)) == {"error"}


def test_counts_are_of_each_mark_and_medians_are_compared() -> None:
    view = circuit_view("cp")
    found = view_of(Shown(view))
    broken, word, unlikely = found["counts"]["joint"]
    assert (broken, unlikely) == ("broken UTF-8: 0 of 4", "below the 1st percentile: 2 of 4")
    assert word == "unknown word: not known here"
    assert found["counts"]["independent"][2].endswith(": 0 of 4")
    counted = view_of(Shown(replace(view, known_words=9)))["counts"]["joint"]
    assert counted[1] == "unknown word: 2 of 4"
    assert "median log p of \u22125.0 nats" in found["compared"]
    assert "joint samples' median is 5.0 nats below it" in found["compared"]
    above = tuple(replace(one, log_p=one.log_p + 20) for one in view.independent)
    compared = view_of(Shown(replace(view, independent=above)))["compared"]
    assert "independent ones' 15.0 nats above it" in compared
    assert found["samples"]["joint"][0]["kinds"] == ["word", "unlikely"]
    assert found["words"] == circuit_shown.text("circuit.words.none")


def test_a_link_holds_what_makes_the_view_again() -> None:
    view = replace(circuit_view("cp"), prompt="a & b=c", answer="é", seed=5)
    query = dict(parse_qsl(view_of(Shown(view))["link"]))
    assert (query["tab"], query["circuit"], query["window"]) == ("circuit", "cp", "4")
    assert (query["rank"], query["lora"]) == ("6", "0")
    assert (query["context"], query["answer"], query["seed"]) == ("a & b=c", "é", "5")
    assert "prompt" not in query  # the address of page Decode
    recorded = dict(parse_qsl(view_of(Shown(view, "cp-4"))["link"]))
    assert recorded == {"tab": "circuit", "view": "cp-4"}
    assert view_of(Shown(replace(view, prompt="x" * 7000)))["link"] is None


@pytest.mark.parametrize(
    ("query", "ask"),
    [
        ({}, {"given": ""}),
        ({"clamp": "2.3", "given": "ab"}, {"given": "ab", "clamp": [1, 2]}),
        ({"sample": "joint.4"}, {"given": "", "sample": ["joint", 3]}),
        ({"sample": "drawn.4"}, {"given": "", "sample": ["drawn", 4]}),
        ({"taken": "0.17.3", "given": "x"}, {"given": "x", "taken": [0, 17, 3]}),
        ({"pair": "3.4"}, {"given": "", "pair": [2, 3]}),
    ],
)
def test_questions_in_the_address(query: dict[str, str], ask: dict[str, object]) -> None:
    assert ask_from(query) == ask


@pytest.mark.parametrize(
    "wrong",
    [
        *("clamp=x.1", "clamp=2", "clamp=0.1", "sample=nobody.1", "sample=joint.²"),
        *("taken=1.", "taken=a", "taken=1.-2", "pair=3", "pair=4.3", "pair=0.1"),
    ],
)
def test_a_question_that_makes_no_sense_is_named(wrong: str) -> None:
    name, value = wrong.split("=")
    with pytest.raises(InputError, match=re.escape(f"The link says {wrong}, which cannot be used")):
        ask_from({name: value})


@pytest.mark.parametrize(
    ("value", "window"),
    [("longest", None), (None, None), ("", None), (0, None), ("0", None), ("8", 8), (6, 6)],
)
def test_windows(value: object, window: int | None) -> None:
    assert sizes_from({"window": value}) == {"window": window, "rank": 0, "lora": 0}


def test_rank_and_k() -> None:
    assert sizes_from({"rank": "16", "lora": 2}) == {"window": None, "rank": 16, "lora": 2}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", ["-1", "8.5", "many", "²", "99999", "nan"])
def test_sizes_that_are_none_get_a_sentence(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"Option {name} of Circuit is '{value}'; it"):
        sizes_from({name: value})


def test_a_saved_view_opens_as_it_was() -> None:
    for name in CIRCUITS:
        view = replace(circuit_view(name), lora=2, seed=7, mode="raw", answer="and")
        opened = opened_from(view.to_json().encode())
        assert opened.to_json() == view.to_json()
        shown = Shown(opened, opened=True)
        assert view_of(shown)["label"] == "opened from a file"
        assert "K = 2" in view_of(shown)["title"]
        assert look_at(shown, Asked(sample=("joint", 1)))["said"]
        rank = 1 if name == "ff" else 6
        assert fields_of(opened) == [
            *("tiny", "raw", 7, "a <b>prompt</b>", "and", name, 4, rank, 2)
        ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"circuit": "tree"}, "Circuit 'tree' is unknown"),
        ({"circuit": "cp"}, "Its latents are not those of its kind."),
        ({"circuit": "ff"}, "its rank is 1, not 6"),
        ({"version": 2}, "not of version 1"),
        ({"window": 3}, "not a circuit view, or it is broken"),
    ],
)
def test_a_file_that_is_no_circuit_gets_a_sentence(
    change: dict[str, object], sentence: str
) -> None:
    plain = json.loads(circuit_view("hmm").to_json())
    with pytest.raises(TraceError, match=sentence):
        opened_from(json.dumps({**plain, **change}).encode())
    for content in (b"", b"[]", b"\xff", b'{"version": 1}'):
        with pytest.raises(TraceError, match="broken"):
            opened_from(content)


@pytest.mark.parametrize("name", ["../../README", "nosuch", "", "a/b"])
def test_recorded_views_are_found_by_name_only(name: str) -> None:
    with pytest.raises(TraceError):
        circuit_shown.keep_recorded(name, Kept())


def test_recorded_views_are_shown_without_a_model() -> None:
    views: Kept[Shown] = Kept()
    names = circuit_shown.recorded_names()
    assert names[0] == circuit_shown.FIRST
    seen = set()
    for name in names:
        key, shown = circuit_shown.keep_recorded(name, views)
        assert views.get(key) is shown
        view: CircuitView = shown.view
        seen.add(view.circuit)
        lit = look_at(shown, Asked(sample=("joint", 0)))
        assert "The lit tree drew" in lit["said"]
    assert seen == set(CIRCUITS)
