"""Whatever drafts, the text under `coupled` is plain sampling's, token for token."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtp.decode import Decoding
from mtp.drafters.ar import Autoregressive
from mtp.drafters.base import Context, Draft, Drafter, Outcome, ProbeOutput
from mtp.drafters.pld import PromptLookup
from mtp.models.backbone import Backbone
from mtp.models.load import load_model
from mtp.models.vocabulary import Vocabulary
from mtp.records.trace import Committed, Kind
from mtp.sampling import Sampling, Stream, pick
from mtp.tree import ROOT, DraftTree

ARCHITECTURES = ("llama", "qwen3", "gpt2", "gemma2", "mistral")
SEEDS = range(5)
NEW_TOKENS = 64

# What architecture.md calls a near-tie, for float32.
NEAR_EDGE = 2e-5  # noise to the edge of an interval
NEAR_GAP = 1e-3  # between the two largest logits, when greedy


class Foreseeing:
    """Drafts trees along a text known beforehand, most of the time, among branches that fall."""

    name = "foreseeing"
    hidden_layers: tuple[int, ...] = ()

    def __init__(self, text: Sequence[int], vocabulary_size: int) -> None:
        self.text = list(text)
        self.vocabulary_size = vocabulary_size

    def propose(self, context: Context) -> Draft:
        position = len(context.token_ids)
        random = np.random.default_rng([position, len(self.text)])
        token_ids: list[int] = []
        parents: list[int] = []
        deepest = ROOT
        for depth in range(min(4, context.most_depth)):
            siblings = [int(t) for t in random.choice(self.vocabulary_size, 2, replace=False)]
            true = self.text[position + depth]
            if true not in siblings and random.random() < 0.8:
                siblings.insert(int(random.integers(3)), true)
            first = len(token_ids)
            token_ids += siblings
            parents += [deepest] * len(siblings)
            astray = first + next((i for i, t in enumerate(siblings) if t != true), 0)
            if depth + 1 < context.most_depth:  # a branch goes on below a node that will fall
                token_ids.append(int(random.integers(self.vocabulary_size)))
                parents.append(astray)
            if true not in siblings:
                break
            deepest = first + siblings.index(true)
        size = len(token_ids)
        kind: Kind = "deterministic"
        return Draft(
            DraftTree(
                token_ids=tuple(token_ids),
                parents=tuple(parents),
                log_q=(-1.0,) * size,
                kind=(kind,) * size,
                origins=((self.name,),) * size,
            )
        )

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        pass


class Guessing:
    """Samples with the verifier's own noise from a q that leans to a text known beforehand.

    A second sibling, drawn with other noise, may repeat the first one's token.
    """

    name = "guessing"
    hidden_layers: tuple[int, ...] = ()

    def __init__(self, text: Sequence[int], vocabulary_size: int) -> None:
        self.text = list(text)
        self.vocabulary_size = vocabulary_size

    def propose(self, context: Context) -> Draft:
        position = len(context.token_ids)
        token_ids: list[int] = []
        parents: list[int] = []
        q: dict[int, Tensor] = {}
        parent = ROOT
        for depth in range(min(4, context.most_depth)):
            row = torch.full((self.vocabulary_size,), 0.4 / self.vocabulary_size).double()
            row[self.text[position + depth]] += 0.6
            q[parent] = row
            streams: tuple[Stream, ...] = ("pick", "draft")
            token_ids += [pick(context.noise.u(position + depth, s), row) for s in streams]
            parents += [parent, parent]
            parent = len(token_ids) - 2  # below the one drawn with the verifier's noise
        size = len(token_ids)
        kind: Kind = "sampled"
        log_q = [float(q[p][t].log()) for p, t in zip(parents, token_ids, strict=True)]
        return Draft(
            DraftTree(
                token_ids=tuple(token_ids),
                parents=tuple(parents),
                log_q=tuple(log_q),
                kind=(kind,) * size,
                origins=((self.name,),) * size,
                q=q,
            )
        )

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        pass


def tally(decoding: Decoding) -> Counter[str]:
    return Counter(status for step in decoding.steps for status in step.tree.status)


def drafters(text: Sequence[int], vocabulary_size: int, seed: int) -> Iterator[tuple[str, Drafter]]:
    """A chain and a tree of many candidates; on the first seeds lookups that branch and samples."""
    yield "pld", PromptLookup()
    yield "foreseeing", Foreseeing(text, vocabulary_size)
    if seed == 0:
        yield "pld branching", PromptLookup(budget=16, branches=4)
    if seed <= 1:
        yield "guessing", Guessing(text, vocabulary_size)


def assert_lossless(
    name: str,
    model: PreTrainedModel,
    sampling: Sampling,
    prompt: Callable[[int], tuple[int, ...]],
    write: Callable[..., Decoding],
    seeds: Sequence[int] = SEEDS,
) -> None:
    """Every drafter's text is plain sampling's, and its drafts both stood and fell."""
    backbone = Backbone(model)
    tallies: dict[str, Counter[str]] = {}
    for seed in seeds:
        request = {
            "prompt_ids": prompt(seed),
            "sampling": sampling,
            "seed": seed,
            "max_new_tokens": NEW_TOKENS,
        }
        plain = write(backbone, Autoregressive(), **request)
        assert len(plain.output_ids) == len(plain.steps) == NEW_TOKENS
        for drafter_name, drafter in drafters(plain.token_ids, backbone.vocabulary_size, seed):
            drafted = write(backbone, drafter, **request)
            assert drafted.output_ids == plain.output_ids, (name, drafter_name, seed)
            tallies.setdefault(drafter_name, Counter()).update(tally(drafted))
    for drafter_name, counts in tallies.items():
        for status in ("accepted", "rejected", "unreached"):
            assert counts[status] > 0, (drafter_name, counts)


@pytest.mark.parametrize("temperature", [0, 0.7, 1.0])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_drafts_leave_the_text_as_it_is(
    name: str,
    temperature: float,
    tiny: Callable[[str], PreTrainedModel],
    prompt: Callable[[int], tuple[int, ...]],
    write: Callable[..., Decoding],
) -> None:
    assert_lossless(name, tiny(name), Sampling(temperature), prompt, write)


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, top_k=3), Sampling(1.0, top_p=0.8), Sampling(0.7, 10, 0.9)]
)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_drafts_leave_the_text_as_it_is_with_tokens_removed(
    name: str,
    sampling: Sampling,
    tiny: Callable[[str], PreTrainedModel],
    prompt: Callable[[int], tuple[int, ...]],
    write: Callable[..., Decoding],
) -> None:
    assert_lossless(name, tiny(name), sampling, prompt, write, seeds=range(2))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_text_is_that_of_generate(
    name: str,
    tiny: Callable[[str], PreTrainedModel],
    prompt: Callable[[int], tuple[int, ...]],
    write: Callable[..., Decoding],
    generate: Callable[..., list[int]],
) -> None:
    model = tiny(name)
    for seed in SEEDS:
        greedy = {
            "prompt_ids": prompt(seed),
            "sampling": Sampling(temperature=0),
            "max_new_tokens": NEW_TOKENS,
        }
        drafted = write(Backbone(model), PromptLookup(branches=3), **greedy)
        assert drafted.token_ids == generate(model, prompt(seed), NEW_TOKENS)


# SmolLM2

SAMPLE = "The cat sat on the mat. The dog sat on the mat. The cat and the dog"
SAMPLE_RUNS = ((0.0, 0, 12), (0.7, 1, 64), (1.0, 2, 12))  # temperature, seed, tokens


@pytest.fixture(scope="module", params=["float64", "float32"])
def smollm2(
    request: pytest.FixtureRequest, smollm2_folder: Path
) -> Iterator[tuple[PreTrainedModel, Vocabulary]]:
    model, tokenizer, _ = load_model("smollm2", getattr(torch, request.param), "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    yield model, Vocabulary(tokenizer)
    torch.set_num_threads(threads)


@pytest.mark.smollm2
def test_a_sample_of_smollm2(
    smollm2: tuple[PreTrainedModel, Vocabulary],
    write: Callable[..., Decoding],
    generate: Callable[..., list[int]],
    record_property: Callable[[str, object], None],
) -> None:
    model, vocabulary = smollm2
    backbone = Backbone(model)
    ids = tuple(vocabulary.encode(SAMPLE, "raw"))
    total: Counter[str] = Counter()
    for temperature, seed, length in SAMPLE_RUNS:
        request = {
            "prompt_ids": ids,
            "sampling": Sampling(temperature),
            "seed": seed,
            "max_new_tokens": length,
        }
        plain = write(backbone, Autoregressive(), vocabulary, **request)
        if temperature == 0:
            assert plain.token_ids == generate(model, ids, length)
        for drafter in (
            PromptLookup(budget=6, branches=2),
            Foreseeing(plain.token_ids, backbone.vocabulary_size),
        ):
            drafted = write(backbone, drafter, vocabulary, **request)
            total.update(tally(drafted))
            total["tokens"] += length
            if drafted.output_ids == plain.output_ids:
                continue
            total["partings"] += 1
            assert model.dtype == torch.float32, (temperature, seed, drafter.name)
            assert_near_tie(drafted, plain, greedy=temperature == 0)
    record_property("partings", total["partings"])
    record_property("tokens", total["tokens"])
    print(f"SmolLM2 {model.dtype}: {total['partings']} partings in {total['tokens']} tokens")
    assert total["accepted"] > 20 and total["rejected"] > 10 and total["unreached"] > 5
    assert total["partings"] <= 2  # about 0.05 are to be expected in float32


def assert_near_tie(drafted: Decoding, plain: Decoding, greedy: bool) -> None:
    """The first token that differs lay next to an edge in one of the runs."""
    for mine, theirs in zip(committed(drafted), committed(plain), strict=True):
        if mine.id != theirs.id:
            assert min(mine.margin, theirs.margin) <= (NEAR_GAP if greedy else NEAR_EDGE)
            return


def committed(decoding: Decoding) -> list[Committed]:
    return [token for step in decoding.steps for token in step.committed]
