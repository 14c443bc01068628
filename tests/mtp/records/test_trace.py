"""Traces: to JSON and back unchanged; whatever is not a trace is refused with a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtp.decode import Decoding, Request, software
from mtp.drafters.pld import PromptLookup
from mtp.drafters.ptp import ParallelTokens
from mtp.errors import TraceError
from mtp.models.backbone import Backbone
from mtp.records.trace import (
    MAX_BYTES,
    VERSION,
    Branch,
    DrafterWeights,
    Run,
    TokenText,
    Trace,
    count_by_depth,
    step_to_plain,
    text_of,
)
from mtp.sampling import Sampling
from tests.mtp.drafters.test_ptp import weights_for

SAVED = Path(__file__).parents[3] / "assets" / "traces"

RUN = Run(
    model="tiny",
    weights_sha256="0" * 64,
    drafter="pld",
    drafter_options={"budget": 10, "branches": 4},
    mode="raw",
    temperature=0.7,
    top_k=0,
    top_p=1.0,
    seed=3,
    verification="coupled",
    device="cpu",
    dtype="float64",
    prompt="<script>alert('&amp;')</script> שלום 🙂 \u2028 w1",
    prompt_tokens=(TokenText(1, "w1"), TokenText(2, "‹e2 96›")),
    max_new_tokens=64,
    software=software(),
)


@pytest.fixture(scope="module")
def decode(tiny_backbone: Callable[[str], Backbone], tiny_vocabulary: Any) -> Callable[..., Trace]:
    """A whole run's trace by verification."""

    def make(verification: str) -> Trace:
        request = Request(
            prompt_ids=(1, 2, 3, 4) * 4,
            sampling=Sampling(1.0),
            seed=3,
            verification=verification,  # type: ignore[arg-type]
        )
        drafter = PromptLookup(branches=4)
        decoding = Decoding(tiny_backbone("llama"), tiny_vocabulary, drafter, request)
        for _ in decoding:
            pass
        return decoding.trace(replace(RUN, verification=request.verification))

    return make


@pytest.fixture(scope="module")
def trace(decode: Callable[[str], Trace]) -> Trace:
    return decode("coupled")


def drafting(plain: dict[str, Any]) -> dict[str, Any]:
    """The first step of the plain trace that has a tree of several nodes."""
    return next(step for step in plain["steps"] if len(step["tree"]["token_ids"]) > 2)


def judge_all(step: dict[str, Any]) -> None:
    """Calls every node accepted where one token was committed."""
    step["committed"] = step["committed"][:1]
    step["tree"]["status"] = ["accepted"] * len(step["tree"]["status"])
    assert max(step["tree"]["depths"]) > 0


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_a_trace_comes_back_equal(decode: Callable[[str], Trace], verification: str) -> None:
    made = decode(verification)
    written = made.to_json()
    assert "\n" not in written
    assert Trace.from_json(written) == made
    assert Trace.from_json(written.encode()) == made
    assert Trace.from_json(written).to_json() == written
    followed = replace(made, run=replace(made.run, branch=Branch(step=3, node=1, forced=1)))
    assert Trace.from_json(followed.to_json()) == followed
    statuses = {status for step in made.steps for status in step.tree.status}
    assert statuses == {"accepted", "rejected", "unreached"}  # the run is not a trivial one
    assert any(trial for step in made.steps for trial in step.tree.trials) == (
        verification == "rejection"
    )


def test_a_trace_has_the_documented_fields(trace: Trace) -> None:
    plain = json.loads(trace.to_json())
    assert plain["version"] == VERSION == 1
    assert set(plain) == {"version", "run", "steps", "text", "stop_reason", "summary"}
    assert plain["steps"] == json.loads(json.dumps([step_to_plain(s) for s in trace.steps]))
    step = drafting(plain)
    head = "index context_length root tree committed noise candidates budget rows forwards seconds"
    assert set(step) == {*head.split(), "insight"}
    tree = "token_ids texts parents depths log_q log_p status origins kind trials"
    assert set(step["tree"]) == set(tree.split())
    assert set(step["committed"][0]) == set("id text bytes source u interval margin".split())
    assert set(step["candidates"]["-1"][0]) == {"id", "text", "p"}
    numbers = "new_tokens verifier_calls tokens_per_call accepted_per_call drafted acceptance_rate"
    times = "tokens_per_second seconds seconds_prefill forwards rows peak_memory_mb"
    assert set(plain["summary"]) == {*numbers.split(), *times.split(), "accepted_by_depth"}


