"""Parallel tokens: exact text, the oracle's calls, branches and gates against separate forwards."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from mtp.decode import Decoding, Request
from mtp.drafters.ar import Autoregressive
from mtp.drafters.base import Context
from mtp.drafters.build import make_drafter, weights_of
from mtp.drafters.ptp import Guess, ParallelTokens
from mtp.errors import InputError, ModelError
from mtp.models.backbone import Backbone, Block
from mtp.models.cache import PathCache
from mtp.models.lora import LowRankAdapter
from mtp.models.verifier import Verifier
from mtp.models.vocabulary import Vocabulary
from mtp.ptp.files import save_ptp, shelved
from mtp.ptp.weights import PtpConfig, PtpWeights, build_head, build_noise
from mtp.records.trace import DrafterWeights
from mtp.sampling import Noise, Sampling
from tests.mtp.drafters.test_exact_drafters import FOUR_PROMPT, RUNS, chance_of, exact_texts

SAMPLING = Sampling(0.7)

Tiny = Callable[[str], PreTrainedModel]
Write = Callable[..., Decoding]
Prompt = Callable[[int], tuple[int, ...]]
VARIANTS = ("o-ptp", "c-ptp", "independent")


def weights_for(
    model: PreTrainedModel,
    variant: str,
    strength: float = 0.1,
    head_layers: int = 0,
    rank: int = 3,
    head_context: int = 0,
) -> PtpWeights:
    """Random weights: a weak adapter, so that a draft is right now and then."""
    generator = torch.Generator().manual_seed(0)
    config = PtpConfig(
        variant=variant,  # type: ignore[arg-type]
        base_sha256="base",
        hidden=int(model.config.hidden_size),
        temperature=1.0,
        embedding="constant" if variant == "independent" else "binary",
        head_layers=head_layers,
        head_context=head_context,
        rank=rank,
    )
    depth = int(model.config.num_hidden_layers)
    adapter = None
    if rank:
        adapter = LowRankAdapter(model, range(depth), 3, 3, generator=generator).to(model.dtype)
        for up in adapter.up:
            up.data = strength * torch.randn(up.shape, generator=generator).to(up)
    noise = build_noise(config, model, generator).to(model.dtype)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = build_head(config, model)
    if head is not None:
        torch.nn.init.normal_(head.out.weight, std=strength, generator=generator)
    return PtpWeights(config, adapter, noise, head)


class Oracle(ParallelTokens):
    """Knows the text; its confidence is right."""

    def __init__(self, text: list[int], *args: Any) -> None:
        super().__init__(*args)
        self.text = text

    def _guesses(self, logits: Tensor, places: list[int], context: Context) -> list[Guess]:
        shift = 1 if self.name == "c-ptp" else 0
        tokens = [self.text[min(place + shift, len(self.text) - 1)] for place in places]
        q = torch.nn.functional.one_hot(torch.tensor(tokens), logits.shape[1]).double()
        rows = q if self.name == "c-ptp" else [None] * len(tokens)
        return [Guess(token, 0.0, 1.0, row) for token, row in zip(tokens, rows, strict=True)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("most", [2, 5, 8])
@pytest.mark.parametrize(
    ("head_layers", "rank", "branching", "sampling"),
    [
        (0, 3, "partial", Sampling(1.0)),
        (0, 3, "full", Sampling(0.7)),
        (1, 3, "partial", Sampling(1.0, top_p=0.8)),
        (1, 3, "single", Sampling(0.0)),
        (1, 0, "partial", Sampling(1.2, top_k=20)),
    ],
)
def test_an_oracles_drafts_all_stand(
    variant: str,
    most: int,
    head_layers: int,
    rank: int,
    branching: str,
    sampling: Sampling,
    tiny: Tiny,
    prompt: Prompt,
    write: Write,
) -> None:
    backbone = Backbone(tiny("llama"))
    request = {"prompt_ids": prompt(1), "sampling": sampling, "max_new_tokens": 41}
    plain = write(backbone, Autoregressive(), **request)
    weights = weights_for(tiny("llama"), variant, 0.4, head_layers, rank)
    oracle = Oracle(plain.token_ids, weights, backbone, most, most + 1, branching)
    run = write(backbone, oracle, **request)
    assert run.output_ids == plain.output_ids
    assert len(run.steps) <= math.ceil(41 / most) + 1
    statuses = {status for step in run.steps for status in step.tree.status}
    assert statuses == {"accepted"}


@pytest.mark.parametrize("temperature", [0, 0.5, 0.7, 1.0, 1.2])
@pytest.mark.parametrize(
    ("name", "head_layers", "rank", "head_context"),
    [("llama", 0, 3, 0), ("llama", 2, 3, 0), ("qwen3", 0, 3, 0), ("mistral", 2, 0, 9)],
)
def test_the_text_is_plain_samplings(
    name: str,
    head_layers: int,
    rank: int,
    head_context: int,
    temperature: float,
    tiny: Tiny,
    prompt: Prompt,
    write: Write,
) -> None:
    backbone = Backbone(tiny(name))
    found: Counter[str] = Counter()
    layouts = [
        {"most": 4, "budget": 6},
        {"most": 8, "budget": 40},
        {"most": 4, "branching": "full"},
        {"most": 5, "budget": 4, "branching": "single"},
    ]
    for seed in range(2):
        request = {
            "prompt_ids": prompt(seed),
            "sampling": Sampling(temperature),
            "seed": seed,
            "max_new_tokens": 32,
        }
        plain = write(backbone, Autoregressive(), **request)
        for variant in VARIANTS:
            for layout in layouts:
                weights = weights_for(tiny(name), variant, 0.1, head_layers, rank, head_context)
                made = ParallelTokens(weights, backbone, **layout)
                run = write(backbone, made, **request)
                assert run.output_ids == plain.output_ids, (variant, layout, seed)
                assert all(step.forwards == 1 for step in run.steps)
                assert all(step.rows <= step.budget.rows for step in run.steps), layout
                found.update(status for step in run.steps for status in step.tree.status)
                assert run.steps[-1].rows <= 2 + len(run.steps[-1].tree.token_ids) + 40
    assert found["accepted"] > 10 and found["rejected"] > 10


@pytest.mark.parametrize(
    ("variant", "head_layers"), [*((one, 0) for one in VARIANTS), ("o-ptp", 1), ("c-ptp", 1)]
)
def test_rejection_keeps_the_distribution(
    variant: str, head_layers: int, tiny: Tiny, write: Write
) -> None:
    model = tiny("llama-four-deep")
    backbone, weights = Backbone(model), weights_for(model, variant, 0.1, head_layers)
    sampling = Sampling(1.5)
    found: Counter[tuple[int, ...]] = Counter()
    statuses: Counter[str] = Counter()
    for seed in range(RUNS):
        run = write(
            backbone,
            ParallelTokens(weights, backbone, 3, 8),
            prompt_ids=FOUR_PROMPT,
            sampling=sampling,
            seed=seed,
            verification="rejection",
            max_new_tokens=3,
        )
        found[tuple(run.output_ids)] += 1
        statuses.update(status for step in run.steps for status in step.tree.status)
    assert statuses["accepted"] + statuses["rejected"] > RUNS / 2
    if variant != "independent":  # whose one guess here never stands
        assert statuses["accepted"] > 20 and statuses["rejected"] > 20
    assert chance_of(found, exact_texts(backbone, sampling)) > 1e-3


def block_of(made: ParallelTokens, guesses: list[int], backbone: Backbone, prompt: list[int]):  # type: ignore[no-untyped-def]
    """A step's block with these drafts, and the cache of the prompt before its last token."""
    made._foresee = lambda context: [Guess(token, -0.5, 0.6) for token in guesses]  # type: ignore[method-assign]
    context = Context(
        token_ids=prompt,
        prompt_length=len(prompt),
        hidden={},
        noise=Noise(5),
        sampling=Sampling(1.0),
        verification="coupled",
        most_depth=30,
        room=100,
    )
    draft = made.propose(context)
    cache = PathCache()
    backbone.prefill(prompt[:-1], cache)
    return draft, cache


