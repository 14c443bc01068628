"""Training noise rows: windows against decoding's own rows, reading learned, gates, cards."""

import argparse
import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mtp.drafters.base import Context, Outcome, ProbeOutput
from mtp.drafters.ptp import Guess, ParallelTokens
from mtp.errors import InputError, ModelError
from mtp.models.backbone import Backbone, Block
from mtp.models.cache import PathCache
from mtp.models.draft_vocabulary import DraftVocabulary
from mtp.models.verifier import Verifier
from mtp.models.vocabulary import Vocabulary
from mtp.ptp.files import load_card, load_ptp
from mtp.ptp.head import picks
from mtp.sampling import Noise, Sampling, final_probabilities, pick
from mtp.train.byte_recipe import Shape, build_model
from mtp.train.byte_tokenizer import build_tokenizer
from mtp.train.completions import Header, Record, source_of
from mtp.train.ptp import add_arguments, run, train
from mtp.train.ptp_card import export, of_run
from mtp.train.ptp_quality import measure
from mtp.train.ptp_read import Survey, read
from mtp.train.ptp_recipe import Recipe, build, check_corpus
from mtp.train.ptp_rows import (
    Predicted,
    choose_windows,
    loss_of,
    noise_of,
    predict,
    predict_forced,
    targets,
)
from mtp.train.run_folder import read_curve, read_settings, recipe_of
from mtp.train.texts import read_texts

SAMPLING = Sampling(0.7)
HEADER = Header("tiny", "base", 0.7, 0, 1.0, "float32", 0, 40, "test", {})
SMALL = {"texts": 4, "rows": 24, "rank": 4, "lengths": (1, 4), "learning_rate": 0.02}


@pytest.fixture(scope="module")
def verifier():
    model = build_model(Shape(hidden=16, layers=2, heads=2, mlp=24, context=96), seed=0).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(30)  # sure of what comes next, most of the time
    return Verifier("tiny", "base", Backbone(model), Vocabulary(build_tokenizer(96)))


@pytest.fixture(scope="module")
def data(tmp_path_factory, verifier):
    """The tiny model's own samples: texts whose noise is what a run's would be."""
    path = tmp_path_factory.mktemp("data") / "own.jsonl"
    lines = [HEADER.line()]
    model = verifier.backbone.model
    for index in range(60):
        ids = verifier.vocabulary.encode(f"Say {index}.", "chat")
        noise, new = Noise(index), []
        with torch.inference_mode():
            for _ in range(20):
                logits = model(input_ids=torch.tensor([ids + new])).logits[0, -1]
                token = pick(noise.u(len(ids + new), "pick"), final_probabilities(logits, SAMPLING))
                new.append(token)
        spelt = bytes(token for token in new if token < 256).decode("utf-8", errors="replace")
        lines.append(Record(f"Say {index}.", new, spelt).line())
    path.write_text("".join(lines))
    return [path]


@pytest.fixture(scope="module")
def texts(data, verifier):
    return read_texts(data, verifier.vocabulary)


FEW = DraftVocabulary(np.array([*range(0, 250, 2), 257]), 264)  # half of the bytes


def weights_for(
    verifier, variant="o-ptp", up=0.2, head_layers=0, rank=4, head_context=0, vocabulary=None
):
    shape = {"head_layers": head_layers, "head_context": head_context, "rank": rank}
    shape |= {"lengths": (2 if head_layers else 1, 4)}
    recipe = Recipe(**SMALL | {"variant": variant, "steps": 1} | shape)
    weights = build(recipe, verifier, vocabulary)
    generator = torch.Generator().manual_seed(1)
    for one in weights.adapter.up if weights.adapter is not None else ():
        one.data = up * torch.randn(one.shape, generator=generator)
    if weights.head is not None:
        torch.nn.init.normal_(weights.head.out.weight, std=up, generator=generator)
    return weights


def test_the_noise_of_sampled_text_is_the_runs(texts, verifier):
    """Intervals hold the very noise that drew the tokens."""
    found = read(verifier.backbone, texts[0][:3], SAMPLING)
    for row, text in enumerate(texts[0][:3]):
        noise = Noise(int(text.prompt[4:-1]))
        for place in found.places[row].nonzero()[:, 0].tolist():
            u = noise.u(place + 1, "pick")
            assert found.low[row, place] - 1e-6 <= u < found.high[row, place] + 1e-6


