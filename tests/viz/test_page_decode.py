"""What page Decode does with addresses, recorded runs, branches and files."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from mtp.errors import InputError, TraceError
from mtp.records.trace import Trace
from viz import drafter_choice, shell
from viz import recorded as recordings
from viz.pages.decode_actions import branch_settings
from viz.player import link_of, viewer_step
from viz.runs import LiveRun
from viz.texts import table


@pytest.fixture(scope="module")
def recorded() -> LiveRun:
    trace = recordings.read(recordings.FIRST)
    return LiveRun("r", "own", None, trace.run, list(trace.steps), trace)


def test_the_first_view_is_a_real_run_with_drafts_that_stood_and_fell(recorded: LiveRun) -> None:
    status = {one for step in recorded.steps for one in step.tree.status}
    assert {"accepted", "rejected"} <= status
    step = recorded.steps[recordings.best_step(recorded) - 1]
    assert len(step.committed) == max(len(one.committed) for one in recorded.steps)


@pytest.mark.parametrize("name", ["../../README", "nosuch", "", "a/b", ".hidden"])
def test_recorded_runs_are_found_by_name_only(name: str) -> None:
    with pytest.raises(TraceError):
        recordings.read(name)


def test_a_link_holds_what_makes_the_run_again(recorded: LiveRun) -> None:
    query = dict(parse_qsl(link_of(recorded) or "", keep_blank_values=True))
    values = shell.from_query(query)
    run = recorded.run
    assert run is not None
    assert values["seed"] == run.seed and values["temperature"] == run.temperature
    assert query["prompt"] == run.prompt
    options = drafter_choice.options_in(query["drafter"], query)
    assert {k: str(v) for k, v in run.drafter_options.items()} == options


@pytest.mark.parametrize(
    "query",
    [
        {"temperature": "nan"},
        {"temperature": "1e9"},
        {"seed": "-3"},
        {"seed": "x"},
        {"mode": "shout"},
        {"dtype": "int8"},
        {"top_p": "2"},
    ],
)
def test_addresses_that_make_no_sense_are_left_out(query: dict[str, str]) -> None:
    assert shell.from_query(query) == {}
    [(name, value)] = query.items()
    assert shell.unusable(query) == f"{name}={value}"


def test_settings_that_can_be_used_are_all_kept() -> None:
    query = {"temperature": "1", "new": "9", "seed": "3", "mode": "raw", "prompt": "x", "tab": "y"}
    assert shell.unusable(query) is None
    assert shell.from_query(query)["max_new_tokens"] == 9


def test_only_a_rejected_node_can_be_followed(recorded: LiveRun) -> None:
    found = [
        (index, node)
        for index, step in enumerate(recorded.steps)
        for node, status in enumerate(step.tree.status)
        if status == "rejected"
    ]
    index, node = found[-1]
    settings = branch_settings(recorded, index, node)
    assert settings is not None and settings.branch is not None
    written = [token.id for step in recorded.steps[:index] for token in step.committed]
    tree = recorded.steps[index].tree
    assert list(settings.forced_ids[: len(written)]) == written
    assert settings.forced_ids[-1] == tree.token_ids[node]
    assert settings.branch.forced == len(settings.forced_ids)
    for step, bad in ((index, 10**6), (-1, node), (10**6, 0), ("0", node), (index, None)):
        assert branch_settings(recorded, step, bad) is None


def test_a_step_for_the_page_is_small(recorded: LiveRun) -> None:
    import json

    sizes = [len(json.dumps(viewer_step(step))) for step in recorded.steps]
    assert sum(sizes) / len(sizes) < 16_000


@pytest.mark.parametrize("value", [None, "", "x", float("nan"), float("inf"), True])
def test_number_fields_that_are_empty_get_a_sentence(value: object) -> None:
    with pytest.raises(InputError, match="Seed is empty or not a number"):
        shell.number(value, "Seed")


def test_status_lines_keep_text_as_text() -> None:
    line = shell.status("<script>alert(1)</script>", "failed")
    assert "<script>" not in line and "data-dismiss" in line


def test_every_text_that_code_asks_for_is_there() -> None:
    import re

    root = Path(__file__).resolve().parents[2]
    sources = [*root.glob("viz/**/*.py"), root / "app.py"]
    asked = {
        key
        for path in sources
        for key in re.findall(r"""(?<!\w)text\(\s*"([\w.]+)\"""", path.read_text(encoding="utf-8"))
    }
    asked |= {
        key
        for path in [*root.glob("assets/js/*.js")]
        for key in re.findall(r"""TEXTS\["([\w.]+)"\]""", path.read_text(encoding="utf-8"))
    }
    asked |= {
        key
        for path in root.glob("assets/html/*.html")
        for key in re.findall(r"\[\[([\w.]+)\]\]", path.read_text(encoding="utf-8"))
    }
    assert len(asked) > 60
    assert asked <= set(table())


def test_recorded_traces_open() -> None:
    for path in recordings.TRACES.glob("*.json"):
        assert Trace.from_json(path.read_bytes()).steps
