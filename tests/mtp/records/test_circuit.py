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
