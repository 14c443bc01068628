"""Measuring and racing on a tiny model: counts, resuming, tables, and the outside baselines."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mtp.bench.measure import Plan, measure, read_rows, run_plan
from mtp.bench.outside import generate_outside
from mtp.bench.prompts import Prompt
from mtp.bench.race import check_racers, run_race
from mtp.bench.recall import recalls
from mtp.decode import Decoding
from mtp.errors import InputError
from mtp.lossless import check_float64, compare, run_plain
from mtp.models.backbone import Backbone
from mtp.models.memory import forget_peak_memory, peak_memory_mb
from mtp.models.verifier import Verifier
from mtp.ptp.files import load_ptp, save_ptp
from mtp.records.bench import tabulate
from mtp.records.race import Lap
from mtp.records.settings import Settings
from mtp.records.trace import Run, TokenText
from mtp.run import start
from tests.mtp.drafters.test_ptp import weights_for


class LetterVocabulary:
    """Letters as tokens: enough of a vocabulary for a model of 40 tokens."""

    stop_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()
    tokenizer = SimpleNamespace(decode=lambda ids, **_: "".join(chr(97 + i % 26) for i in ids))

    def encode(self, prompt: str, mode: str) -> list[int]:
        return [(ord(char) - 97) % 40 for char in prompt]

    def bytes_of(self, token: int) -> bytes:
        return chr(97 + token % 26).encode()

    def text_of(self, token: int) -> str:
        return chr(97 + token % 26)

    def token_text(self, token: int) -> TokenText:
        return TokenText(token, self.text_of(token))


@pytest.fixture
def verifier(tiny: Callable[[str], Any]) -> Verifier:
    return Verifier("tiny", "0" * 64, Backbone(tiny("llama")), LetterVocabulary())  # type: ignore[arg-type]


BASE = Settings(prompt="abcabcabc", drafter="pld", max_new_tokens=12, temperature=0.7)


def plan(**changes: Any) -> Plan:
    prompts = [Prompt("abcabcabc", "one"), Prompt("xyxyxyxy", "two")]
    values: dict[str, Any] = {
        "prompts": prompts, "decoders": ["ar", "pld", "hf"], "options": {}, "base": BASE,
    }  # fmt: skip
    return Plan(**{**values, **changes})


def test_every_decoder_meets_every_prompt_in_turn(verifier: Verifier) -> None:
    rows = list(measure(verifier, plan(repeats=2)))
    assert len(rows) == 12
    first = [row.decoder for row in rows if row.prompt_index == 0]
    assert first == ["ar", "pld", "hf", "pld", "hf", "ar"]  # the order rotates
    for row in rows:
        assert row.new_tokens == 12
        assert row.verifier_calls == 12 or row.decoder == "pld"
    same = {row.ids for row in rows if row.prompt_index == 0 and row.decoder != "hf"}
    assert len(same) == 1


def test_a_measurement_is_written_and_goes_on(verifier: Verifier, tmp_path: Path) -> None:
    said: list[str] = []
    text = run_plan(verifier, plan(), tmp_path, False, said.append)
    assert len(said) == 6 and "× ar" in text
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    (tmp_path / "rows.jsonl").write_text("\n".join(lines[:4]) + "\n")
    with pytest.raises(InputError, match="already holds"):
        run_plan(verifier, plan(), tmp_path, False, said.append)
    said.clear()
    run_plan(verifier, plan(), tmp_path, True, said.append)
    assert len(said) == 2
    kept = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert kept[:4] == lines[:4] and len(kept) == 6
    other = plan(base=dataclasses.replace(BASE, seed=9))
    with pytest.raises(InputError, match="seed"):
        run_plan(verifier, other, tmp_path, True, said.append)
    table = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert {row["category"] for row in table} == {"one", "two", "all"}


def test_a_measurement_tells_the_weights_it_drafted_with(
    verifier: Verifier, tiny: Callable[[str], Any], tmp_path: Path
) -> None:
    verifier = dataclasses.replace(verifier, weights_sha256="base")
    folder = tmp_path / "mine"
    weights = weights_for(tiny("llama"), "c-ptp")
    save_ptp(weights, folder, "tiny", dtype=torch.float32)
    label = f"c-ptp[weights={folder}]"
    asked = plan(decoders=["ar", label], prompts=[Prompt("abc")])
    text = run_plan(verifier, asked, tmp_path / "out", False, lambda line: None)
    written = json.loads((tmp_path / "out" / "table.json").read_text())["plan"]["drafter_weights"]
    sha256 = load_ptp(folder, verifier).sha256()
    told = {"drafter": "c-ptp", "folder": "mine", "sha256": sha256}
    assert written == {label: [told]}
    assert text.endswith(f"mine: weights of SHA-256 {sha256[:12]}…")
    run_plan(verifier, asked, tmp_path / "out", True, lambda line: None)
    save_ptp(weights_for(tiny("llama"), "c-ptp", 0.2), folder, "tiny", dtype=torch.float32)
    with pytest.raises(InputError, match=r"other settings \(drafter_weights\)"):
        run_plan(verifier, asked, tmp_path / "out", True, lambda line: None)


def test_a_plan_from_before_weights_were_told_goes_on(verifier: Verifier, tmp_path: Path) -> None:
    run_plan(verifier, plan(), tmp_path, False, lambda line: None)
    older = json.loads((tmp_path / "plan.json").read_text())
    assert older.pop("drafter_weights") == {}
    (tmp_path / "plan.json").write_text(json.dumps(older))
    said: list[str] = []
    run_plan(verifier, plan(), tmp_path, True, said.append)
    assert said == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decoders": ["nosuch"]}, "no drafter"),
        ({"decoders": []}, "No decoder"),
        ({"decoders": ["ar", "pld", "ar"]}, "twice"),
        ({"options": {"esp": {"masks": 1}}}, "not measured"),
        ({"repeats": 0}, "at least 1"),
    ],
)
def test_a_plan_is_checked_first(
    verifier: Verifier, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        run_plan(verifier, plan(**changes), tmp_path / "out", False, lambda line: None)
    assert not (tmp_path / "out").exists()


def test_the_table_counts_over_all_calls(verifier: Verifier) -> None:
    rows = list(measure(verifier, plan()))
    table = {(row.category, row.decoder): row for row in tabulate(rows, ["ar", "pld", "hf"])}
    assert table["all", "ar"].tokens_per_call == 1.0
    assert table["all", "ar"].ratio_to_ar == pytest.approx((1.0, 1.0, 1.0))
    mine = [row for row in rows if row.decoder == "pld"]
    calls = sum(row.verifier_calls or 0 for row in mine)
    assert table["all", "pld"].tokens_per_call == sum(row.new_tokens for row in mine) / calls


def test_generate_outside_is_generate(verifier: Verifier) -> None:
    greedy = dataclasses.replace(BASE, temperature=0.0)
    out = generate_outside("hf", verifier, greedy)
    decoding, _ = start(verifier, dataclasses.replace(greedy, drafter="ar"))
    assert list(out.ids) == [token.id for step in decoding for token in step.committed]
    assert out.rest == len(out.ids) - 1 and len(out.ticks) == len(out.ids)
    again = generate_outside("hf-pld", verifier, greedy)
    assert again.ids == out.ids


def test_a_race_has_a_lap_a_turn_and_one_text(verifier: Verifier) -> None:
    told: list[tuple[str, int]] = []
    greedy = dataclasses.replace(BASE, temperature=0.0)
    race = run_race(
        verifier, ["hf", "ar", "pld"], greedy, 2,
        lambda decoder, lap, laps, left: told.append((decoder, lap)), lambda: False,
    )  # fmt: skip
    assert race is not None
    assert [len(racer.laps) for racer in race.racers] == [2, 2, 2]
    assert len({lap.ids for racer in race.racers for lap in racer.laps}) == 1
    assert [lap for _, lap in told] == [0, 0, 0, 1, 2, 3, 4, 5, 6]
    for racer in race.racers[1:]:
        for lap in racer.laps:
            assert lap.ticks[-1].seconds == pytest.approx(lap.seconds)
            assert sum(len(tick.pieces) for tick in lap.ticks) == lap.tokens == 12


def test_a_lap_has_the_times_of_its_trace(
    verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tick of what is replayed, against the steps that were measured."""
    runs: list[Decoding] = []

    def kept(*asked: Any, **how: Any) -> tuple[Decoding, Run]:
        decoding, run = start(*asked, **how)
        runs.append(decoding)
        return decoding, run

    monkeypatch.setattr("mtp.bench.race.start", kept)
    race = run_race(verifier, ["ar", "pld"], BASE, 2, lambda *_: None, lambda: False)
    assert race is not None
    laps = [lap for racer in race.racers for lap in racer.laps]
    for lap in laps:
        decoding = next(one for one in runs if _is_of(one, lap))
        seconds = itertools.accumulate(step.seconds.total for step in decoding.steps)
        assert [tick.seconds for tick in lap.ticks] == pytest.approx(list(seconds))
        pieces = [[token.text for token in step.committed] for step in decoding.steps]
        assert [[words for words, _ in tick.pieces] for tick in lap.ticks] == pieces


