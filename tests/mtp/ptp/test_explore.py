"""The explorer's tokens are the drafter's and plain sampling's; one call a question."""

from dataclasses import replace

import pytest
import torch

from mtp.decode import Decoding, Request
from mtp.drafters.ar import Autoregressive
from mtp.drafters.ptp import ParallelTokens
from mtp.errors import InputError, TraceError
from mtp.models.backbone import Backbone, Block
from mtp.models.cache import PathCache
from mtp.models.verifier import Verifier, load_verifier
from mtp.ptp.explore import SWEPT, NoiseExplorer
from mtp.ptp.question import context_of, explorer_of, noise_of, record, with_view
from mtp.records.noise import Foreseen, NoiseRecord, Question
from mtp.sampling import Noise, Sampling, final_probabilities, pick
from tests.mtp.drafters.test_ptp import VARIANTS, weights_for

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SAMPLING = Sampling(1.0)


@pytest.fixture
def explorer(tiny, tiny_vocabulary):
    model = tiny("llama")
    drafters = {variant: weights_for(model, variant, 0.3) for variant in VARIANTS}
    return NoiseExplorer(Backbone(model), tiny_vocabulary, drafters, PROMPT, SAMPLING)


def noises(seed, count=5):
    return [Noise(seed).u(len(PROMPT) + place, "pick") for place in range(count)]


