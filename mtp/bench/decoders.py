"""Decoders as they are written: a drafter's name, and in brackets what it is measured with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mtp.errors import InputError

_SPLIT = re.compile(r",(?![^\[]*\])")  # commas outside brackets
_WRITTEN = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")
VERIFICATION = "verification"


@dataclass(frozen=True)
class Decoder:
    """`label` is how it was written and what rows are called by; `verification` is None where it
    is the measurement's own.
    """

    label: str
    name: str
    options: dict[str, Any]
    verification: str | None


def split_decoders(text: str) -> list[str]:
    """The decoders of a list by commas: "ar, esp[masks=1,budget=30]" are two."""
    return [part.strip() for part in _SPLIT.split(text) if part.strip()]


def parse_decoder(label: str) -> Decoder:
    """Reads esp[budget=30] or mtpc-ff[window=8,verification=rejection].

    Raises InputError for what is not of that form.
    """
    found = _WRITTEN.fullmatch(label)
    pairs = [pair.partition("=") for pair in (found[2] or "").split(",") if pair] if found else []
    if found is None or any(not sign or not key.strip() for key, sign, _ in pairs):
        raise InputError(
            f"{label[:60]!r} is not a decoder; write a name such as ar, or esp[budget=30] with "
            "options."
        )
    options = {key.strip(): value.strip() for key, _, value in pairs}
    verification = options.pop(VERIFICATION, None)
    return Decoder(label, found[1].strip(), options, verification)
