"""Marks of impossible texts: what breaks UTF-8, which complete words are unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtp.circuits.marks import broken_bytes, known_words, unknown_words, words_in, write_words

KNOWN = frozenset({"the", "sea", "naïve", "don", "t"})


@pytest.mark.parametrize(
    ("raw", "ended", "broken"),
    [
        (b"plain", False, []),
        ("é█".encode(), True, []),
        ("█".encode()[:2], False, []),  # the next token may complete it
        ("█".encode()[:2], True, ["█".encode()[:2]]),
        (b"a\xffb", False, [b"\xff"]),
        (b"\xe2\x96a", False, [b"\xe2\x96"]),
        (b"\x96\x96", False, [b"\x96", b"\x96"]),
        (b"", True, []),
    ],
)
def test_broken_utf8(raw: bytes, ended: bool, broken: list[bytes]) -> None:
    assert broken_bytes(raw, ended) == broken


@pytest.mark.parametrize(
    ("before", "raw", "ended", "unknown"),
    [
        (b"", b"the sea qx", False, []),  # cut off: it may go on
        (b"", b"the sea qx", True, ["qx"]),
        (b"", b"the qx sea ", False, ["qx"]),
        (b"on the s", b"ea is", False, []),  # the context has its beginning
        (b"on the s", b"oa is", False, ["soa"]),
        (b"qx ", b"the ", False, []),  # the context's own words are not judged
        (b"qx", b" the ", False, []),
        (b"", "naïve the ".encode(), False, []),
        (b"", "NAÏVE ".encode(), False, []),
        (b"na\xc3", b"\xafve the ", False, []),  # a character begun in the context
        (b"", b"don't 42x ", False, ["x"]),
        (b"", b"zz\xff", False, ["zz"]),  # broken bytes are no letters
        ("İİ ".encode(), b"the qx ", False, ["qx"]),
    ],
)
def test_unknown_words(before: bytes, raw: bytes, ended: bool, unknown: list[str]) -> None:
    assert unknown_words(before, raw, ended, KNOWN) == unknown


def test_the_words_of_a_text_are_letters_in_lower_case() -> None:
    assert words_in("The sea_1 naïve; don't — 42") == {"the", "sea", "naïve", "don", "t"}


def test_words_are_written_beside_a_model_and_found_there(tmp_path: Path) -> None:
    assert known_words(str(tmp_path)) is None
    write_words(tmp_path, ["The sea", "a SEA of b-c"])
    assert known_words(str(tmp_path)) == {"the", "sea", "a", "of", "b", "c"}
    assert (tmp_path / "words.txt").read_text().split() == ["a", "b", "c", "of", "sea", "the"]
    assert known_words("no/such") is None
    assert known_words("no model at all") is None