def test_windows_see_their_text_and_themselves_only(texts, verifier):
    found = read(verifier.backbone, texts[0][:2], SAMPLING)
    windows = choose_windows(found, 3, 4, torch.Generator().manual_seed(0))
    width = found.ids.shape[1]
    assert windows.place.shape == (2, 12) and windows.mask.shape == (2, 1, 12, width + 12)
    for row in range(12):
        first = row - row % 4
        root = int(windows.place[0, first])
        sees = windows.mask[0, 0, row].nonzero()[:, 0].tolist()
        assert sees == [*range(root + 1), *(width + r for r in range(first, row + 1))]


@pytest.mark.parametrize("variant", ["o-ptp", "c-ptp"])
@pytest.mark.parametrize(
    ("head_layers", "rank", "head_context", "vocabulary"),
    [(0, 4, 0, None), (2, 4, 0, None), (2, 4, 5, FEW), (2, 0, 0, None), (1, 0, 70, FEW)],
)
def test_a_training_row_is_a_decoding_row(
    variant, head_layers, rank, head_context, vocabulary, texts, verifier
):
    """A packed window gives the logits that the drafter's block gives for that prefix and noise,
    and what it guesses from them once the next token is known.
    """
    weights = weights_for(verifier, variant, 0.2, head_layers, rank, head_context, vocabulary)
    text = texts[0][0]
    found = read(verifier.backbone, [text], SAMPLING)
    windows = choose_windows(found, 5, 4, torch.Generator().manual_seed(0))
    shares = torch.full(windows.place.shape, 0.5, dtype=torch.float64)
    noise = noise_of(found, windows, shares)
    with torch.no_grad():
        together = predict(verifier.backbone, weights, found, windows, noise).logits[0]
    window = 2
    rows = slice(4 * window, 4 * window + 4)
    root = int(windows.place[0, rows][0])

    class Known(Noise):
        def u(self, position, stream, index=0):
            return float(noise[0, rows][min(position - root - 1, 3)])

    most = 5 if rank else 4  # C-PTP's rows are all of use, one fewer than M
    drafter = ParallelTokens(weights, verifier.backbone, most, 4, "single")
    prompt = text.ids[: root + 1].tolist()
    cache = PathCache()
    states = verifier.backbone.prefill(prompt[:-1], cache, drafter.hidden_layers)
    context = Context(prompt, len(prompt), states, Known(0), SAMPLING, "coupled", 30, 60)
    draft = drafter.propose(context)
    block = Block(prompt[-1], probes=draft.probes, hidden_layers=drafter.hidden_layers)
    apart = verifier.backbone.forward(block, cache)
    if head_layers == 0:
        torch.testing.assert_close(together[rows], apart.logits[1:], atol=2e-4, rtol=0)
    drafter.observe(
        Outcome(
            draft=draft,
            accepted=(),
            committed=(int(text.ids[root + 1]),),
            logits=apart.logits[:1],
            hidden={layer: states[:1] for layer, states in apart.hidden.items()},
        ),
        ProbeOutput(apart.logits[1:], {layer: h[1:] for layer, h in apart.hidden.items()}),
    )
    after = replace(
        context,
        token_ids=[*prompt, int(text.ids[root + 1])],
        hidden={layer: states[:1] for layer, states in apart.hidden.items()},
    )
    drafter._remember(after)
    guesses = drafter._foresee(after)
    assert len(guesses) >= 3
    if vocabulary is not None:
        assert {guess.token for guess in guesses} <= set(vocabulary.ids.tolist())
    if variant == "c-ptp":
        wanted = final_probabilities(together[rows], SAMPLING)
        for guess, q in zip(guesses, wanted, strict=rank > 0):  # a head drafts 3 of 4
            torch.testing.assert_close(guess.q, q, atol=1e-3, rtol=0)
    else:
        best = together[rows][1:].log_softmax(-1).max(-1)
        assert [guess.token for guess in guesses] == best.indices.tolist()
        mine = torch.tensor([guess.log_q for guess in guesses])
        torch.testing.assert_close(mine, best.values, atol=1e-3, rtol=0)


