"""Prompt sets from files: JSONL, CSV, or one prompt a line."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

from mtp.errors import InputError
from mtp.models.vocabulary import check_prompt

MAX_PROMPTS = 10_000
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Prompt:
    """A prompt and the category it is counted under."""

    text: str
    category: str = "all"


def read_prompts(path: Path) -> list[Prompt]:
    """Reads a prompt file: `.jsonl` with `prompt` or `turns` (the first counts) and `category`,
    `.csv` with a column `prompt`, anything else one prompt a line.

    Raises InputError with file and line for what cannot be used.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path.name} is over {MAX_BYTES // 2**20} MB, too large for prompts.")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"There is no file {str(path)[:200]}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is not UTF-8 text.") from error
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror}.") from error
    return parse_prompts(text, path.suffix.lower(), path.name)


def parse_prompts(text: str, suffix: str, name: str) -> list[Prompt]:
    """As `read_prompts`, from the file's text."""
    if suffix == ".jsonl":
        prompts = [
            _from_json(line, f"{name}, line {number}")
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
    elif suffix == ".csv":
        prompts = _from_csv(text, name)
    else:
        prompts = [Prompt(line.strip()) for line in text.splitlines() if line.strip()]
    if not prompts:
        raise InputError(f"{name} holds no prompts.")
    if len(prompts) > MAX_PROMPTS:
        raise InputError(f"{name} holds {len(prompts):,} prompts; at most {MAX_PROMPTS:,} fit.")
    for number, prompt in enumerate(prompts, 1):
        try:
            check_prompt(prompt.text)
        except InputError as error:
            raise InputError(f"{name}, prompt {number}: {error}") from error
    return prompts


def first_of_each(prompts: list[Prompt], per_category: int) -> list[Prompt]:
    """The first `per_category` prompts of every category, in the file's order."""
    seen: dict[str, int] = {}
    kept = []
    for prompt in prompts:
        seen[prompt.category] = seen.get(prompt.category, 0) + 1
        if seen[prompt.category] <= per_category:
            kept.append(prompt)
    return kept


def _from_json(line: str, where: str) -> Prompt:
    try:
        plain = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where} is not JSON.") from error
    if not isinstance(plain, dict):
        raise InputError(f"{where} is not an object with a `prompt`.")
    turns = plain.get("turns")
    text = plain.get("prompt") or (turns[0] if isinstance(turns, list) and turns else None)
    if not isinstance(text, str):
        raise InputError(f"{where} has no text under `prompt` or `turns`.")
    return Prompt(text, str(plain.get("category") or "all"))


def _from_csv(text: str, name: str) -> list[Prompt]:
    rows = csv.DictReader(io.StringIO(text))
    if "prompt" not in (rows.fieldnames or ()):
        raise InputError(f"{name} has no column `prompt` in its first line.")
    return [
        Prompt(row["prompt"], row.get("category") or "all")
        for row in rows
        if (row["prompt"] or "").strip()
    ]