def _is_of(decoding: Decoding, lap: Lap) -> bool:
    return sum(step.seconds.total for step in decoding.steps) == pytest.approx(lap.seconds, 1e-12)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak cannot be set back elsewhere")
def test_memory_is_counted_anew_for_each_run() -> None:
    cpu = torch.device("cpu")
    forget_peak_memory(cpu)
    before = peak_memory_mb(cpu)
    held = torch.ones(60_000_000)
    assert peak_memory_mb(cpu) > before + 200
    del held
    forget_peak_memory(cpu)
    assert peak_memory_mb(cpu) < before + 200


def test_recall_is_what_esp_brings(verifier: Verifier, tmp_path: Path) -> None:
    longer = dataclasses.replace(BASE, max_new_tokens=80)
    asked = plan(decoders=["ar", "esp[tree=6]", "esp[masks=2]"], base=longer)
    run_plan(verifier, asked, tmp_path, False, lambda line: None)
    [found] = recalls(verifier, tmp_path)
    assert (found.decoder, found.candidates) == ("esp[tree=6]", 6)
    rows = [row for row in read_rows(tmp_path) if row.decoder == "esp[tree=6]"]
    assert found.places == sum(len(row.ids) - 1 for row in rows)
    assert found.tokens_per_call == pytest.approx(
        sum(row.new_tokens for row in rows) / sum(row.verifier_calls or 0 for row in rows)
    )
    assert 0 < found.recall < 1 and abs(found.gap) < 0.25
    with pytest.raises(InputError, match="no measurement"):
        recalls(verifier, tmp_path / "none")
    other = dataclasses.replace(verifier, weights_sha256="1" * 64)
    with pytest.raises(InputError, match="other weights"):
        recalls(other, tmp_path)
    written = json.loads((tmp_path / "plan.json").read_text())
    for broken in ([], {}, {name: written[name] for name in ("model", "decoders")}):
        (tmp_path / "plan.json").write_text(json.dumps(broken))
        with pytest.raises(InputError):
            recalls(verifier, tmp_path)