def test_a_survey_reads_as_the_base_does(texts, verifier):
    some = [text.cut(60) for text in texts[0][:20]]
    survey = Survey(verifier.backbone, some, SAMPLING, caches=True)
    chosen = [some[3], some[11]]
    kept, found = survey.read(chosen), read(verifier.backbone, chosen, SAMPLING)
    for name in ("ids", "places"):
        assert torch.equal(getattr(kept, name), getattr(found, name))
    for name in ("low", "high", "doubt"):
        torch.testing.assert_close(
            getattr(kept, name)[found.places],
            getattr(found, name)[found.places],
            atol=1e-5,
            rtol=0,
        )
    everywhere = torch.arange(found.ids.shape[1]).expand(len(found.ids), -1)
    with torch.no_grad():
        plain = verifier.backbone.model(input_ids=found.ids.clamp(min=0)).logits
        here, there = found.logits_at(everywhere), kept.logits_at(everywhere)
    torch.testing.assert_close(here, plain, atol=1e-5, rtol=0)
    assert (there - plain)[found.places].abs().max() < 0.05 * plain.std()
    weights = weights_for(verifier)
    windows = choose_windows(found, 3, 4, torch.Generator().manual_seed(0))
    noise = noise_of(found, windows, torch.full(windows.place.shape, 0.5).double())
    with torch.no_grad():
        mine, theirs = (
            predict(verifier.backbone, weights, one, windows, noise).logits for one in (kept, found)
        )
    assert (mine - theirs).abs().max() < 0.05 * theirs.std()
    columns = [vars(one).values() for one in survey._kept.values()]
    held = sum(part.nbytes for one in columns for part in one if isinstance(part, torch.Tensor))
    held -= len(columns) * verifier.backbone.unembedding.nbytes  # the base's own
    assert Survey.size(verifier.backbone, some, False) == held
    assert Survey.size(verifier.backbone, some, True) == held + survey._layers.nbytes
    assert Survey(verifier.backbone, some, SAMPLING).read(chosen).cache is None


def test_what_rows_are_to_foresee(texts, verifier):
    text = texts[0][0]
    found = read(verifier.backbone, [text], SAMPLING)
    windows = choose_windows(found, 6, 4, torch.Generator().manual_seed(0))
    for shift in (0, 1):
        wanted = targets(found, windows, shift)
        for row in wanted.counted[0].nonzero()[:, 0].tolist():
            place = int(windows.place[0, row])
            assert int(wanted.tokens[0, row]) == int(text.ids[place + 1 + shift])


def test_the_loss_counts_known_rows_and_favours_early_ones(texts, verifier):
    found = read(verifier.backbone, texts[0][:2], SAMPLING)
    windows = choose_windows(found, 3, 4, torch.Generator().manual_seed(0))
    noise = noise_of(found, windows, torch.full(windows.place.shape, 0.5).double())
    weights = weights_for(verifier)
    with torch.no_grad():
        predicted = predict(verifier.backbone, weights, found, windows, noise)
        loss = loss_of(weights, found, windows, predicted, 0.5, 0.3)
    logits = predicted.logits
    total, weight = 0.0, 0.0
    wanted = targets(found, windows, 0)
    log_p = logits.log_softmax(-1)
    for text in range(2):
        for row in wanted.counted[text].nonzero()[:, 0].tolist():
            total -= 0.5 ** (row % 4) * float(log_p[text, row, wanted.tokens[text, row]])
            weight += 0.5 ** (row % 4)
    assert float(loss) == pytest.approx(total / weight, rel=1e-5)
    width = found.ids.shape[1]
    place = (windows.place + 1).clamp(max=width - 1)
    exact = found.logits_at(place)  # the base's own rows: nothing is left to learn
    categorical = weights_for(verifier, "c-ptp")
    # Also with top-p, to which what was learnt is cut when a token is picked.
    for config in (categorical.config, replace(categorical.config, top_p=0.8)):
        one = replace(categorical, config=config)
        assert float(loss_of(one, found, windows, Predicted(exact), 1.0, 0.3)) < 1e-6