LAYOUTS = [{"branching": "full"}, {"budget": 9}, {"budget": 5, "branching": "single"}]
MANY_LAYOUTS = [
    (most, drafts, layout)
    for most, drafts in [(2, 1), (4, 0), (4, 3), (7, 2), (7, 6)]
    for layout in [*LAYOUTS, {"budget": 2}, {"budget": 3, "branching": "single"}, {"budget": 40}]
]


@pytest.mark.parametrize(("most", "drafts", "layout"), MANY_LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_the_adapter_base_rows_and_cache_are_bit_equal(
    dtype: torch.dtype, most: int, drafts: int, layout: dict, tiny: Tiny
) -> None:
    model = copy.deepcopy(tiny("llama")).to(dtype)
    backbone = Backbone(model)
    made = ParallelTokens(weights_for(model, "o-ptp", 0.5), backbone, most, **layout)
    prompt, guesses = [3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8][:drafts]
    draft, cache = block_of(made, guesses, backbone, prompt)
    _, other = block_of(made, guesses, backbone, prompt)
    gated = backbone.forward(Block(prompt[-1], draft.tree, draft.probes), cache)
    without = replace(draft.probes, adapter=None)
    plain = backbone.forward(Block(prompt[-1], draft.tree, without), other)
    base = 1 + len(draft.tree)
    assert torch.equal(gated.logits[:base], plain.logits[:base])
    assert not torch.equal(gated.logits[base:], plain.logits[base:])
    cache.keep(range(base))
    other.keep(range(base))
    for mine, theirs in zip(cache.layers, other.layers, strict=True):
        kept = cache.length
        assert torch.equal(mine.keys[..., :kept, :], theirs.keys[..., :kept, :])
        assert torch.equal(mine.values[..., :kept, :], theirs.values[..., :kept, :])


def merged(model: PreTrainedModel, adapter: LowRankAdapter) -> PreTrainedModel:
    """A copy of the model that has the adapter in its own weights, on all rows."""
    own = copy.deepcopy(model)
    for name, down, up in zip(adapter.names, adapter.down, adapter.up, strict=True):
        weight = own.get_submodule(name).weight.data
        weight += adapter.alpha / adapter.rank * (up @ down).detach().to(weight)
    return own


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("layout", [*LAYOUTS, {"budget": 40}])
@pytest.mark.parametrize(("dtype", "gap"), [(torch.float64, 1e-8), (torch.float32, 2e-3)])
def test_each_branch_is_a_forward_of_its_prefix_and_noise(
    dtype: torch.dtype, gap: float, layout: dict, name: str, variant: str, tiny: Tiny
) -> None:
    """By `transformers` alone: the base reads the text, then the base with the adapter in its
    weights reads the noise behind it.
    """
    model = copy.deepcopy(tiny(name)).to(dtype)
    weights = weights_for(model, variant, 0.3)
    made = ParallelTokens(weights, Backbone(model), 5, **layout)
    prompt, drafts = [3, 1, 4, 1, 5, 9], [2, 6, 5]
    draft, cache = block_of(made, drafts, made.backbone, prompt)
    rows = made.backbone.forward(Block(prompt[-1], draft.tree, draft.probes), cache).logits
    reads_noise, owners = merged(model, weights.adapter), draft.probes.owner
    with torch.inference_mode():
        for owner in sorted(set(owners)):
            mine = [row for row, one in enumerate(owners) if one == owner]
            text = prompt + drafts[: owner + 1]
            known = DynamicCache()
            model(input_ids=torch.tensor([text]), past_key_values=known, use_cache=True)
            places = len(text) - 1 + torch.arange(len(mine))
            apart = reads_noise(
                inputs_embeds=draft.probes.embeds[mine][None],
                position_ids=places[None],
                attention_mask=torch.ones(1, len(text) + len(mine)),
                past_key_values=known,
            ).logits[0]
            together = rows[[1 + len(drafts) + row for row in mine]]
            assert (together - apart).abs().max() < gap
            plain = model(input_ids=torch.tensor([text])).logits[0, -1]
            assert (apart - plain).abs().max() > 0.1  # noise and adapter say something else


def test_rows_read_the_noise_of_their_place(tiny: Tiny) -> None:
    model = tiny("llama")
    weights = weights_for(model, "o-ptp")
    made = ParallelTokens(weights, Backbone(model), 4, branching="full")
    prompt = [3, 1, 4, 1, 5, 9]
    draft, _ = block_of(made, [2, 6], Backbone(model), prompt)
    noise = Noise(5)
    for row, (owner, slot) in enumerate(zip(draft.probes.owner, draft.probes.slot, strict=True)):
        u = torch.tensor(noise.u(len(prompt) + owner + 1 + slot, "pick")).double()
        torch.testing.assert_close(draft.probes.embeds[row], weights.noise(u).detach())
    assert draft.insight()["branches"][0][:2] == [0, 4]  # type: ignore[operator]


class Retold(ParallelTokens):
    """Foresees behind each branch in turn as the next step would, had the text ended there."""

    def _proposed(self, sizes: list[int], context: Context) -> list[dict[str, Any] | None]:
        found = super()._proposed(sizes, context)
        assert self._seen is not None
        outcome, probes = self._seen
        before, below = self._states, self._below
        start = 0
        for d, size in enumerate(sizes):
            said = found[d]
            assert (said is None) == (size <= self.replaced)
            if said is not None:
                drafts = outcome.draft.tree.token_ids[:d]
                text = [*context.token_ids, *drafts, said["own"]["id"]]
                if self.hidden_layers:
                    states = outcome.hidden[-1][: d + 1]
                    known = states if before is None else torch.cat([before, states])
                    self._states = known[-(self.weights.config.head_context + 1) :]
                self._below = self._branch(probes, start, start + size)
                alone = self._foresee(replace(context, token_ids=text))
                assert said["token_ids"] == [guess.token for guess in alone]
                assert len(said["token_ids"]) == size - self.replaced
            start += size
        self._states, self._below = before, below
        return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("head_layers", "head_context"), [(0, 0), (1, 0), (2, 9)])
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_the_record_tells_what_each_branch_proposed(
    verification: str,
    head_layers: int,
    head_context: int,
    variant: str,
    tiny: Tiny,
    prompt: Prompt,
    write: Write,
) -> None:
    model = tiny("llama")
    weights = weights_for(model, variant, 0.1, head_layers, 3, head_context)
    layouts: list[dict[str, Any]] = [{"budget": 9}, {"branching": "full"}, {"branching": "single"}]
    went_on = lost = 0
    for layout in layouts:
        for seed, length in ((0, 12), (1, 1)):
            made = Retold(weights, Backbone(model), 4, text_of=lambda token: f"<{token}>", **layout)
            run = write(
                Backbone(model),
                made,
                prompt_ids=prompt(seed)[:length],
                sampling=Sampling(1.0),
                seed=seed,
                verification=verification,
                max_new_tokens=24,
            )
            for step, after in zip(run.steps, run.steps[1:], strict=False):
                proposed = (step.insight or {}).get("proposed", [])
                goes_on = (after.insight or {}).get("from")
                lost += sum(one is not None for one in proposed) - (goes_on is not None)
                if goes_on is None:
                    continue
                said = proposed[goes_on]
                assert step.tree.status.count("accepted") == goes_on
                assert said["own"]["id"] == step.committed[goes_on].id == after.root.id
                assert said["texts"] == [f"<{token}>" for token in said["token_ids"]]
                drafted = after.tree.token_ids
                assert drafted == tuple(said["token_ids"][: len(drafted)])
                went_on += bool(drafted)
    assert went_on > 10 and lost > 10