def test_time_outside_the_verifiers_forward_is_told(verifier: Verifier) -> None:
    rows = list(measure(verifier, plan()))
    own = [row for row in rows if row.decoder != "hf"]
    assert all(0 < (row.seconds_forward or 0) < row.seconds for row in own)
    found = {row.decoder: row.outside for row in tabulate(rows, ["ar", "pld", "hf"])}
    assert 0 < (found["pld"] or 0) < 1 and found["hf"] is None


def test_a_stopped_race_has_no_record(verifier: Verifier) -> None:
    race = run_race(verifier, ["ar", "pld"], BASE, 1, lambda *_: None, lambda: True)
    assert race is None


@pytest.mark.parametrize("racers", [["ar"], ["ar", "ar"], ["ar", "pld", "hf", "hf-pld", "stand"]])
def test_a_race_is_checked_first(racers: list[str]) -> None:
    with pytest.raises(InputError):
        check_racers(racers, 1)


def test_the_check_finds_equal_texts_and_where_they_part(verifier: Verifier) -> None:
    decoding, _ = start(verifier, BASE)
    drafted = list(decoding)
    plain = run_plain(verifier, BASE)
    same = compare(drafted, plain, "float64", greedy=False)
    assert same.equal and same.tokens == 12
    precise = check_float64(verifier, BASE)
    assert precise is not None and precise.equal and precise.dtype == "float64"
    other = run_plain(verifier, dataclasses.replace(BASE, seed=5, temperature=2.0))
    parted = compare(drafted, other, "float64", greedy=False)
    assert parted.parting is not None and not parted.parting.near_tie
    first = [token.id for step in drafted for token in step.committed]
    second = [token.id for step in other for token in step.committed]
    assert first[: parted.parting.index] == second[: parted.parting.index]
    assert first[parted.parting.index] != second[parted.parting.index]


def test_the_float64_copy_leaves_the_model_as_it_is(tiny: Callable[[str], Any]) -> None:
    import copy

    model = copy.deepcopy(tiny("llama")).float()
    verifier = Verifier("tiny", "0" * 64, Backbone(model), LetterVocabulary())  # type: ignore[arg-type]
    check_float64(verifier, BASE)
    assert next(model.parameters()).dtype == torch.float32