@pytest.mark.parametrize("variant", ["o-ptp", "c-ptp", "independent"])
def test_the_loss_of_a_head_holds_what_it_picks_from_to_the_base(variant, texts, verifier):
    """The base's own rows cost nothing in a head; what the variant says and what the rows below
    say cost their cross-entropy or divergence. A first row that the verifier replaces is free.
    """
    found = read(verifier.backbone, texts[0][:2], SAMPLING)
    windows = choose_windows(found, 3, 4, torch.Generator().manual_seed(0))
    weights = weights_for(verifier, variant, head_layers=1)
    config = weights.config
    width = found.ids.shape[1]
    place = (windows.place + 1 - config.replaced).clamp(max=width - 1)
    exact = found.logits_at(place)
    first = torch.arange(12) % 4 < config.replaced
    exact = exact.masked_fill(first[:, None] & (torch.arange(264) > 3), -9.0)  # wrong, but free
    told = torch.zeros_like(exact)
    loss = float(loss_of(weights, found, windows, Predicted(told, exact), 1.0, 0.3))
    assert loss == pytest.approx(math.log(264) if variant == "o-ptp" else 0.0, abs=1e-5)
    with_rows = loss_of(weights, found, windows, Predicted(told, exact, told), 1.0, 0.3)
    free = loss_of(weights, found, windows, Predicted(told, exact, told), 1.0, 0.0)
    rows = loss_of(replace(weights, head=None), found, windows, Predicted(told), 1.0, 0.3)
    assert float(with_rows - free) == pytest.approx(0.3 * float(rows), rel=1e-4)


@pytest.mark.parametrize("vocabulary", [None, FEW])
@pytest.mark.parametrize("variant", ["o-ptp", "c-ptp"])
def test_a_head_given_the_text_says_what_it_says_of_its_own_picks(
    variant, vocabulary, texts, verifier
):
    """Forced rows are those of decoding as long as all picks before them are the text's."""
    found = read(verifier.backbone, texts[0][:4], SAMPLING)
    windows = choose_windows(found, 90, 4, torch.Generator().manual_seed(0))
    noise = noise_of(found, windows, torch.full(windows.place.shape, 0.5).double())
    weights = weights_for(verifier, variant, 0.02, head_layers=1, vocabulary=vocabulary)
    with torch.no_grad():
        given = (verifier.backbone, weights, found, windows, noise)
        forced, free = predict_forced(*given).logits, predict(*given).logits
        rounded = predict_forced(*given, "bfloat16").logits
    assert torch.allclose(forced.softmax(-1), rounded.softmax(-1), atol=0.05)
    assert not torch.equal(forced, rounded)
    if vocabulary is not None:
        assert forced.shape[2] == len(vocabulary)
        assert loss_of(weights, found, windows, predict_forced(*given), 0.9, 0.3).isfinite()
        forced = weights._over_all(forced)  # tokens that are not drafted have no chance
    first = weights.config.replaced
    wanted = targets(found, windows, 1 - first).tokens.view(-1, 4)
    forced, free = forced.view(-1, 4, 264), free.view(-1, 4, 264)
    u = noise.view(-1, 4) if first else noise.view(-1, 4).roll(-1, 1)
    token = forced.argmax(-1) if first else picks(forced, u, SAMPLING)
    right = (token == wanted)[:, first:-1].long().cumprod(1).bool()
    right = torch.cat([torch.ones_like(right[:, :1]), right], 1)  # all picks before the row
    assert 0 < int(right[:, 1:].sum()) < right[:, 1:].numel()
    drafted = slice(None) if vocabulary is None else vocabulary.ids
    assert free.isfinite().sum(-1).unique().tolist() == [len(forced[0, 0, drafted])]
    difference = (forced - free)[:, first:, drafted].abs().amax(-1)
    assert difference[right].max() < 1e-3 and difference[~right].max() > 1e-3


