"""Training-free drafters and unions: plain sampling's text, one forward a step, no crash."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtp.decode import Decoding
from mtp.drafters.ar import Autoregressive
from mtp.drafters.base import Drafter
from mtp.drafters.draft_model import DraftModel
from mtp.drafters.esp import EmbeddingProbing
from mtp.drafters.lookahead import Lookahead
from mtp.drafters.pld import PromptLookup
from mtp.drafters.stand import AdaptiveNgrams
from mtp.drafters.union import Union
from mtp.models.backbone import Backbone
from mtp.sampling import Sampling, final_probabilities

ARCHITECTURES = ("llama", "qwen3", "gpt2", "gemma2", "mistral")
SEEDS = range(3)
NEW_TOKENS = 48
WHOLE = (range(5), 64)  # seeds and tokens on llama
Make = Callable[[], Drafter]
Prompt = Callable[[int], tuple[int, ...]]
Write = Callable[..., Decoding]


def makers(backbone: Backbone, small: Backbone) -> dict[str, Make]:
    """Chains, trees and unions by label; `small` is the draft model."""
    size = backbone.vocabulary_size

    def esp(**options: object) -> EmbeddingProbing:
        return EmbeddingProbing(backbone, **options)  # type: ignore[arg-type]

    return {
        "esp": lambda: esp(masks=1, budget=20),
        "esp of two masks": lambda: esp(masks=2, init="last", update=0.1, budget=30),
        "esp as a chain": lambda: esp(masks=3, tree="1,1,1", init="sample"),
        "esp as a fixed tree": lambda: esp(masks=2, tree="6,3"),
        "lookahead": lambda: Lookahead(backbone),
        "lookahead of pairs": lambda: Lookahead(backbone, n=2, window=3, guesses=2, pool="window"),
        "stand": lambda: AdaptiveNgrams(budget=16),
        "draft-model": lambda: DraftModel(small, size, length=4),
        "esp+stand": lambda: Union([esp(budget=24), AdaptiveNgrams(budget=11)], 24, 11),
        "esp+pld": lambda: Union([esp(budget=24), PromptLookup(budget=11)], 24, 11),
        "esp+stand+lookahead": lambda: Union(
            [esp(masks=2, budget=60), AdaptiveNgrams(15), Lookahead(backbone)], 60, 14
        ),
        "draft-model+stand": lambda: Union(
            [DraftModel(small, size, length=4), AdaptiveNgrams(12)], 12, 11
        ),
        "stand+draft-model+esp": lambda: Union(
            [AdaptiveNgrams(12), DraftModel(small, size, length=3), esp(budget=24)], 24, 11
        ),
    }


@pytest.fixture(scope="module")
def small(tiny: Callable[[str], PreTrainedModel]) -> Backbone:
    """A draft model whose guesses are good and bad: the tiny llama with a disturbed last layer."""
    return Backbone(disturbed(tiny("llama"), 0.5))


def disturbed(model: PreTrainedModel, strength: float) -> PreTrainedModel:
    """A copy with noise on its output head."""
    import copy

    other = copy.deepcopy(model)
    weight = other.get_output_embeddings().weight
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    weight.data += strength * weight.std() * noise.to(weight)
    return other


@pytest.mark.parametrize("temperature", [0, 0.7, 1.0])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_text_is_plain_samplings(
    name: str,
    temperature: float,
    tiny: Callable[[str], PreTrainedModel],
    prompt: Prompt,
    write: Write,
) -> None:
    backbone = Backbone(tiny(name))
    small = Backbone(disturbed(tiny(name), 0.5))
    counts: dict[str, Counter[str]] = {}
    seeds, length = WHOLE if name == "llama" else (SEEDS, NEW_TOKENS)
    for seed in seeds:
        request = {
            "prompt_ids": prompt(seed),
            "sampling": Sampling(temperature),
            "seed": seed,
            "max_new_tokens": length,
        }
        plain = write(backbone, Autoregressive(), **request)
        for label, make in makers(backbone, small).items():
            run = write(backbone, make(), **request)
            assert run.output_ids == plain.output_ids, (label, seed)
            assert all(step.forwards == 1 for step in run.steps), label
            assert all(step.rows <= step.budget.rows for step in run.steps), label
            statuses = (status for step in run.steps for status in step.tree.status)
            counts.setdefault(label, Counter()).update(statuses)
    for label, found in counts.items():
        assert found["rejected"], (label, found)
    assert sum(found["accepted"] > 0 for found in counts.values()) >= len(counts) - 4, counts


def test_every_drafter_is_right_and_wrong_somewhere(
    tiny: Callable[[str], PreTrainedModel], prompt: Prompt, write: Write
) -> None:
    """The test above would be worth little if nothing ever stood."""
    backbone = Backbone(tiny("gemma2"))
    small = Backbone(disturbed(tiny("gemma2"), 0.5))
    for label, make in makers(backbone, small).items():
        found: Counter[str] = Counter()
        for seed in SEEDS:
            run = write(
                backbone,
                make(),
                prompt_ids=prompt(seed),
                sampling=Sampling(0.7),
                seed=seed,
                max_new_tokens=NEW_TOKENS,
            )
            found.update(status for step in run.steps for status in step.tree.status)
        assert found["accepted"] >= 10 and found["rejected"] >= 10, (label, found)


@pytest.mark.parametrize("name", ["llama-short", "gpt2-short"])
@pytest.mark.parametrize("length", [5, 18, 21, 22, 23])
def test_near_the_context_limit(
    name: str, length: int, tiny: Callable[[str], PreTrainedModel], prompt: Prompt, write: Write
) -> None:
    backbone = Backbone(tiny(name))
    small = Backbone(disturbed(tiny(name), 0.5))
    ids = (prompt(0) * 2)[:length]
    plain = write(backbone, Autoregressive(), prompt_ids=ids, max_new_tokens=64)
    assert plain.stop_reason == "context"
    for label, make in makers(backbone, small).items():
        run = write(backbone, make(), prompt_ids=ids, max_new_tokens=64)
        assert run.stop_reason == "context", label
        assert run.output_ids == plain.output_ids, label


def test_few_tokens_left_and_short_prompts(
    tiny: Callable[[str], PreTrainedModel], small: Backbone, write: Write
) -> None:
    backbone = Backbone(tiny("llama"))
    for new in range(1, 6):
        request = {"prompt_ids": (7,), "sampling": Sampling(1.0), "max_new_tokens": new}
        plain = write(backbone, Autoregressive(), **request)
        for label, make in makers(backbone, small).items():
            run = write(backbone, make(), **request)
            assert run.output_ids == plain.output_ids, (label, new)
            last = run.steps[-1]
            if len(plain.output_ids) - sum(len(s.committed) for s in run.steps[:-1]) == 1:
                assert last.rows == 1, label  # nothing rides along when nothing can follow
                assert "left to write" in (last.insight or {}).get("why", ""), label


def test_empty_drafts_say_why(
    tiny: Callable[[str], PreTrainedModel], small: Backbone, prompt: Prompt, write: Write
) -> None:
    backbone = Backbone(tiny("gpt2"))
    for label, make in makers(backbone, small).items():
        for verification in ("coupled", "rejection"):
            run = write(
                backbone,
                make(),
                prompt_ids=prompt(1),
                sampling=Sampling(1.0),
                verification=verification,
                max_new_tokens=24,
            )
            for step in run.steps:
                if not step.tree.token_ids:
                    why = (step.insight or {}).get("why", "")
                    assert why.endswith("."), (label, step.index)


# Rejection: the verifier's distribution, by chi-square over all texts of three tokens.

RUNS = 600
FOUR_PROMPT = (0, 1, 2, 3, 1, 2, 0, 1)  # its last token stood before, so n-grams are drafted too


def exact_texts(backbone: Backbone, sampling: Sampling) -> Mapping[tuple[int, ...], float]:
    """The probability of each text of three tokens."""
    expected = {}
    for text in itertools.product(range(4), repeat=3):
        ids = torch.tensor([[*FOUR_PROMPT, *text]])
        with torch.inference_mode():
            logits = backbone.model(input_ids=ids, use_cache=False).logits[0]
        p: Tensor = final_probabilities(logits[len(FOUR_PROMPT) - 1 : -1], sampling)
        expected[text] = float(math.prod(float(p[i, token]) for i, token in enumerate(text)))
    return expected


def chance_of(found: Counter[tuple[int, ...]], expected: Mapping[tuple[int, ...], float]) -> float:
    """The chi-square test's p-value; cells with under 5 expected are pooled."""
    total = found.total()
    cells = [(found[text], total * p) for text, p in expected.items() if total * p >= 5]
    rare = [(found[text], total * p) for text, p in expected.items() if total * p < 5]
    if rare:
        cells.append((sum(f for f, _ in rare), sum(e for _, e in rare)))
    statistic = sum((f - e) ** 2 / e for f, e in cells)
    freedom = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2).double()))