def test_the_text_is_that_of_the_committed_tokens(trace: Trace) -> None:
    ids = [token.id for step in trace.steps for token in step.committed]
    assert trace.text == "".join(f"w{token}" for token in ids)
    assert text_of(trace.steps, frozenset({ids[0]})) == "".join(
        f"w{token}" for token in ids if token != ids[0]
    )


def test_the_summary_is_a_recount_of_the_steps(trace: Trace) -> None:
    summary, steps = trace.summary, trace.steps
    committed = [token for step in steps for token in step.committed]
    accepted = [status for step in steps for status in step.tree.status].count("accepted")
    drafted = sum(len(step.tree.token_ids) for step in steps)
    seconds = sum(step.seconds.total for step in steps)
    assert summary.new_tokens == len(committed) == 64
    assert summary.verifier_calls == len(steps) < 64
    assert summary.tokens_per_call == len(committed) / len(steps)
    assert summary.accepted_per_call == accepted / len(steps)
    assert accepted == sum(token.source == "draft" for token in committed)
    assert summary.drafted == drafted
    assert summary.acceptance_rate == accepted / drafted
    assert summary.seconds == pytest.approx(seconds)
    assert summary.tokens_per_second == pytest.approx(64 / seconds)
    assert summary.forwards == len(steps) + 1
    assert summary.rows == 15 + sum(1 + len(step.tree.token_ids) for step in steps)
    assert summary.peak_memory_mb > 10
    for count in summary.accepted_by_depth:
        at_depth = [
            {
                status
                for depth, status in zip(step.tree.depths, step.tree.status, strict=True)
                if depth == count.depth
            }
            for step in steps
        ]
        assert count.drafted == sum(bool(statuses) for statuses in at_depth)
        assert count.reached == sum(bool(statuses - {"unreached"}) for statuses in at_depth)
        assert count.stood == sum("accepted" in statuses for statuses in at_depth)
        assert count.drafted >= count.reached >= count.stood
    assert sum(count.stood for count in summary.accepted_by_depth) == accepted


def test_no_steps_have_no_rates() -> None:
    assert count_by_depth(()) == ()


def test_a_step_takes_a_few_kilobytes(trace: Trace) -> None:
    largest = max(trace.steps, key=lambda step: len(step.tree.token_ids))
    assert len(largest.tree.token_ids) == 10
    assert len(json.dumps(step_to_plain(largest))) < 4500
    assert len(trace.to_json()) / len(trace.steps) < 4500


@pytest.mark.parametrize("path", sorted(SAVED.glob("*.json")), ids=lambda path: path.name)
def test_recorded_runs_of_the_app_can_be_opened(path: Path) -> None:
    saved = Trace.from_json(path.read_bytes())
    assert saved.steps and saved.text
    assert Trace.from_json(saved.to_json()) == saved
    ids = {token.id for step in saved.steps for token in step.committed}
    assert saved.summary.new_tokens == sum(len(step.committed) for step in saved.steps) >= len(ids)