def test_quality_of_a_drafter_that_knows(texts, verifier, monkeypatch):
    """With the true tokens as logits every offset is right; a blind one is at the ceiling."""
    import mtp.train.ptp_quality as quality

    def knowing(backbone, weights, found, windows, noise):
        tokens = targets(found, windows, 0).tokens
        return Predicted(50.0 * torch.nn.functional.one_hot(tokens, 264).float())

    monkeypatch.setattr(quality, "predict", knowing)
    found = measure(verifier.backbone, weights_for(verifier), texts[0][:8], SAMPLING, 4)
    assert found.accuracy == (1.0,) * 4 and found.leading == 4.0
    assert found.gains == (0.0, 1.0, 2.0, 3.0)
    assert not found.passes(0.9)  # it knows, whatever its noise
    assert replace(found, shuffled=0.5, ceiling=0.8).passes(0.9)

    def blind(backbone, weights, found, windows, noise):
        return Predicted(found.logits_at(windows.place))

    monkeypatch.setattr(quality, "predict", blind)
    found = measure(verifier.backbone, weights_for(verifier), texts[0], SAMPLING, 1)
    assert found.accuracy[0] == pytest.approx(found.ceiling, abs=0.05)
    assert found.shuffled == found.accuracy[0]
    assert not replace(found, shuffled=0.5).passes(0.0)  # no better than blind


@pytest.mark.parametrize("head_layers", [0, 1])
def test_a_blind_c_ptp_drafter_does_not_pass_for_one_that_reads(
    head_layers, texts, verifier, monkeypatch
):
    """It picks with the tokens' noise whatever it reads; shuffled, its rows say the same."""
    import mtp.train.ptp_quality as quality

    def blind(backbone, weights, found, windows, noise):
        index = (windows.place + 1).clamp(max=found.ids.shape[1] - 1)
        return Predicted(found.logits_at(index))

    monkeypatch.setattr(quality, "predict", blind)
    weights = weights_for(verifier, "c-ptp", head_layers=head_layers)
    found = measure(verifier.backbone, weights, texts[0][:24], SAMPLING, 4)
    assert found.gated == head_layers and found.ceiling is None
    assert found.accuracy[found.gated] > 0.99  # the base's own rows
    assert found.shuffled == found.accuracy[found.gated] and not found.passes(0.9)


@pytest.mark.parametrize(
    ("variant", "head_layers", "rank", "few"),
    [("o-ptp", 0, 4, 0), ("o-ptp", 1, 4, 60), ("c-ptp", 1, 0, 0), ("independent", 1, 4, 0)],
)
def test_training_helps_a_run_goes_on_and_ships(
    variant, head_layers, rank, few, texts, data, verifier, tmp_path
):
    training, held_out = texts
    given = {"variant": variant, "steps": 24, "gate": 1.1, "head_layers": head_layers}
    first = 2 if head_layers else 1  # a head has nothing to learn from offset 1
    given["lengths"] = (first, 4)
    given |= {"rank": rank, "draft_vocabulary": few, "head_width": 8 if few else 0}
    recipe = Recipe(**SMALL | given)
    train(tmp_path / "run", verifier, training, held_out, replace(recipe, steps=12), save_every=0)
    weights = train(tmp_path / "run", verifier, training, held_out, recipe, save_every=0)
    curve = read_curve(tmp_path / "run")
    assert [line["step"] for line in curve] == list(range(1, 25))
    assert {line["length"] for line in curve} == {first, 4}
    longer = [line["loss"] for line in curve if line["length"] == 4]
    mean = [sum(part) / len(part) for part in (longer[:3], longer[-3:])]
    assert mean[1] < mean[0]
    made = of_run(tmp_path / "run", verifier, weights, [source_of(data[0])])
    export(weights, made, tmp_path / "shelf", verifier, training[:20], prompts=2)
    folder = tmp_path / "shelf" / f"tiny-{variant}-t0.7"
    loaded = load_ptp(folder, verifier)
    assert loaded.config.variant == variant and len(loaded.config.gains) == 4
    assert loaded.config.draft_vocabulary == few
    if few:
        assert loaded.head.body.config.hidden_size == 8
        assert len(loaded.drafted.ids) == 60
        assert "of width 8" in (folder / "card.md").read_text()
        assert loaded.sha256() != replace(loaded, drafted=None).sha256()
        assert torch.equal(loaded.drafted.ids, weights.drafted.ids)
        (folder / "vocabulary.safetensors").unlink()
        with pytest.raises(ModelError, match=r"vocabulary\.safetensors cannot be read"):
            load_ptp(folder, verifier)
    card = (folder / "card.md").read_text()
    reads = "Does it read its noise?" in card and "): not passed. In training" in card
    assert reads == (variant != "independent")
    assert "of the adjacent pairs it foresees are impossible" in card
    assert recipe_of(tmp_path / "run", Recipe) == recipe
    warm = replace(recipe, temperature=1.0, steps=1)
    begun = train(
        tmp_path / "warm", verifier, training, held_out, warm, begin=tmp_path / "run", save_every=0
    )
    first = read_curve(tmp_path / "warm")[0]["loss"]
    assert first < curve[0]["loss"] and begun.config.temperature == 1.0
    other = replace(warm, anchors=5, embedding="linear", head_layers=2, lengths=(2, 4))
    with pytest.raises(InputError, match="another shape"):
        train(tmp_path / "no", verifier, training, held_out, other, begin=tmp_path / "run")
    guess = Guess(1, 0.0, loaded.config.chance(0.5))
    assert 0 <= guess.chance <= 1


