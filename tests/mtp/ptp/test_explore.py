"""The explorer's tokens are the drafter's and plain sampling's; one call a question."""

import pytest
import torch

from mtp.decode import Decoding, Request
from mtp.drafters.ar import Autoregressive
from mtp.errors import InputError
from mtp.models.backbone import Backbone, Block
from mtp.models.cache import PathCache
from mtp.ptp.explore import SWEPT, NoiseExplorer, impossible_pairs
from mtp.records.noise import Foreseen
from mtp.sampling import Noise, Sampling, final_probabilities, pick
from tests.mtp.drafters.test_ptp import VARIANTS, weights_for

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SAMPLING = Sampling(1.0)


@pytest.fixture
def explorer(tiny, tiny_vocabulary):
    model = tiny("llama")
    drafters = {variant: weights_for(model, variant, 0.3) for variant in VARIANTS}
    return NoiseExplorer(Backbone(model), tiny_vocabulary, drafters, PROMPT, SAMPLING)


def noise_of(seed, count=5):
    return [Noise(seed).u(len(PROMPT) + place, "pick") for place in range(count)]


@pytest.mark.parametrize("seed", range(3))
def test_plain_tokens_are_those_of_decoding(seed, explorer, tiny_vocabulary):
    request = Request(tuple(PROMPT), SAMPLING, seed, max_new_tokens=5)
    decoding = Decoding(explorer.backbone, tiny_vocabulary, Autoregressive(), request)
    for _ in decoding:
        pass
    view = explorer.view(noise_of(seed))
    assert [one.id for one in view.plain] == decoding.output_ids
    for one in view.plain:
        assert one.interval[0] <= one.u < one.interval[1]
        assert any(low <= one.u < high and text == one.text for text, low, high in one.strip)
        assert list(one.strip) == sorted(one.strip, key=lambda part: part[1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_drafted_tokens_are_one_forward_of_the_noise(variant, explorer):
    noise = noise_of(7)
    before = explorer.backbone.forwards
    drafted = explorer._draft(variant, [noise])
    assert explorer.backbone.forwards == before + 1
    weights = explorer.drafters[variant]
    embeds = torch.cat(
        [
            explorer.backbone.model.get_input_embeddings()(torch.tensor(PROMPT)),
            weights.noise(torch.tensor(noise, dtype=torch.float64)),
        ]
    )[None]
    places = [*range(len(PROMPT)), *(len(PROMPT) - 1 + j for j in range(5))]
    with torch.inference_mode(), weights.adapter.gate(explorer.backbone.model, len(PROMPT)):
        rows = explorer.backbone.model(
            inputs_embeds=embeds, position_ids=torch.tensor([places])
        ).logits[0, len(PROMPT) - 1 :]
    if variant == "c-ptp":
        p = final_probabilities(rows[:-1], SAMPLING)
        wanted = [pick(u, row) for u, row in zip(noise, p, strict=True)]
    else:
        wanted = rows[1:].argmax(-1).tolist()
    assert drafted.tokens[0] == wanted


def test_what_the_verifier_thinks_of_drafted_tokens(explorer):
    noise = noise_of(2)
    for one in explorer.view(noise).foreseen.values():
        ids = [token.id for token in one]
        cache = PathCache()
        explorer.backbone.prefill(PROMPT[:-1], cache)
        for place, token in enumerate(one):
            text = [*PROMPT, *ids[:place]]
            alone = PathCache()
            explorer.backbone.prefill(text[:-1], alone)
            row = explorer.backbone.forward(Block(text[-1]), alone).logits[-1]
            p = final_probabilities(row, SAMPLING)
            assert token.verifier == pytest.approx(float(p[token.id]), abs=1e-9)
            assert token.picked == (pick(noise[place], p) == token.id)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_sweep_is_a_view_for_each_value(variant, explorer):
    noise = noise_of(4)
    sweep = explorer.sweep(variant, noise, 1)
    assert len(sweep.noise) == SWEPT and len(sweep.texts[0]) == 4
    for index in (0, 11, SWEPT - 1):
        changed = [noise[0], sweep.noise[index], *noise[2:]]
        alone = explorer._draft(variant, [changed]).tokens[0]
        texts = tuple(explorer.vocabulary.text_of(token) for token in alone[1:])
        assert sweep.texts[index] == texts
    if variant == "independent":  # blind: nothing moves
        assert len(set(sweep.texts)) == 1


def test_a_question_leaves_the_context_as_it_was(explorer):
    first = explorer.view(noise_of(1))
    explorer.sweep("o-ptp", noise_of(3), 0)
    assert explorer.view(noise_of(1)) == first


def test_impossible_pairs_are_counted():
    tokens = [Foreseen(1, "a", 0.5, p, False) for p in (1e-9, 0.5, 1e-4, 0.2)]
    assert impossible_pairs(tokens) == pytest.approx(1 / 3)
    assert impossible_pairs(tokens[:1]) == 0.0


def test_noise_and_places_are_checked(explorer):
    for wrong in ([], [1.0], [-0.1], [float("nan")]):
        with pytest.raises(InputError, match="Noise values are numbers from 0"):
            explorer.view(wrong)
    with pytest.raises(InputError, match="The place is 9"):
        explorer.sweep("o-ptp", [0.5], 9)
    with pytest.raises(InputError, match="There is no drafter 'x'"):
        explorer.sweep("x", [0.5], 0)
