"""The command line: exit status, one clear line for what is wrong, summary as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "mtp", *arguments],
        cwd=ROOT,
        input=given,
        capture_output=True,
        timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required"),
        (["nosuch"], "invalid choice"),
        (["generate"], "--prompt"),
        (["generate", "--prompt", ""], "empty"),
        (["generate", "--prompt", "x", "--temperature", "-1"], "from 0 (greedy) to 5"),
        (["generate", "--prompt", "x", "--temperature", "hot"], "invalid float"),
        (["generate", "--prompt", "x", "--drafter", "zz"], "no drafter 'zz'"),
        (["generate", "--prompt", "x", "--option", "budget=0"], "from 1 to 256"),
        (["generate", "--prompt", "x", "--model", "nosuch"], "no model"),
        (["generate", "--prompt", "x", "--verification", "magic"], "coupled or rejection"),
        (["generate", "--prompt", "x", "--trace", "/nosuch/folder/t.json"], "no folder"),
        (["bench", "--drafters", "ar", "--prompts", "none.txt", "--out", "o"], "no file"),
        (["fetch", "nosuch"], "no model"),
        (["generate", "--prompt", "a\udcffb"], "lone surrogate"),
        (["show", "nosuch.json"], "cannot be read"),
        (["show", "README.md"], "not JSON"),
    ],
)
def test_wrong_arguments_get_one_line(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode == 2
    assert len(lines) == 1 and said in lines[0]
    assert not done.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"a" * 200_000, "200,000 characters"),
        (b" \n", "empty"),
    ],
)
def test_a_prompt_on_standard_input_is_checked(given: bytes, said: str) -> None:
    done = run("generate", "--prompt", "-", given=given)
    assert done.returncode == 2 and said in done.stderr.decode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "not a trace"),
        ('{"version": 99, "steps": []}', "version 99"),
        ('{"version": 1, "steps": []}', "broken at run"),
    ],
)
def test_files_that_are_no_trace(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    done = run("show", str(path))
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode == 2 and len(lines) == 1 and said in lines[0]


def test_a_saved_run_is_shown() -> None:
    done = run("show", "assets/traces/first.json")
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0 and lines[0].startswith("mtpc-btree on byte")
    trace = json.loads((ROOT / "assets/traces/first.json").read_text())
    assert sum(line.startswith("step ") for line in lines) == len(trace["steps"])
    assert "tokens per call" in done.stderr.decode()


def test_models_lists_what_can_be_used() -> None:
    done = run("models")
    assert done.returncode == 0 and b"smollm2" in done.stdout


@pytest.mark.smollm2
def test_generate_prints_summary_and_saves_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    done = run(
        *["generate", "--prompt", "Say: שלום 🦊 <b>", "--max-new-tokens", "6", "--json"],
        *["--model", "smollm2", "--temperature", "0", "--trace", str(path)],
    )
    assert done.returncode == 0, done.stderr.decode()
    summary = json.loads(done.stdout)
    trace = json.loads(path.read_text())
    assert summary["text"] == trace["text"]
    assert summary["new_tokens"] == sum(len(step["committed"]) for step in trace["steps"]) <= 6
    assert trace["run"]["model"] == "smollm2" and trace["version"] == 1
