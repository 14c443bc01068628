"""The loop: where a text ends, what drafters are told, and what a step records."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtp.decode import MAX_NEW_TOKENS, Decoding, Request
from mtp.drafters.ar import Autoregressive
from mtp.drafters.base import Context, Draft, Outcome, ProbeOutput
from mtp.drafters.pld import PromptLookup
from mtp.errors import InputError
from mtp.models.backbone import Backbone
from mtp.models.vocabulary import Vocabulary
from mtp.sampling import Noise, Sampling, final_probabilities
from mtp.tree import ROOT, DraftTree, Probes, chain

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
GREEDY = Sampling(temperature=0)


class Copying:
    """Drafts chains of a text known beforehand, on past its end, and writes down what it is told.

    It heeds the context's room but not how many tokens can still count.
    """

    name = "copying"

    def __init__(
        self, text: Sequence[int], length: int = 5, hidden_layers: tuple[int, ...] = ()
    ) -> None:
        self.text = list(text)
        self.length = length
        self.hidden_layers = hidden_layers
        self.contexts: list[tuple[tuple[int, ...], Context]] = []
        self.outcomes: list[Outcome] = []
        self.probes: list[ProbeOutput | None] = []

    def propose(self, context: Context) -> Draft:
        assert context.root_position == len(context.token_ids) - 1
        self.contexts.append((tuple(context.token_ids), context))  # the text itself grows on
        length = min(self.length, context.room)
        start = len(context.token_ids)
        copied = (self.text[start:] + [0] * length)[:length]
        return Draft(chain(copied, self.name))

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        self.outcomes.append(outcome)
        self.probes.append(probes)


@pytest.fixture
def llama(tiny_backbone: Callable[[str], Backbone]) -> Backbone:
    return tiny_backbone("llama")


@pytest.fixture
def plain(llama: Backbone, write: Callable[..., Decoding]) -> Decoding:
    """40 tokens of plain sampling, which `Copying` then drafts."""
    return write(llama, Autoregressive(), prompt_ids=PROMPT, seed=1, max_new_tokens=40)


# Where a text ends


def test_plain_decoding_writes_one_token_a_forward(plain: Decoding) -> None:
    assert plain.stop_reason == "length"
    assert len(plain.steps) == len(plain.output_ids) == 40
    assert plain.token_ids[: len(PROMPT)] == list(PROMPT)
    assert all(step.forwards == step.rows == 1 for step in plain.steps)
    assert plain.prefill_forwards == 1 and plain.prefill_rows == len(PROMPT) - 1


@pytest.mark.parametrize("length", [1, 3, 5, 9])
def test_a_stop_token_ends_the_text_within_a_draft(
    length: int,
    llama: Backbone,
    plain: Decoding,
    write: Callable[..., Decoding],
) -> None:
    stop = plain.output_ids[20]
    end = plain.output_ids.index(stop)
    assert end >= 5
    drafted = write(
        llama,
        Copying(plain.token_ids, length),
        prompt_ids=PROMPT,
        seed=1,
        max_new_tokens=40,
        stop_ids=frozenset({stop}),
    )
    assert drafted.stop_reason == "end"
    assert drafted.output_ids == plain.output_ids[: end + 1]
    last = drafted.steps[-1]
    counted = [status for status in last.tree.status if status == "accepted"]
    assert len(counted) == sum(token.source == "draft" for token in last.committed)


@pytest.mark.parametrize("limit", [1, 2, 7, 12])
def test_the_limit_ends_the_text_within_a_draft(
    limit: int, llama: Backbone, plain: Decoding, write: Callable[..., Decoding]
) -> None:
    drafter = Copying(plain.token_ids)
    drafted = write(llama, drafter, prompt_ids=PROMPT, seed=1, max_new_tokens=limit)
    assert drafted.stop_reason == "length"
    assert drafted.output_ids == plain.output_ids[:limit]
    assert sum(len(step.committed) for step in drafted.steps) == limit
    for step in drafted.steps:  # nodes past the end stood for the verifier, but do not count
        accepted = [n for n, status in enumerate(step.tree.status) if status == "accepted"]
        assert len(accepted) == sum(token.source == "draft" for token in step.committed)
        assert all(step.tree.depths[node] < len(step.committed) for node in accepted)
    assert [context.most_depth for _, context in drafter.contexts] == [
        limit - 1 - (len(ids) - len(PROMPT)) for ids, _ in drafter.contexts
    ]


def test_lookups_do_not_draft_past_the_limit(
    llama: Backbone, write: Callable[..., Decoding]
) -> None:
    for limit in (1, 2, 5):
        drafted = write(llama, PromptLookup(), prompt_ids=(1, 2, 3) * 4, max_new_tokens=limit)
        left = limit
        for step in drafted.steps:
            assert max(step.tree.depths, default=-1) + 1 <= left - 1
            left -= len(step.committed)


@pytest.mark.parametrize("name", ["llama-short", "gpt2-short"])
@pytest.mark.parametrize("size", [1, 10, 22, 23])
def test_the_context_ends_the_text(
    name: str,
    size: int,
    tiny_backbone: Callable[[str], Backbone],
    write: Callable[..., Decoding],
) -> None:
    backbone = tiny_backbone(name)
    prompt = tuple([1, 2, 3, 4] * 6)[:size]
    request = {"prompt_ids": prompt, "sampling": GREEDY, "max_new_tokens": 100}
    expected = write(backbone, Autoregressive(), **request)
    assert expected.stop_reason == "context"
    assert len(expected.token_ids) == 24 + 1  # the last token is never run
    for drafter in (PromptLookup(), PromptLookup(branches=3), Copying(expected.token_ids, 9)):
        drafted = write(backbone, drafter, **request)
        assert drafted.stop_reason == "context"
        assert drafted.token_ids == expected.token_ids


def test_a_prompt_that_fills_the_context_is_refused(
    tiny_backbone: Callable[[str], Backbone], tiny_vocabulary: Vocabulary
) -> None:
    for size in (24, 2000):
        with pytest.raises(InputError, match=rf"The prompt has {size:,} tokens; .* at most 23"):
            Decoding(
                tiny_backbone("gpt2-short"),
                tiny_vocabulary,
                Autoregressive(),
                Request((1,) * size),
            )


def test_a_prompt_of_one_token_needs_no_prefill(
    tiny: Callable[[str], PreTrainedModel],
    write: Callable[..., Decoding],
    generate: Callable[..., list[int]],
) -> None:
    backbone = Backbone(tiny("qwen3"))
    request = {"prompt_ids": (7,), "sampling": GREEDY, "max_new_tokens": 30}
    plain = write(backbone, Autoregressive(), **request)
    assert plain.prefill_forwards == plain.prefill_rows == 0
    assert write(backbone, PromptLookup(branches=2), **request).token_ids == plain.token_ids
    assert plain.token_ids == generate(tiny("qwen3"), (7,), 30)


def test_a_run_stops_between_steps(llama: Backbone, tiny_vocabulary: Vocabulary) -> None:
    stopped = False
    decoding = Decoding(
        llama, tiny_vocabulary, Autoregressive(), Request(PROMPT), stop=lambda: stopped
    )
    for step in decoding:
        stopped = step.index == 4
    assert decoding.stop_reason == "stopped"
    assert len(decoding.steps) == len(decoding.output_ids) == 5


def test_a_run_stopped_before_it_starts_runs_nothing(
    llama: Backbone, tiny_vocabulary: Vocabulary
) -> None:
    decoding = Decoding(
        llama, tiny_vocabulary, Autoregressive(), Request((1,) * 700), stop=lambda: True
    )
    assert list(decoding) == []
    assert decoding.stop_reason == "stopped" and llama.forwards == 0


def test_steps_come_as_they_happen(llama: Backbone, tiny_vocabulary: Vocabulary) -> None:
    decoding = Decoding(llama, tiny_vocabulary, Autoregressive(), Request(PROMPT))
    for count, step in enumerate(decoding, start=1):
        assert decoding.stop_reason == ("length" if count == 64 else "running")
        assert len(decoding.output_ids) == count and decoding.steps[-1] is step
        assert llama.forwards == 1 + count


@pytest.mark.parametrize(
    ("request_fields", "said"),
    [
        ({"prompt_ids": ()}, "The prompt is empty. Write at least one word."),
        (
            {"prompt_ids": (1,), "max_new_tokens": 0},
            f"New tokens is 0; it can be from 1 to {MAX_NEW_TOKENS}.",
        ),
        (
            {"prompt_ids": (1,), "max_new_tokens": 10**6},
            f"New tokens is 1000000; it can be from 1 to {MAX_NEW_TOKENS}.",
        ),
    ],
)
def test_a_request_says_what_is_allowed(request_fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        Request(**request_fields)
    assert str(caught.value) == said


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_greedy_text_is_the_same_under_rejection(
    name: str, tiny_backbone: Callable[[str], Backbone], write: Callable[..., Decoding]
) -> None:
    backbone = tiny_backbone(name)
    request = {"prompt_ids": PROMPT, "sampling": GREEDY}
    plain = write(backbone, Autoregressive(), **request)
    for drafter in (PromptLookup(branches=3), Copying(plain.token_ids)):
        drafted = write(backbone, drafter, verification="rejection", **request)
        assert drafted.output_ids == plain.output_ids


# What drafters are told


def test_a_drafter_meets_the_hidden_state_that_picked_the_root(
    llama: Backbone,
    tiny: Callable[[str], PreTrainedModel],
    plain: Decoding,
    write: Callable[..., Decoding],
) -> None:
    layers = (0, 1, -1)
    half = [*plain.output_ids[:7], 0, *plain.output_ids[8:]]  # a draft that falls half-way
    drafter = Copying([*PROMPT, *half], 4, layers)
    decoding = write(llama, drafter, prompt_ids=PROMPT, seed=1, max_new_tokens=20)
    assert decoding.output_ids == plain.output_ids[:20]
    with torch.inference_mode():
        expected = tiny("llama")(
            input_ids=torch.tensor([plain.token_ids]), output_hidden_states=True
        ).hidden_states
    told = 0
    for ids, context in drafter.contexts:
        assert context.prompt_length == len(PROMPT)
        assert set(context.hidden) == set(layers)
        for layer in layers:
            states = expected[layer][0, told : len(ids) - 1]  # the root, at len − 1, is not run yet
            torch.testing.assert_close(context.hidden[layer], states, atol=1e-11, rtol=0)
        told = len(ids) - 1
    for ids, outcome in zip((ids for ids, _ in drafter.contexts), drafter.outcomes, strict=True):
        rows = 1 + len(outcome.draft.tree)
        assert outcome.logits.shape == (rows, 40)
        assert all(outcome.hidden[layer].shape == (rows, 32) for layer in layers)
        assert outcome.deepest == (outcome.accepted[-1] if outcome.accepted else ROOT)
        end = len(ids) + len(outcome.committed)
        assert list(outcome.committed) == plain.token_ids[len(ids) : end]
    depths = {len(outcome.accepted) for outcome in drafter.outcomes}
    assert len(depths) > 1  # some fell


class Probing:
    """Drafts a chain, with masks behind the root and its deepest node, and an adapter of its own.

    It drafts what its own masks predicted, so that what comes back from probes is used.
    """

    name = "probing"
    hidden_layers: tuple[int, ...] = (-1,)

    def __init__(self, embeds: Tensor) -> None:
        self.embeds = embeds  # (2, D)
        self.predicted: tuple[int, ...] = ()
        self.entered = 0
        self.seen: list[ProbeOutput] = []

    @contextmanager
    def gate(self, model: nn.Module, first_row: int) -> Iterator[None]:
        """Doubles what the last layer's MLP gives, on probe rows."""

        def double(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            return torch.cat([output[:, :first_row], 2 * output[:, first_row:]], dim=1)

        self.entered += 1
        mlps = [module for name, module in model.named_modules() if name.endswith(".mlp")]
        hook = mlps[-1].register_forward_hook(double)
        yield
        hook.remove()

    def propose(self, context: Context) -> Draft:
        guesses = self.predicted[: min(context.most_depth, context.room)]
        tree = chain(guesses, self.name)
        if context.room < len(tree) + 2:
            return Draft(tree)
        owner = (ROOT, ROOT, len(tree) - 1, len(tree) - 1)
        sees = np.zeros((4, 4), dtype=bool)
        sees[1, 0] = sees[3, 2] = True
        return Draft(
            tree, Probes(owner, (1, 2, 1, 2), self.embeds.repeat(2, 1), sees, adapter=self)
        )

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        if probes is None:
            self.predicted = ()
            return
        self.seen.append(probes)
        self.predicted = tuple(probes.logits[:2].argmax(dim=-1).tolist())


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_probes_ride_along_without_a_trace_in_the_text(
    name: str,
    temperature: float,
    tiny_backbone: Callable[[str], Backbone],
    write: Callable[..., Decoding],
) -> None:
    backbone = tiny_backbone(name)
    request = {"prompt_ids": PROMPT, "sampling": Sampling(temperature), "seed": 2}
    plain = write(backbone, Autoregressive(), **request)
    rebuilds = backbone.templates.rebuilds
    drafter = Probing(backbone.embed([5, 6]))
    probed = write(backbone, drafter, **request)
    assert probed.output_ids == plain.output_ids
    drafted = [len(step.tree.token_ids) for step in probed.steps]
    assert drafted[0] == 0 and max(drafted) == 2
    assert [step.rows for step in probed.steps] == [1 + size + 4 for size in drafted]
    assert drafter.entered == len(drafter.seen) == len(probed.steps)
    for output in drafter.seen:
        assert output.logits.shape == (4, 40) and output.hidden[-1].shape == (4, 32)
    # Prefill's shape was known; the first, empty tree, the full one, and one at the end are new.
    assert backbone.templates.rebuilds - rebuilds <= 3


def test_probes_end_with_the_context(
    tiny_backbone: Callable[[str], Backbone], write: Callable[..., Decoding]
) -> None:
    backbone = tiny_backbone("gpt2-short")
    request = {"prompt_ids": PROMPT, "sampling": GREEDY}
    expected = write(backbone, Autoregressive(), **request)
    probed = write(backbone, Probing(backbone.embed([5, 6])), **request)
    assert probed.stop_reason == "context" and probed.token_ids == expected.token_ids


# What a step records


class Branching:
    """Drafts the known text's next two tokens, each beside a sibling that differs."""

    name = "branching"
    hidden_layers: tuple[int, ...] = ()

    def __init__(self, text: Sequence[int]) -> None:
        self.text = [*text, 0, 0, 0]

    def propose(self, context: Context) -> Draft:
        if context.most_depth < 2:
            return Draft(why_empty="No room.")
        first, second = self.text[len(context.token_ids) : len(context.token_ids) + 2]
        token_ids = ((first + 1) % 40, first, (second + 1) % 40, second, second)
        return Draft(
            DraftTree(
                token_ids,
                (ROOT, ROOT, 1, 1, 0),
                (math.log(0.25), math.log(0.75), 0.0, 0.0, 0.0),
                ("deterministic",) * 5,
                (("a",), ("a", "b"), ("b",), ("b",), ("a",)),
            ),
            budget_rows=6,
            expected=3.0,
            insight={"kind": "toy", "step": len(context.token_ids)},
        )

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        pass


def test_a_step_records_what_happened(
    llama: Backbone,
    tiny: Callable[[str], PreTrainedModel],
    plain: Decoding,
    write: Callable[..., Decoding],
) -> None:
    sampling = Sampling()
    decoding = write(
        llama, Branching(plain.token_ids), prompt_ids=PROMPT, seed=1, max_new_tokens=12
    )
    assert decoding.output_ids == plain.output_ids[:12]
    assert [len(step.committed) for step in decoding.steps] == [3, 3, 3, 3]
    with torch.inference_mode():
        logits = tiny("llama")(input_ids=torch.tensor([plain.token_ids])).logits[0]
    p = final_probabilities(logits, sampling)  # (T, V)
    noise = Noise(1)
    position = len(PROMPT)
    for index, step in enumerate(decoding.steps):
        assert step.index == index and step.context_length == position
        assert step.root.id == plain.token_ids[position - 1]
        assert step.root.text == f"w{step.root.id}"
        assert (step.rows, step.forwards) == (6, 1)
        assert (step.budget.rows, step.budget.expected) == (6, 3.0)
        assert step.insight == {"kind": "toy", "step": position}
        tree = step.tree
        assert tree.status == ("rejected", "accepted", "rejected", "accepted", "unreached")
        assert tree.depths == (0, 0, 1, 1, 1)
        assert tree.texts == tuple(f"w{token}" for token in tree.token_ids)
        assert tree.origins[1] == ("a", "b")
        assert tree.trials == (None,) * 5
        assert tree.log_p[1] == pytest.approx(
            float(p[position - 1, tree.token_ids[1]].log()), rel=1e-5
        )
        assert [token.source for token in step.committed] == ["draft", "draft", "verifier"]
        assert step.noise[:2] == (noise.u(position, "pick"), noise.u(position + 1, "pick"))
        assert set(step.candidates) == {"-1", "1", "3"}
        for offset, (row, token) in enumerate(zip(("-1", "1", "3"), step.committed, strict=True)):
            at = p[position + offset - 1]
            low, high = token.interval
            u = noise.u(position + offset, "pick")
            assert low <= u < high
            assert token.margin == pytest.approx(min(u - low, high - u))
            assert high - low == pytest.approx(float(at[token.id]), abs=1e-9)
            assert token.text == f"w{token.id}"
            assert base64.b64decode(token.bytes) == token.text.encode()
            shown = [candidate.p for candidate in step.candidates[row]]
            assert shown == sorted(shown, reverse=True) and len(shown) == 5
            assert shown[0] == pytest.approx(float(at.max()), rel=1e-5)
        position += 3
    assert all(second.index == first.index + 1 for first, second in pairwise(decoding.steps))


def test_a_greedy_step_records_the_gap_of_its_logits(
    llama: Backbone, tiny: Callable[[str], PreTrainedModel], write: Callable[..., Decoding]
) -> None:
    decoding = write(llama, Autoregressive(), prompt_ids=PROMPT, sampling=GREEDY, max_new_tokens=5)
    with torch.inference_mode():
        logits = tiny("llama")(input_ids=torch.tensor([decoding.token_ids])).logits[0]
    for step in decoding.steps:
        row = logits[step.context_length - 1]
        first, second = row.topk(2).values.tolist()
        (token,) = step.committed
        assert token.margin == pytest.approx(first - second, rel=1e-5)
        assert token.interval == (0.0, 1.0)
        # Greedy leaves one token; what it was chosen from is told at temperature 1.
        best = row.softmax(-1).topk(5)
        assert [one.id for one in step.candidates["-1"]] == best.indices.tolist()
        shown = [one.p for one in step.candidates["-1"]]
        assert shown == pytest.approx(best.values.tolist(), rel=1e-4)


def test_a_token_of_no_probability_has_no_log(
    llama: Backbone, write: Callable[..., Decoding]
) -> None:
    decoding = write(
        llama, Copying([*PROMPT, *range(20)]), prompt_ids=PROMPT, sampling=GREEDY, max_new_tokens=9
    )
    log_p = [value for step in decoding.steps for value in step.tree.log_p]
    assert None in log_p and set(log_p) <= {None, 0.0}


def test_an_empty_draft_says_why(llama: Backbone, write: Callable[..., Decoding]) -> None:
    plainly = write(llama, Autoregressive(), prompt_ids=PROMPT, max_new_tokens=2)
    assert plainly.steps[0].insight == {"kind": "empty", "why": "Plain decoding never drafts."}
    looked_up = write(llama, PromptLookup(), prompt_ids=(1, 2, 3), max_new_tokens=1)
    assert looked_up.steps[0].insight == {"kind": "empty", "why": "One token is left to write."}
