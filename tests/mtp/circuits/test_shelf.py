"""Which of the trained heads a request names."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtp.circuits.heads import HeadConfig
from mtp.circuits.shelf import Shelved, choose, label_of
from mtp.errors import InputError


def head(circuit: str, window: int, rank: int, lora: int = 0) -> Shelved:
    config = HeadConfig(circuit, window, rank, 8, 9, 9, "base", lora=lora)  # type: ignore[arg-type]
    return Shelved(Path(label_of(circuit, window, rank, lora)), config)


HEADS = [
    head("ff", 8, 1), head("btree", 8, 4), head("btree", 8, 16), head("btree", 16, 4),
    head("btree", 8, 16, lora=2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("window", "rank", "lora", "label"),
    [
        (8, 0, 0, "btree-8-r16"),  # the highest rank
        (8, 4, 0, "btree-8-r4"),
        (None, 0, 0, "btree-16-r4"),  # the longest window first
        (None, 16, 0, "btree-8-r16"),
        (None, 0, 2, "btree-8-r16-k2"),
    ],
)
def test_the_longest_window_then_the_highest_rank(
    window: int | None, rank: int, lora: int, label: str
) -> None:
    assert choose(HEADS, "btree", window, lora, "tiny", rank).label == label


def test_a_head_that_is_not_there_is_named_with_those_that_are() -> None:
    there = "btree-8-r3 for tiny; there are: ff-8, btree-8-r4, btree-8-r16, btree-16-r4"
    with pytest.raises(InputError, match=f"There is no circuit head {there}"):
        choose(HEADS, "btree", 8, 0, "tiny", 3)
    with pytest.raises(InputError, match="no circuit head ff-16 for tiny"):
        choose(HEADS, "ff", 16, 0, "tiny")