def test_measuring_tells_no_proposals(tiny: Tiny, tiny_vocabulary: Vocabulary) -> None:
    """In a brief run the head does not run for branches that nobody looks at."""
    model = tiny("llama")
    made = ParallelTokens(weights_for(model, "o-ptp", head_layers=1), Backbone(model), 4)
    made._proposed = lambda *_: pytest.fail("asked")  # type: ignore[method-assign,misc]
    request = Request(prompt_ids=(1, 2, 3), max_new_tokens=12)
    decoding = Decoding(Backbone(model), tiny_vocabulary, made, request, brief=True)
    assert len(list(decoding)) > 2
    assert all((step.insight or {}).get("kind") in (None, "empty") for step in decoding.steps)


def test_few_tokens_left_and_near_the_context_limit(
    tiny: Tiny, prompt: Prompt, write: Write
) -> None:
    backbone = Backbone(tiny("llama-short"))
    for length in (1, 5, 20, 22, 23):
        ids = (prompt(0) * 2)[:length]
        for new in (1, 2, 3, 64):
            plain = write(backbone, Autoregressive(), prompt_ids=ids, max_new_tokens=new)
            for variant in VARIANTS:
                made = ParallelTokens(weights_for(tiny("llama-short"), variant), backbone, 5, 12)
                run = write(backbone, made, prompt_ids=ids, max_new_tokens=new)
                assert run.output_ids == plain.output_ids, (variant, length, new)
                assert run.stop_reason == plain.stop_reason


