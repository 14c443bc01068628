"""`record-circuit` and `record-race`: records as files; bad arguments end with one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtp.__main__ import main
from mtp.records.circuit import CircuitView
from mtp.records.race import Race


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prompt", "a", "--circuits", "hmm"], "takes NAME-WINDOW"),
        (["--prompt", "a", "--circuits", "hmm-x"], "takes NAME-WINDOW"),
        (["--prompt", "a", "--circuits", "tree-8"], "can be ff, cp, hmm, btree"),
        (["--prompt", " ", "--circuits", "cp-8"], "prompt is empty"),
        (["--prompt", "a", "--seed", "-1"], "seed"),
        (["--prompt", "a", "--model", "smollm9"], "no model"),
    ],
)
def test_bad_arguments(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record-circuit", *arguments, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said and "\n" not in said
    assert not list(tmp_path.iterdir())


def test_a_recording_is_the_same_every_time(tmp_path: Path) -> None:
    command = ["record-circuit", "--prompt", "Hello.", "--circuits", "ff-8", "--seed", "2", "--out"]
    for name in ("one", "other"):
        assert main([*command, str(tmp_path / name)]) == 0
    one, other = ((tmp_path / name / "ff-8.json").read_bytes() for name in ("one", "other"))
    assert one == other
    view = CircuitView.from_json(one)
    assert (view.circuit, view.window, view.prompt, view.seed) == ("ff", 8, "Hello.", 2)


def test_a_race_is_recorded(tmp_path: Path) -> None:
    command = ["record-race", "--prompt", "Hello.", "--drafters", "ar,pld", "--laps", "2"]
    assert main([*command, "--max-new-tokens", "6", "--out", str(tmp_path)]) == 0
    race = Race.from_json((tmp_path / "first.json").read_bytes())
    assert [racer.decoder for racer in race.racers] == ["ar", "pld"]
    assert len({lap.ids for racer in race.racers for lap in racer.laps}) == 1
    assert all(len(racer.laps) == 2 for racer in race.racers)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--drafters", "ar"], "a race has 2 to 4"),
        (["--drafters", "ar,nonsense"], "nonsense"),
        (["--drafters", "ar,pld", "--laps", "0"], "from 1 to"),
        (["--drafters", "ar,pld", "--name", "../x"], "letters, digits and hyphens"),
        (["--drafters", "ar,pld", "--max-new-tokens", "0"], "New tokens is 0"),
    ],
)
def test_bad_races(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record-race", "--prompt", "a", *arguments, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said and "\n" not in said
    assert not list(tmp_path.iterdir())
