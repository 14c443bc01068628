"""What makes a drafted text impossible: broken UTF-8, a word that the training text lacks."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from mtp.errors import ModelError
from mtp.models.catalog import folder_of

WORDS_FILE = "words.txt"  # beside the model's weights: one word a line
_WORD = re.compile(r"[^\W\d_]+")


def words_in(text: str) -> set[str]:
    """The distinct words of a text: runs of letters, in lower case."""
    return set(_WORD.findall(text.lower()))


def known_words(model: str) -> frozenset[str] | None:
    """The words of the text a model was trained on; None where its folder doesn't tell."""
    try:
        folder = folder_of(model)
    except ModelError:
        return None
    path = folder / WORDS_FILE if folder is not None else None
    if path is None or not path.is_file():
        return None
    return frozenset(path.read_text(encoding="utf-8").split())


def write_words(folder: Path, texts: Iterable[str]) -> None:
    """Writes the distinct words of the texts, sorted, to the folder's words.txt."""
    found: set[str] = set()
    for text in texts:
        found |= words_in(text)
    (folder / WORDS_FILE).write_text("\n".join(sorted(found)) + "\n", encoding="utf-8")


def broken_bytes(raw: bytes, ended: bool) -> list[bytes]:
    """The bytes that no valid text has there, in order.

    A character that the end cuts off is broken only where the text has `ended`.
    """
    found: list[bytes] = []
    while raw:
        try:
            decoder = codecs.getincrementaldecoder("utf-8")()
            decoder.decode(raw, final=ended)
            return found
        except UnicodeDecodeError as error:
            found.append(raw[error.start : error.end])
            raw = raw[error.end :]
    return found


def unknown_words(before: bytes, raw: bytes, ended: bool, known: Collection[str]) -> list[str]:
    """Words of `raw` that are not among the known ones, in order.

    Only complete words count: begun in `raw` or in the text `before` it, and followed in `raw` by
    something that is no letter, or by the text's end.
    """
    start = len(_decoded(before, True).lower())
    text = _decoded(before + raw, not ended).lower()
    return [
        match[0]
        for match in _WORD.finditer(text)
        if match.end() > start and (match.end() < len(text) or ended) and match[0] not in known
    ]


def _decoded(raw: bytes, cut: bool) -> str:
    """Text with a sign for each broken part; a character cut off at the end is left out if `cut`"""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return decoder.decode(raw, final=not cut)