def sampling_drafters(backbone: Backbone, small: Backbone) -> Iterator[tuple[str, Make]]:
    yield "draft-model", lambda: DraftModel(small, 4, length=2)
    yield (
        "draft-model+stand",
        lambda: Union([DraftModel(small, 4, length=2), AdaptiveNgrams(6)], 6, 5),
    )
    yield (
        "esp+draft-model",
        lambda: Union([EmbeddingProbing(backbone, budget=12), DraftModel(small, 4, 2)], 12, 5),
    )
    yield (
        "esp+stand",
        lambda: Union([EmbeddingProbing(backbone, budget=12), AdaptiveNgrams(6)], 12, 5),
    )
    yield "lookahead", lambda: Lookahead(backbone, n=2, window=3, guesses=2)


@pytest.mark.parametrize("index", range(5))
def test_rejection_keeps_the_distribution(
    index: int, tiny: Callable[[str], PreTrainedModel], write: Write
) -> None:
    backbone = Backbone(tiny("llama-four"))
    small = Backbone(disturbed(tiny("llama-four"), 0.7))
    label, make = list(sampling_drafters(backbone, small))[index]
    sampling = Sampling(1.5)  # flat enough to have many cells
    found: Counter[tuple[int, ...]] = Counter()
    statuses: Counter[str] = Counter()
    for seed in range(RUNS):
        run = write(
            backbone,
            make(),
            prompt_ids=FOUR_PROMPT,
            sampling=sampling,
            seed=seed,
            verification="rejection",
            max_new_tokens=3,
        )
        found[tuple(run.output_ids)] += 1
        statuses.update(status for step in run.steps for status in step.tree.status)
    assert statuses["accepted"] > RUNS / 10 and statuses["rejected"] > RUNS / 10
    p = chance_of(found, exact_texts(backbone, sampling))
    assert p > 1e-3, (label, p)


def test_shapes_recur(tiny: Callable[[str], PreTrainedModel], prompt: Prompt, write: Write) -> None:
    """After the shapes have been met, no template is built again."""
    backbone = Backbone(tiny("gpt2"))
    for masks, tree, shapes in ((1, "dynamic", 2), (2, "dynamic", 12), (2, "6,3", 2)):
        rebuilds = backbone.templates.rebuilds
        for seed in range(4):
            before = backbone.templates.rebuilds
            write(
                backbone,
                EmbeddingProbing(backbone, masks, budget=30, tree=tree),
                prompt_ids=prompt(seed),
                sampling=Sampling(1.0),
                seed=seed,
                max_new_tokens=NEW_TOKENS,
            )
            built = backbone.templates.rebuilds - before
        ends = 8  # the first block, and the last ones that grow smaller
        assert backbone.templates.rebuilds - rebuilds <= shapes + ends, (masks, tree)
        assert built <= 2  # the last run met next to nothing new
