"""The file of sampled completions: a header line, then one JSON object a completion."""

import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from mtp.errors import InputError

KIND = "completions"
VERSION = 1
HELD_OUT = 0.02  # share of each file, its last lines
# The end token of SmolLM2, for files made before headers recorded how a completion ended.
_OLD_END_ID = 2
# What a run may change without the file becoming another corpus.
_FREE = ("software",)


@dataclass(frozen=True)
class Header:
    """Where a corpus comes from. Two runs may write to one file only if all but `software` agree.

    `prompts` names the source of the prompts; `weights_sha256` the model's weights.
    """

    model: str
    weights_sha256: str
    temperature: float
    top_k: int
    top_p: float
    dtype: str
    seed: int
    max_new_tokens: int
    prompts: str
    software: dict[str, str]

    def line(self) -> str:
        """The header as the first line of a file."""
        return json.dumps({"kind": KIND, "version": VERSION, **asdict(self)}) + "\n"


@dataclass(frozen=True)
class Record:
    """One completion: the user's prompt, token ids (the end token last where it ended), text.

    `index` is the number of the prompt and `seed` the run seed with which plain sampling gives
    the same text; files made before headers existed have neither.
    """

    prompt: str
    ids: list[int]
    text: str
    index: int | None = None
    seed: int | None = None

    def line(self) -> str:
        """The completion as a line of a file."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


def read_completions(path: Path) -> Iterator[Record]:
    """The completions of a `.jsonl` or `.jsonl.gz` file, with or without a header line.

    Raises InputError where the file is missing or a line is not a completion.
    """
    for number, line in _lines(path):
        try:
            entry = json.loads(line)
            if number == 1 and entry.get("kind") == KIND:
                continue
            known = {key: entry[key] for key in ("index", "seed") if key in entry}
            yield Record(entry["prompt"], entry["ids"], entry["text"], **known)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(
                f"Line {number} of {path} is not a completion; each line is a JSON object with "
                "prompt, ids and text."
            ) from error


def read_header(path: Path) -> dict[str, Any] | None:
    """The header of a file of completions; None where its first line is not one."""
    for _, line in _lines(path):
        try:
            entry = json.loads(line)
        except ValueError:
            return None
        return entry if isinstance(entry, dict) and entry.get("kind") == KIND else None
    return None


def split(files: Sequence[Sequence[Record]]) -> list[tuple[list[Record], list[Record]]]:
    """Of each file the completions to train on, and those held out: its last ones, without those
    whose prompt is among what any of the files gives for training.
    """
    kept = [len(records) - max(1, round(HELD_OUT * len(records))) for records in files]
    asked = {
        record.prompt
        for records, size in zip(files, kept, strict=True)
        for record in records[:size]
    }
    return [
        (list(records[:size]), [one for one in records[size:] if one.prompt not in asked])
        for records, size in zip(files, kept, strict=True)
    ]


def how_ended(path: Path) -> Callable[[Record], bool]:
    """Tells of the file's completions whether the teacher ended them; one of full length counts
    as cut off.
    """
    header = read_header(path)
    if header is None:
        return lambda record: bool(record.ids) and record.ids[-1] == _OLD_END_ID
    limit: int = header["max_new_tokens"]
    return lambda record: len(record.ids) < limit


def open_for_appending(path: Path, header: Header) -> set[int]:
    """Makes the file ready to be appended to and returns the indices it already has.

    A new file gets the header; of an old one a last line cut short by an interruption is dropped.
    Raises InputError where the old header says another corpus.
    """
    if path.suffix != ".jsonl":
        raise InputError(f"The corpus would go to {path}; its name must end in .jsonl.")
    if not path.exists() or path.stat().st_size == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(header.line(), encoding="utf-8")
        return set()
    _drop_cut_line(path)
    _require_same(path, header)
    return {record.index for record in read_completions(path) if record.index is not None}


def append(path: Path, records: list[Record]) -> None:
    """Appends completions and waits until they are on the disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(record.line() for record in records))
        file.flush()
        os.fsync(file.fileno())


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as raw, _unpacked(path, raw) as file:
            yield from enumerate(file, start=1)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(
            f"The file {path} cannot be read as completions, lines of JSON as .jsonl or .jsonl.gz: "
            f"{error}."
        ) from error


def _unpacked(path: Path, raw: BinaryIO) -> TextIO:
    content = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
    return io.TextIOWrapper(cast(BinaryIO, content), encoding="utf-8")


def _drop_cut_line(path: Path) -> None:
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)


def _require_same(path: Path, header: Header) -> None:
    old = read_header(path)
    if old is None:
        raise InputError(f"The file {path} has no header; a corpus goes on only in its own file.")
    new = json.loads(header.line())
    for name in new:
        if name not in _FREE and old.get(name) != new[name]:
            raise InputError(
                f"The corpus in {path} was made with {name} {old.get(name)!r}, this run has "
                f"{new[name]!r}; take the same or another file."
            )


def source_of(path: Path) -> dict[str, Any]:
    """A file of completions for a card: its name, its SHA-256, and what its header says of the
    teacher.
    """
    header = read_header(path) or {}
    known = ("model", "weights_sha256", "temperature", "top_k", "top_p", "dtype", "seed")
    return {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        **{name: header[name] for name in known if name in header},
    }
