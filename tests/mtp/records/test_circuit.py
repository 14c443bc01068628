"""Circuit views: to JSON and back unchanged; text and bytes; whatever is no view is refused."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from mtp.errors import InputError, TraceError
from mtp.records.circuit import CircuitView, readable
from tests.circuit_views import circuit_view

RECORDED = Path(__file__).parents[3] / "assets" / "circuits"


@pytest.mark.parametrize("circuit", ["ff", "cp", "hmm", "btree"])
def test_to_json_and_back(circuit: str) -> None:
    view = circuit_view(circuit)
    back = CircuitView.from_json(view.to_json())
    for field in fields(view):
        if field.name != "numbers":
            assert getattr(back, field.name) == getattr(view, field.name), field.name
    for name in ("inputs", "root", "transitions"):
        np.testing.assert_array_equal(getattr(back.numbers, name), getattr(view.numbers, name))


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"version": 2}', "{", b"\xff"])
def test_what_is_no_view_gets_a_sentence(content: str | bytes) -> None:
    with pytest.raises(TraceError):
        CircuitView.from_json(content)


def test_a_view_with_a_part_broken_gets_a_sentence() -> None:
    plain = json.loads(circuit_view("cp").to_json())
    for name, wrong in (("beliefs", 3), ("numbers", {}), ("pieces", ["zz"]), ("joint", [1])):
        with pytest.raises(TraceError, match="broken"):
            CircuitView.from_json(json.dumps({**plain, name: wrong}))


def test_parts_that_do_not_fit_each_other_get_a_sentence() -> None:
    plain = json.loads(circuit_view("hmm").to_json())
    latents, positions = plain["beliefs"]["latents"], plain["beliefs"]["positions"]
    sample = plain["joint"][0]
    many = [{**plain["joint"][0], "tokens": [0, 1, 2, 99]}]
    broken: dict[str, object] = {
        "window": 5,
        "rank": 3,
        "circuit": 3,
        "seed": "many",
        "pieces": plain["pieces"][:-1],
        "information": plain["information"][:-1],
        "joint": [],
        "independent": many,
        "verifier_log_p": [],
        "ends": [99],
        "beliefs": {**plain["beliefs"], "latents": latents[:-1]},
    }
    wrong_parent = [{**latents[0], "parent": 2}, *latents[1:]]
    wrong_owner = [{**positions[0], "owner": 9}, *positions[1:]]
    no_top = [{**positions[0], "top": []}, *positions[1:]]
    cases = [*broken.items()]
    cases += [("beliefs", {**plain["beliefs"], "latents": wrong_parent})]
    cases += [
        ("beliefs", {**plain["beliefs"], "positions": made}) for made in (wrong_owner, no_top)
    ]
    cases += [
        ("joint", [{**sample, "states": [0, 0, 0, 6]}]),
        ("joint", [{**sample, "tokens": [0]}]),
    ]
    numbers = dict(plain["numbers"])
    numbers["root"] = {"shape": [6], "float32": "AADAfwAAwH8AAMB/AADAfwAAwH8AAMB/"}  # not numbers
    for name, wrong in [*cases, ("numbers", numbers)]:
        with pytest.raises(TraceError, match="broken"):
            CircuitView.from_json(json.dumps({**plain, name: wrong}))
    assert CircuitView.from_json(json.dumps(plain)).window == 4


def test_k_travels_and_a_record_without_it_has_none() -> None:
    view = replace(circuit_view("cp"), lora=2)
    assert CircuitView.from_json(view.to_json()).lora == 2
    old = json.loads(view.to_json())
    del old["lora"]
    assert CircuitView.from_json(json.dumps(old)).lora == 0


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"abc", "abc"),
        ("█é".encode(), "█é"),
        (b"\xe2\x96", "‹e2 96›"),
        (b"a\xe2\x96b\xff", "a‹e2 96›b‹ff›"),
        (b"", ""),
    ],
)
def test_bytes_are_shown_where_they_are_no_text(raw: bytes, text: str) -> None:
    assert readable(raw) == text


def test_a_text_is_read_as_the_longest_tokens() -> None:
    view = replace(circuit_view("cp"), pieces=(b"a", b"ab", b"b", b"", b"\xc3"), window=3)
    assert view.read("abb") == (1, 2)
    assert view.read("") == ()
    assert view.read("aaaaaa") == (0, 0, 0)  # no more than a window
    with pytest.raises(InputError, match="'x'"):
        view.read("abx")
    with pytest.raises(InputError):
        view.read("\ud800")


def test_tokens_that_were_taken_stay_what_they_are() -> None:
    view = replace(circuit_view("cp"), pieces=(b"a", b"ab", b"b", b"", b"\n"), window=3)
    assert view.read("b", (0,)) == (0, 2)  # not "ab"
    assert view.read("", (0, 4, 3)) == (0, 4, 3)
    assert view.read("aaa", (4, 4)) == (4, 4, 0)
    for behind in ((5,), (-1,), (0, 0, 0, 0)):
        with pytest.raises(InputError, match="at most 3 tokens"):
            view.read("", behind)


def test_a_window_counts_up_to_its_end() -> None:
    view = replace(circuit_view("cp"), pieces=(b"a", b"<end>", b"b"), ends=(1,))
    assert view.cut((0, 1, 2, 1)) == (0, 1)
    assert view.shown((0, 1, 2)) == "a<end>"
    assert view.cut((0, 2, 0)) == (0, 2, 0)


def test_the_recorded_views_open() -> None:
    paths = list(RECORDED.glob("*.json"))
    assert paths
    for path in paths:
        view = CircuitView.from_json(path.read_bytes())
        before = "" if view.model == "byte" else f"{view.model}-"
        assert path.stem == f"{before}{view.circuit}-{view.window}"
        assert len(view.joint) == len(view.independent) == 20