def command(verifier, monkeypatch, *words):
    """`train ptp` with these words, on the tiny model."""
    monkeypatch.setattr("mtp.train.ptp.load_verifier", lambda name, dtype: verifier)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    lengths = ["--lengths=2,4", "--head-layers=1", "--draft-vocabulary=60", "--save-every=0"]
    return run(parser.parse_args([*settings, *lengths, *map(str, words)]))


def test_the_command_trains_goes_on_begins_and_exports(data, verifier, tmp_path, monkeypatch):
    def asked(folder, *words):
        return command(
            verifier, monkeypatch, "--data", *data, *data, "--folder", tmp_path / folder, *words
        )

    assert asked("first", "--steps", 1) == 0
    assert asked("second", "--steps", 1, "--begin", tmp_path / "first") == 0
    assert asked("second", "--steps", 2) == 0  # goes on without being told again what it began as
    assert read_settings(tmp_path / "second")["begin"] == "first"
    assert [line["step"] for line in read_curve(tmp_path / "second")] == [1, 2]
    with pytest.raises(InputError, match="There is no run in"):
        asked("third", "--steps", 1, "--begin", tmp_path / "nowhere")
    with pytest.raises(InputError, match="another shape: embedding binary, this one round"):
        asked("third", "--steps", 1, "--begin", tmp_path / "first", "--embedding", "round")
    assert not (tmp_path / "third").exists()  # nothing was begun
    with pytest.raises(InputError, match="another shape: variant o-ptp, this one independent"):
        asked("third", "--steps", 1, "--begin", tmp_path / "first", "--variant", "independent")
    assert asked("alone", "--steps", 1, "--rank", 0) == 0
    other = ("--rank", 0, "--variant", "independent")  # a head alone has no rows to differ in
    assert asked("blind", "--steps", 1, "--begin", tmp_path / "alone", *other) == 0
    assert asked("second", "--export", tmp_path / "shelf", "--prompts", 1) == 0
    stored = tmp_path / "shelf" / "tiny-o-ptp-t0.7"
    assert load_ptp(stored, verifier).config.rank == 4
    first = load_card(stored)
    assert [one["file"] for one in first["data"]] == 2 * ["own.jsonl"]
    assert first["settings"]["begin_rows"] == read_curve(tmp_path / "first")[-1]["rows"] > 0
    assert "of the run it began as,\non `own.jsonl`" in (stored / "card.md").read_text()
    # One that is stored is measured again: on what its training left of the same completions, on
    # all of others.
    for given, more in (([*data, *data], 1), (data, 10)):
        words = ("--folder", stored, "--export", tmp_path / "again", "--prompts", 1)
        assert command(verifier, monkeypatch, "--data", *given, *words) == 0
        again = tmp_path / "again" / stored.name
        assert load_ptp(again, verifier).sha256() == load_ptp(stored, verifier).sha256()
        told = load_card(again)
        assert all(told[name] == first[name] for name in ("settings", "steps", "rows", "curve"))
        assert told["held_out"]["windows"] >= more * first["held_out"]["windows"]
    with pytest.raises(InputError, match="1 or more do"):
        asked("second", "--export", tmp_path / "shelf", "--prompts", 0)
    few = tmp_path / "few.jsonl"  # other completions, whose most frequent tokens are others
    few.write_text("".join(data[0].read_text().splitlines(keepends=True)[:12]))
    with pytest.raises(InputError, match="give the files it was trained on"):
        where = ("--folder", tmp_path / "second", "--export", tmp_path / "shelf")
        command(verifier, monkeypatch, "--data", few, *where)
    settings = tmp_path / "second" / "settings.json"
    settings.write_text(settings.read_text().replace('"base"', '"another"'))
    with pytest.raises(InputError, match="was trained for other weights"):
        asked("second", "--export", tmp_path / "shelf")