def test_a_run_of_noise_rows_comes_back_with_what_its_branches_proposed(
    tiny: Callable[[str], Any], tiny_vocabulary: Any
) -> None:
    backbone = Backbone(tiny("llama"))
    weights = weights_for(tiny("llama"), "o-ptp", head_layers=1)
    drafter = ParallelTokens(weights, backbone, text_of=tiny_vocabulary.text_of)
    request = Request(prompt_ids=(1, 2, 3, 4), sampling=Sampling(1.0), seed=3)
    decoding = Decoding(backbone, tiny_vocabulary, drafter, request)
    for _ in decoding:
        pass
    told = DrafterWeights("o-ptp", "tiny-o-ptp", "f" * 64)
    made = decoding.trace(replace(RUN, drafter="o-ptp", drafter_weights=(told,)))
    written = made.to_json()
    assert Trace.from_json(written) == made
    assert Trace.from_json(written).run.drafter_weights == (told,)
    assert len(written) / len(made.steps) < 4500
    proposed = [one for step in made.steps for one in (step.insight or {}).get("proposed", [])]
    one = next(one for one in proposed if one is not None)
    assert one["texts"] == [f"w{token}" for token in one["token_ids"]] != []
    assert one["own"] == {"id": one["own"]["id"], "text": f"w{one['own']['id']}"}
    older = json.loads(written)  # before proposals and weights were recorded
    del older["run"]["drafter_weights"]
    for step in older["steps"]:
        (step["insight"] or {}).pop("proposed", None)
    assert Trace.from_json(json.dumps(older)).run.drafter_weights == ()


# What is not a trace


def said_of(data: str | bytes) -> str:
    with pytest.raises(TraceError) as caught:
        Trace.from_json(data)
    said = str(caught.value)
    assert said.endswith(".") and "\n" not in said and len(said) < 400
    assert "Traceback" not in said and "pydantic" not in said.lower()
    return said


@pytest.mark.parametrize(
    "data",
    [
        "",
        " ",
        "Once upon a time",
        "{",
        "\x00",
        b"\xff\xfe\x00",
        b"\x89PNG\r\n\x1a\n\x00\x00",
        "[" * 100_000,
        '{"version":1,"steps":' + "[" * 100_000,
        '{"version":' + "1" * 10_000 + ',"steps":[]}',
        '{"version":1,"steps":[],"text":"\\ud800"}',
        '{"version":1,"steps":[NaN]}',
        '{"version":1,"steps":[-Infinity]}',
        '{"version":1,"steps":[1e999]}',
    ],
    ids=lambda data: repr(data)[:24],
)
def test_what_is_not_json_is_not_a_trace(data: str | bytes) -> None:
    assert said_of(data).startswith("The file is not JSON, so it is not a trace.")


@pytest.mark.parametrize("data", ["3", "null", "[]", '"steps"', "{}", '{"version": 1}'])
def test_json_that_is_not_a_trace(data: str) -> None:
    assert said_of(data) == "The file is JSON but not a trace: it has no version and steps."


@pytest.mark.parametrize("version", [2, 99, "two", None, [1], {"a": 1}])
def test_a_trace_of_another_version(trace: Trace, version: object) -> None:
    plain = json.loads(trace.to_json()) | {"version": version}
    said = said_of(json.dumps(plain))
    assert said.startswith(f"The trace is of version {version}; this Draftscope reads version 1.")


def test_a_file_that_is_too_large() -> None:
    assert said_of(b" " * (MAX_BYTES + 1)) == "The file has 64 MB; a trace has at most 64 MB."


Change = Callable[[dict[str, Any]], object]


