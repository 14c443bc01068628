"""Prompt files: every form read, every fault named."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtp.bench.prompts import Prompt, first_of_each, read_prompts
from mtp.errors import InputError


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_reads_jsonl_csv_and_lines(tmp_path: Path) -> None:
    jsonl = '{"prompt": "a", "category": "x"}\n\n{"turns": ["b", "c"]}\n'
    assert read_prompts(write(tmp_path, "p.jsonl", jsonl)) == [Prompt("a", "x"), Prompt("b")]
    table = 'prompt,category\n"a, b",x\nc,\n'
    assert read_prompts(write(tmp_path, "p.csv", table)) == [Prompt("a, b", "x"), Prompt("c")]
    assert read_prompts(write(tmp_path, "p.txt", "\ufeffa\n\n b \n")) == [Prompt("a"), Prompt("b")]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.jsonl", "{", "line 1 is not JSON"),
        ("p.jsonl", "[1]", "not an object"),
        ("p.jsonl", '{"prompt": 3}', "no text under"),
        ("p.csv", "text\na\n", "no column `prompt`"),
        ("p.txt", "\n \n", "holds no prompts"),
        ("p.txt", b"\xff\xfe\x00", "not UTF-8"),
        ("p.jsonl", '{"prompt": "\\ud800"}', "lone surrogate"),
        ("p.txt", "a" * 200_000, "200,000 characters"),
    ],
)
def test_faults_are_named(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_prompts(write(tmp_path, name, content))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file"):
        read_prompts(tmp_path / "none.txt")
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts(tmp_path)


def test_first_of_each_category() -> None:
    prompts = [Prompt(str(n), "even" if n % 2 == 0 else "odd") for n in range(6)]
    assert [prompt.text for prompt in first_of_each(prompts, 2)] == ["0", "1", "2", "3"]