def test_drafters_on_disk(
    tiny: Tiny, tiny_vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama")
    verifier = Verifier("tiny", "base", Backbone(model), tiny_vocabulary)
    weights = weights_for(model, "c-ptp", head_layers=1)
    gains, stands = (0.9, 1.6), ((0.0, 0.1), (0.5, 0.5), (1.0, 0.9))
    weights = replace(weights, config=replace(weights.config, gains=gains, stands=stands))
    save_ptp(weights, tmp_path / "mine", "tiny", {"steps": 3}, torch.float32)
    made = make_drafter("c-ptp", {"weights": str(tmp_path / "mine")}, verifier, SAMPLING)
    assert isinstance(made, ParallelTokens)
    assert weights_of(made) == (DrafterWeights("c-ptp", "mine", made.weights.sha256()),)
    assert made.text_of(3) == tiny_vocabulary.text_of(3)
    assert made.weights.config == weights.config
    assert made.weights.config.chance(0.25) == pytest.approx(0.3)
    assert made.weights.config.chance(2.0) == 0.9
    torch.testing.assert_close(made.weights.noise.table, weights.noise.table.float())
    head = made.weights.head
    assert head is not None and weights.head is not None
    for mine, theirs in zip(head.parameters(), weights.head.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(InputError, match="is c-ptp, not o-ptp"):
        make_drafter("o-ptp", {"weights": str(tmp_path / "mine")}, verifier, SAMPLING)
    with pytest.raises(InputError, match="There is no independent trained for tiny"):
        make_drafter("independent", {}, verifier, SAMPLING)
    with pytest.raises(InputError, match="works alone"):
        make_drafter("o-ptp+pld", {}, verifier, SAMPLING)
    for temperature in (0.7, 1.0):  # of several, the one trained for the nearest temperature
        config = replace(weights.config, temperature=temperature)
        save_ptp(replace(weights, config=config), tmp_path / f"at-{temperature}", "tiny")
    for asked, nearest in ((0.0, "at-0.7"), (0.8, "at-0.7"), (0.9, "at-1.0"), (1.3, "at-1.0")):
        assert shelved("c-ptp", verifier, Sampling(asked), tmp_path) == tmp_path / nearest
    monkeypatch.setattr("mtp.ptp.files.SHELF", tmp_path)
    warm = make_drafter("c-ptp", {}, verifier, Sampling(0.95))
    assert isinstance(warm, ParallelTokens) and warm.weights.config.temperature == 1.0
    (tmp_path / "mine" / "ptp.json").unlink()
    cold = make_drafter("c-ptp", {}, verifier, SAMPLING)
    assert isinstance(cold, ParallelTokens) and cold.weights.config.temperature == 0.7
    assert [one.folder for one in weights_of(warm)] == ["at-1.0"]
    assert [one.folder for one in weights_of(cold)] == ["at-0.7"]
    narrow = replace(weights.config, temperature=0.7, top_p=0.9)
    save_ptp(replace(weights, config=narrow), tmp_path / "at-0.7-p0.9", "tiny")
    found = shelved("c-ptp", verifier, Sampling(0.7, top_p=0.9))
    assert found == tmp_path / "at-0.7-p0.9"
    save_ptp(weights, tmp_path / "mine", "tiny")
    (tmp_path / "mine" / "noise.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelError, match="cannot be read"):
        make_drafter("c-ptp", {"weights": str(tmp_path / "mine")}, verifier, SAMPLING)
