"""The one table of texts: every label, caption and sentence of the app, by language."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "assets" / "locale"
DEFAULT = "en"


@cache
def table(language: str = DEFAULT) -> dict[str, str]:
    """All texts of a language; English stands in for what it lacks."""
    known = json.loads((FOLDER / f"{DEFAULT}.json").read_text(encoding="utf-8"))
    path = FOLDER / f"{language}.json"
    if language != DEFAULT and language.isalpha() and path.is_file():
        known |= json.loads(path.read_text(encoding="utf-8"))
    return dict(known)


def part(*beginnings: str) -> dict[str, str]:
    """What a script of the page is given: texts whose keys begin so, and those of all scripts."""
    wanted = ("script.", *beginnings)
    return {key: words for key, words in table().items() if key.startswith(wanted)}


def text(key: str, **values: object) -> str:
    """One text, with its {places} filled."""
    sentence = table()[key]
    return sentence.format(**values) if values else sentence