def test_without_rows_in_the_base_a_head_says_nothing_at_first(texts, verifier):
    weights = weights_for(verifier, "c-ptp", 0.0, head_layers=1, rank=0)
    found = read(verifier.backbone, texts[0][:2], SAMPLING)
    windows = choose_windows(found, 3, 4, torch.Generator().manual_seed(0))
    noise = noise_of(found, windows, torch.full(windows.place.shape, 0.5).double())
    said = predict_forced(verifier.backbone, weights, found, windows, noise).logits
    assert torch.equal(said, torch.zeros_like(said))
    given, row = weights.head.given.weight.std(), weights.head.row.weight.std()
    spread = verifier.backbone.embeddings.std()
    assert float(given * spread / row) == pytest.approx(1.0, rel=0.2)  # counts as much as states


def test_bases_with_other_logits_are_refused(verifier, monkeypatch):
    model = copy.deepcopy(verifier.backbone.model)
    forward = type(model).forward

    def scaled(self, *args, **kwargs):
        out = forward(self, *args, **kwargs)
        out.logits = out.logits / 2
        return out

    monkeypatch.setattr(type(model), "forward", scaled)
    with pytest.raises(InputError, match="scaled, capped or shifted"):
        weights_for(verifier)


def test_other_corpora_are_refused(data, verifier, tmp_path):
    check_corpus(data, verifier, SAMPLING)
    with pytest.raises(
        InputError, match=r"sampled with temperature 0\.7; this training needs 1\.0"
    ):
        check_corpus(data, verifier, Sampling(1.0))
    other = Verifier("tiny", "another", verifier.backbone, verifier.vocabulary)
    with pytest.raises(InputError, match="sampled with weights_sha256 base"):
        check_corpus(data, other, SAMPLING)
    bare = tmp_path / "bare.jsonl"
    bare.write_text(Record("a", [1], "b").line())
    with pytest.raises(InputError, match="has no header"):
        check_corpus([bare], verifier, SAMPLING)


def test_recipes_are_checked():
    for wrong, said in (
        ({"variant": "x"}, "The variant is one of"),
        ({"embedding": "x"}, "The embedding is one of"),
        ({"lengths": (4, 2)}, "The window lengths rise"),
        ({"lengths": (0, 2)}, "The window lengths rise"),
        ({"lengths": ()}, "The window lengths rise"),
        ({"head_layers": 1, "lengths": (1, 2)}, "windows begin with 2 or more"),
        ({"head_width": 64}, "The head width is"),
        ({"head_width": 96, "head_layers": 1, "lengths": (2, 4)}, "The head width is"),
        ({"head_width": 7, "head_layers": 1, "lengths": (2, 4)}, "The head width is"),
        ({"draft_vocabulary": 9}, "A draft vocabulary needs a pick head"),
        ({"products": "int8"}, "Products are taken in float32 or bfloat16"),
        ({"rank": 0}, "has an adapter, a pick head, or both"),
        ({"temperature": -1.0}, "temperature is -1"),
    ):
        with pytest.raises(InputError, match=said):
            Recipe(steps=1, **wrong)