@pytest.mark.parametrize("seed", range(3))
def test_plain_tokens_are_those_of_decoding(seed, explorer, tiny_vocabulary):
    request = Request(tuple(PROMPT), SAMPLING, seed, max_new_tokens=5)
    decoding = Decoding(explorer.backbone, tiny_vocabulary, Autoregressive(), request)
    for _ in decoding:
        pass
    view = explorer.view(noises(seed))
    assert [one.id for one in view.plain] == decoding.output_ids
    for one in view.plain:
        assert one.interval[0] <= one.u < one.interval[1]
        assert any(low <= one.u < high and text == one.text for text, low, high in one.strip)
        assert list(one.strip) == sorted(one.strip, key=lambda part: part[1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_drafted_tokens_are_one_forward_of_the_noise(variant, explorer):
    noise = noises(7)
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


@pytest.mark.parametrize("head_context", [0, 3, 20])
@pytest.mark.parametrize("variant", VARIANTS)
def test_with_a_head_the_first_token_is_the_verifiers_and_the_rest_the_drafters(
    variant, head_context, tiny, tiny_vocabulary
):
    """What the explorer foresees is what a decoding step drafts behind the same text."""
    model = tiny("llama")
    backbone, weights = Backbone(model), weights_for(model, variant, 0.3, 2, 3, head_context)
    explorer = NoiseExplorer(backbone, tiny_vocabulary, {variant: weights}, PROMPT, SAMPLING)
    drafter = ParallelTokens(weights, backbone, 5, 5, "single")
    request = Request(tuple(PROMPT), SAMPLING, 3, max_new_tokens=20)
    decoding = Decoding(backbone, tiny_vocabulary, drafter, request)
    steps = iter(decoding)
    first, second = next(steps), next(steps)
    foreseen = explorer.view(noises(3)).foreseen[variant]
    assert foreseen[0].id == first.committed[0].id and foreseen[0].picked
    assert [one.told for one in foreseen] == [True, False, False, False, False]
    drafted = [one.id for one in foreseen[1:]]
    assert len(first.committed) == 1  # nothing was drafted in the first step
    assert list(second.tree.token_ids)[:4] == drafted[: len(second.tree.token_ids)]
    assert len(second.tree.token_ids) == 4


def test_tallies_count_what_views_show(explorer, monkeypatch):
    """Many noises in one forward or in pieces, against one view for each."""
    told = []
    tallies = explorer.tallies(4, count=6, seed=5, tell=told.append)
    assert told == sorted(told) and len(told) == 4 and told[-1] < 1
    monkeypatch.setattr("mtp.ptp.explore.TALLIED", 4 * explorer.backbone.vocabulary_size * 4)
    assert explorer.tallies(4, count=6, seed=5, tell=told.append) == tallies
    assert told[4:] == sorted(told[4:]) and len(told) == 12  # in two pieces
    drawn = torch.rand(6, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    views = [explorer.view(noise) for noise in drawn.tolist()]
    assert tallies["plain"].right == 4.0
    for name in VARIANTS:
        right = [view.right(name) for view in views]
        assert tallies[name].right == pytest.approx(sum(right) / 6, abs=1e-4)
        later = [view.foreseen[name][1:] for view in views]
        pairs = [sum(one.impossible for one in some) / len(some) for some in later]
        assert tallies[name].impossible == pytest.approx(sum(pairs) / 6, abs=1e-4)
    assert explorer.tallies(4, stop=lambda: True) is None


def test_a_token_that_is_told_does_not_count(tiny, tiny_vocabulary):
    """Without a head only C-PTP is told its first token; with one, all are."""
    model = tiny("llama")
    for layers, told in ((0, {"c-ptp"}), (1, set(VARIANTS))):
        drafters = {variant: weights_for(model, variant, 0.3, layers) for variant in VARIANTS}
        explorer = NoiseExplorer(Backbone(model), tiny_vocabulary, drafters, PROMPT, SAMPLING)
        views = [explorer.view(one) for one in torch.rand(6, 4, dtype=torch.float64).tolist()]
        assert {name for name in VARIANTS if explorer.told(name)} == told
        for view in views:
            for name in VARIANTS:
                row = view.foreseen[name]
                assert len(view.drafted(name)) == 4 - (name in told)
                counted = [one.picked for one in row[name in told :]]
                assert view.right(name) == [*counted, False].index(False)
        tallies = explorer.tallies(1, count=5)
        for name in told:  # nothing is drafted
            assert tallies[name].right == 0


def test_a_record_is_seeded_and_reads_back(explorer, tiny_vocabulary):
    class Words(type(tiny_vocabulary)):
        def encode(self, prompt, mode):
            return list(PROMPT)

    vocabulary = Words(tiny_vocabulary.tokenizer)
    verifier = Verifier("tiny", "base", explorer.backbone, vocabulary)
    question = Question("x", seed=4, temperature=1.0, places=5)
    made = record(verifier, question, explorer)
    assert made.view == explorer.view(noises(4))
    assert set(made.sweeps) == set(made.drafters) == set(VARIANTS)
    assert made.whole and made.seeded
    assert made.sweep("o-ptp", 3) == explorer.sweep("o-ptp", noises(4), 3)
    assert {facts.rank for facts in made.drafters.values()} == {3}
    first = record(verifier, question, explorer, swept=(0,))
    assert not first.whole and first.sweep("o-ptp", 0) == made.sweep("o-ptp", 0)
    assert first.sweep("o-ptp", 1) is None
    told = []
    assert with_view(first, explorer, made.view, told.append) == made
    assert told == sorted(told) and len(told) == 15
    other = with_view(first, explorer, explorer.view(noises(9)))
    assert other.whole and not other.seeded and other.view.noise == tuple(noises(9))
    assert other.sweep("c-ptp", 2) == explorer.sweep("c-ptp", noises(9), 2)
    assert with_view(first, explorer, made.view, stop=lambda: True) is None
    assert NoiseRecord.from_json(made.to_json()) == made
    assert record(verifier, question, explorer, stop=lambda: True) is None
    broken = made.to_json().replace('"version": 2', '"version": 7')
    for content in ("", "[]", "{}", broken, made.to_json()[:-9]):
        with pytest.raises(TraceError):
            NoiseRecord.from_json(content)
    view, sweeps = made.view, made.sweeps["o-ptp"]
    for unfit in (
        replace(made, view=replace(view, noise=view.noise[:-1])),
        replace(made, view=replace(view, noise=(*view.noise[:-1], 1.0))),
        replace(made, view=replace(view, plain=view.plain[:-1])),
        replace(made, view=replace(view, foreseen={**view.foreseen, "o-ptp": ()})),
        replace(made, tallies={}),
        replace(made, drafters={}),
        replace(made, question=replace(made.question, places=4)),
        replace(made, sweeps={**made.sweeps, "o-ptp": (*sweeps, sweeps[0])}),
        replace(made, sweeps={**made.sweeps, "o-ptp": (replace(sweeps[0], texts=()),)}),
    ):
        with pytest.raises(TraceError, match="do not fit each other"):
            NoiseRecord.from_json(unfit.to_json())


def test_what_the_verifier_thinks_of_drafted_tokens(explorer):
    noise = noises(2)
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
    noise = noises(4)
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
    first = explorer.view(noises(1))
    explorer.sweep("o-ptp", noises(3), 0)
    assert explorer.view(noises(1)) == first


def test_what_the_verifier_calls_impossible():
    tokens = [Foreseen(1, "a", 0.5, 0.5, p, False) for p in (1e-9, 0.5, 9.9e-4, 1e-3)]
    assert [one.impossible for one in tokens] == [True, False, True, False]


def test_noise_and_places_are_checked(explorer):
    for wrong in ([], [1.0], [-0.1], [float("nan")]):
        with pytest.raises(InputError, match="Noise values are numbers from 0"):
            explorer.view(wrong)
    with pytest.raises(InputError, match="The place is 9"):
        explorer.sweep("o-ptp", [0.5], 9)
    with pytest.raises(InputError, match="There is no drafter 'x'"):
        explorer.sweep("x", [0.5], 0)


def test_forwards_of_a_view_on_the_shipped_model():
    """One for each drafter that reads its noise, one for the verifier's view of them, and one for
    each token of plain sampling behind a text that no draft foresaw: what a moved slider costs. At
    first one for the drafter that reads no noise as well.
    """
    byte = load_verifier("byte", "float32", "cpu")
    behind = "Once upon a time, there was a "
    question = Question("Write a short story about the sea.", behind)
    length = len(context_of(byte.vocabulary, question))
    explorer = explorer_of(byte, question)
    assert len(explorer.drafters) == 3
    for seed in range(6):
        drafters = 2 if seed else 3
        noise = noise_of(replace(question, seed=seed), length)
        explorer._last = []  # as the first view of a context
        before = byte.backbone.forwards
        view = explorer.view(noise)
        drafts = [[one.id for one in row] for row in view.foreseen.values()]
        written = [one.id for one in view.plain]
        unforeseen = sum(
            all(draft[:place] != written[:place] for draft in drafts) for place in range(8)
        )
        assert byte.backbone.forwards - before == drafters + 1 + unforeseen
        before = byte.backbone.forwards
        again = explorer.view(noise)  # its text is known from the last time
        assert [one.id for one in again.plain] == written
        assert byte.backbone.forwards - before <= 2 + 2
        before = byte.backbone.forwards
        explorer.sweep("o-ptp", noise, 0)
        assert byte.backbone.forwards - before == 1