PROPOSED = {"kind": "ptp", "from": None, "branches": [[0, 0, 0.5], [1, 4, 0.5]]}
BROKEN: dict[str, tuple[Change, str]] = {
    "no run": (lambda plain: plain.pop("run"), "broken at run"),
    "no summary": (lambda plain: plain.pop("summary"), "broken at summary"),
    "steps are a text": (lambda plain: plain.update(steps="abc"), "broken at steps"),
    "steps are a table": (lambda plain: plain.update(steps={}), "broken at steps"),
    "a step is null": (lambda plain: plain.update(steps=[None]), "broken at steps.0"),
    "a seed in words": (lambda plain: plain["run"].update(seed="three"), "broken at run.seed"),
    "no temperature": (
        lambda plain: plain["run"].update(temperature=None),
        "broken at run.temperature",
    ),
    "another verification": (
        lambda plain: plain["run"].update(verification="faith"),
        "broken at run.verification",
    ),
    "another stop reason": (
        lambda plain: plain.update(stop_reason="tired"),
        "broken at stop_reason",
    ),
    "a source of its own": (
        lambda plain: plain["steps"][0]["committed"][0].update(source="me"),
        "broken at steps.0.committed.0.source",
    ),
    "three ends": (
        lambda plain: plain["steps"][0]["committed"][0].update(interval=[0, 1, 2]),
        "broken at steps.0.committed.0.interval",
    ),
    "bytes that are not": (
        lambda plain: plain["steps"][0]["committed"][0].update(bytes="é!"),
        "a token's bytes are not base64",
    ),
    "nothing committed": (
        lambda plain: plain["steps"][0].update(committed=[]),
        "it commits no token",
    ),
    "columns that differ": (
        lambda plain: drafting(plain)["tree"]["token_ids"].append(1),
        "the tree's columns differ in length",
    ),
    "a parent to come": (
        lambda plain: drafting(plain)["tree"]["parents"].__setitem__(0, 2),
        "node 0 has no possible parent",
    ),
    "a parent of −2": (
        lambda plain: drafting(plain)["tree"]["parents"].__setitem__(1, -2),
        "node 1 has no possible parent",
    ),
    "a depth that is not": (
        lambda plain: drafting(plain)["tree"]["depths"].__setitem__(1, 7),
        "node 1 has no possible parent",
    ),
    "no noise": (lambda plain: drafting(plain).update(noise=[]), "less noise than"),
    "candidates of nobody": (
        lambda plain: plain["steps"][0]["candidates"].update({"x": []}),
        "candidates for a node that is not there",
    ),
    "no candidates": (
        lambda plain: plain["steps"][0]["candidates"].update({"-1": []}),
        "a list of candidates is empty",
    ),
    "a probability above 1": (
        lambda plain: drafting(plain)["tree"]["log_q"].__setitem__(0, 1000.0),
        "a probability is above 1",
    ),
    "a node judged too deep": (
        lambda plain: judge_all(drafting(plain)),
        "judged at a depth that commits no token",
    ),
    "a branch of more than there is": (
        lambda plain: plain["run"].update(branch={"step": 0, "node": 0, "forced": 9999}),
        "takes over more than there is",
    ),
    "a union's components that are not": (
        lambda plain: drafting(plain).update(insight={"kind": "union", "components": [[1, 2]]}),
        "components are not one for each node",
    ),
    "a branch that is none": (
        lambda plain: drafting(plain).update(insight={"kind": "ptp", "branches": []}),
        "does not say which branch",
    ),
    "branches that are none": (
        lambda plain: drafting(plain).update(
            insight={"kind": "ptp", "from": None, "branches": [[1, 2]]}
        ),
        "branches are not drafts, rows and a chance each",
    ),
    "proposals of fewer branches": (
        lambda plain: drafting(plain).update(insight=PROPOSED | {"proposed": [None]}),
        "what its branches proposed is not told of each",
    ),
    "a proposal without texts": (
        lambda plain: drafting(plain).update(
            insight=PROPOSED
            | {"proposed": [None, {"own": {"id": 1, "text": "a"}, "token_ids": [2], "texts": []}]}
        ),
        "what its branches proposed is not told of each",
    ),
    "a proposal in words": (
        lambda plain: drafting(plain).update(insight=PROPOSED | {"proposed": ["a", "b"]}),
        "what its branches proposed is not told of each",
    ),
    "weights without a name": (
        lambda plain: plain["run"].update(drafter_weights=[{"sha256": "f"}]),
        "broken at run.drafter_weights.0",
    ),
    "components that are not": (
        lambda plain: drafting(plain).update(insight={"kind": "circuit", "components": [[1]]}),
        "components are not one for each node",
    ),
}


@pytest.mark.parametrize(("change", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_trace_says_where(trace: Trace, change: Change, said: str) -> None:
    plain = json.loads(trace.to_json())
    change(plain)
    assert said in said_of(json.dumps(plain))


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_trace_cut_short_is_not_one(trace: Trace, share: float) -> None:
    whole = trace.to_json()
    assert said_of(whole[: int(len(whole) * share)]).startswith("The file is not JSON")
