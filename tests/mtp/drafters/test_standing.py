"""What stood lately: drafters are at first taken at their word, then at what became of it."""

from __future__ import annotations

import pytest

from mtp.drafters.standing import Standing, band


def test_bands_halve() -> None:
    assert [band(q) for q in (1.0, 0.51, 0.5, 0.26, 0.25, 0.01, 1e-9, 0.0)] == [
        0, 0, 1, 1, 2, 6, 7, 7,
    ]  # fmt: skip


def test_at_first_a_drafter_is_taken_at_its_word() -> None:
    standing = Standing(["a"])
    for q in (0.9, 0.3, 0.01):
        assert standing.chance("a", q, 0) == pytest.approx(q)
    assert standing.chance("a", 1.0, 0) < 1


def test_chances_go_to_what_stands() -> None:
    standing = Standing(["good", "bad"])
    for _ in range(200):
        standing.learn([("good", 0.3, 0, True), ("bad", 0.9, 0, False)], {"good": 1})
    assert standing.chance("good", 0.3, 0) > 0.8
    assert standing.chance("bad", 0.9, 0) < 0.3
    assert standing.chance("bad", 0.9, 1) == pytest.approx(0.9)  # deeper is counted apart
    assert standing.lately["good"] == pytest.approx(1) and standing.lately["bad"] == 0


def test_what_stood_lately_counts_more() -> None:
    standing = Standing(["a"])
    for stood in [True] * 100 + [False] * 40:
        standing.learn([("a", 0.6, 0, stood)], {"a": int(stood)})
    assert standing.lately["a"] < 0.35
    assert standing.chance("a", 0.6, 0) < 0.45
