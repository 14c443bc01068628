"""The folder of a run: what it notes and refuses, in a sentence each."""

import json
from pathlib import Path

import numpy as np
import pytest

from mtp.__main__ import main
from mtp.errors import InputError
from mtp.train.byte_recipe import Shape
from mtp.train.inverse_recipe import Recipe
from mtp.train.run_folder import DATA, SETTINGS, RunFolder, check_data
from mtp.train.texts import Text, cut_all

LINE = json.dumps({"prompt": "Say hi.", "ids": [104, 105], "text": "hi"}) + "\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text(100 * LINE)
    return path


def test_a_run_is_held_to_its_completions(tmp_path: Path, data: Path) -> None:
    folder = tmp_path / "run"
    RunFolder(folder, {"rate": 1}, (), [data])
    noted = json.loads((folder / DATA).read_text())
    assert [one["file"] for one in noted] == ["data.jsonl"] and len(noted[0]["sha256"]) == 64
    moved = data.rename(tmp_path / "moved.jsonl")
    RunFolder(folder, {"rate": 1}, (), [moved])  # the same by another name
    assert check_data(folder, [moved])[0]["sha256"] == noted[0]["sha256"]
    moved.write_text(101 * LINE)
    for refused in (
        lambda: check_data(folder, [moved]),
        lambda: RunFolder(folder, {}, (), [moved]),
    ):
        with pytest.raises(InputError, match="was begun with other completions"):
            refused()
    (folder / DATA).unlink()  # as runs of earlier versions are
    check_data(folder, [moved])


def test_folders_that_cannot_be_a_runs_are_told(tmp_path: Path, data: Path) -> None:
    with pytest.raises(InputError, match="cannot be a run's folder"):
        RunFolder(data, {}, ())
    folder = tmp_path / "run"
    RunFolder(folder, {}, ())
    for content in ("{", "[]", "\x00"):
        (folder / SETTINGS).write_text(content)
        with pytest.raises(InputError, match=r"settings\.json (cannot be read|holds no settings)"):
            RunFolder(folder, {}, ())


def test_texts_whose_answer_is_cut_away_are_left_out() -> None:
    texts = [Text("", np.arange(size), answer) for size, answer in ((9, 3), (9, 6), (4, 4))]
    assert [len(text.ids) for text in cut_all(texts, 5)] == [5]
    assert len(cut_all(texts, 9)) == 2
    with pytest.raises(InputError, match="No answer begins within 3 tokens"):
        cut_all(texts, 3)


def test_shapes_and_budgets_that_cannot_be_are_refused() -> None:
    for heads, hidden in ((3, 128), (2, 6), (0, 8)):
        with pytest.raises(InputError, match="heads"):
            Shape(hidden, 1, heads)
    for wrong, said in (
        ({"minutes": float("nan")}, "The minutes is nan"),
        ({"minutes": float("inf")}, "The minutes is inf"),
        ({"steps": 1, "temperature": 9.0}, "from 0 .* to 5"),
        ({"steps": 1, "heads": 5}, "5 heads do not divide 128"),
    ):
        with pytest.raises(InputError, match=said):
            Recipe(**wrong)


@pytest.mark.parametrize("kind", ["inverse", "byte-lm"])
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x1f\x8b broken", b""])
def test_files_that_are_no_completions_end_in_a_line(
    kind: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("wrong.jsonl", "wrong.jsonl.gz"):
        path = tmp_path / name
        path.write_bytes(content)
        given = ["--data", str(path), "--folder", str(tmp_path / "run"), "--steps", "1"]
        assert main(["train", kind, *given]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
