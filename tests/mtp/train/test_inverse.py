"""Inverse autoregressive training: noise under the model itself, one forward, learning."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from mtp.errors import InputError
from mtp.ptp.intervals import GRID
from mtp.sampling import Sampling, final_probabilities, pick
from mtp.train.byte_data import IGNORED, pack, read_documents
from mtp.train.byte_tokenizer import END_ID, USER_ID
from mtp.train.completions import Record
from mtp.train.inverse import train
from mtp.train.inverse_card import export
from mtp.train.inverse_quality import perplexities, unread_perplexity
from mtp.train.inverse_recipe import Pair, Recipe, build
from mtp.train.inverse_rows import Noise, losses, own_noise, split
from mtp.train.run_folder import read_curve
from mtp.train.schedule import parse_lengths

RECIPE = Recipe(
    batch=4, context=48, rows=9, lengths=(1, 2, 4), hidden=16, layers=1, heads=2, mlp=24,
    learning_rate=0.02, steps=12,
)  # fmt: skip
SAMPLING = Sampling(0.7)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "completions.jsonl"
    records = [Record(f"Count to {i}.", [5, 2], "1 2 3 " * (1 + i % 9)) for i in range(80)]
    path.write_text("".join(record.line() for record in records))
    return read_documents([path, path])


def splits(pair, count=3):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(100, (4, 48), generator=generator)
    return split(ids, ids.roll(-1, 1), count, 4, generator)


def halves(count):
    return torch.full((count,), 0.5, dtype=torch.float64)


def test_the_noise_picks_the_tokens_under_the_model_itself():
    pair = build(RECIPE)
    found = splits(pair)
    own = own_noise(pair.model, pair.noise, found, SAMPLING, halves)
    u, log_p = own.u, own.log_p
    assert own.counted.all()
    assert u.shape == log_p.shape == (4, 3, 4) and torch.equal(u * GRID, (u * GRID).round())
    for text, window in ((0, 0), (3, 2)):
        root = int(found.roots[text, window])
        given = pair.model.get_input_embeddings()(found.ids[text, : root + 1])
        place = list(range(root + 1))
        for offset in range(4):
            with torch.no_grad():
                rows = torch.cat([given, pair.noise(u[text, window, :offset])])[None]
                positions = torch.tensor([place + [root + 1 + j for j in range(offset)]])
                logits = pair.model(inputs_embeds=rows, position_ids=positions).logits[0, -1]
            token = int(found.tokens[text, window, offset])
            drawn = float(u[text, window, offset])
            assert pick(drawn, final_probabilities(logits, SAMPLING)) == token
            wanted = float(logits.log_softmax(-1)[token])
            assert float(log_p[text, window, offset]) == pytest.approx(wanted, abs=1e-4)


def test_one_forward_gives_what_the_offsets_gave_one_by_one():
    pair = build(RECIPE)
    found = splits(pair)
    own = own_noise(pair.model, pair.noise, found, SAMPLING, halves)
    text, later = losses(pair.model, pair.noise, found, found.ids.roll(-1, 1), own)
    assert later.item() == pytest.approx(-float(own.log_p[:, :, 1:].mean()), abs=1e-5)
    plain = pair.model(input_ids=found.ids).logits
    alone = torch.nn.functional.cross_entropy(plain.flatten(0, 1), found.ids.roll(-1, 1).flatten())
    assert text.item() == pytest.approx(alone.item(), abs=1e-5)
    asked = own_noise(pair.model, pair.noise, found, SAMPLING, halves, last=False)
    assert torch.equal(asked.u, own.u[:, :, :-1])
    trained = losses(pair.model, pair.noise, found, found.ids.roll(-1, 1), asked)
    assert torch.equal(torch.stack(trained), torch.stack((text, later)))
    (text + later).backward()
    assert pair.noise.table.grad.abs().max() > 0


def test_what_follows_a_documents_end_does_not_count():
    """Nor do offsets behind a token that no noise of a run picks, as theirs would be another's."""
    ids = torch.tensor([[USER_ID, 97, 98, END_ID, USER_ID, 97, 98, 99]])
    labels = ids.roll(-1, 1)
    labels[labels == USER_ID] = IGNORED
    found = split(ids, labels, 40, 4, torch.Generator().manual_seed(0))
    for root, tokens, known in zip(found.roots[0], found.tokens[0], found.known[0], strict=True):
        before_end = (tokens == USER_ID).long().cumsum(0) == 0
        assert torch.equal(known, before_end), root
    assert not found.known.all() and found.known[:, :, 0].any()
    pair = build(RECIPE)
    whole = own_noise(pair.model, pair.noise, found, SAMPLING, halves)
    assert torch.equal(whole.counted, found.known)
    cold = Sampling(0.01)  # at which most tokens are picked by no noise
    own = own_noise(pair.model, pair.noise, found, cold, halves)
    log_p = pair.model(input_ids=found.ids).logits[0] / 0.01
    log_p = log_p.log_softmax(-1)[found.roots[0], found.tokens[0, :, 0]]
    never = log_p < math.log(2**-30)
    assert never.any() and not own.counted[0, never, 1:].any()
    none = Noise(own.u, own.log_p, torch.zeros_like(own.counted))
    _, later = losses(pair.model, pair.noise, found, labels, none)
    assert later.item() == 0.0  # nothing to learn from


def test_training_helps_goes_on_and_ships(texts, tmp_path):
    training, held_out = texts
    half = Recipe(**{**vars(RECIPE), "steps": 6})
    train(tmp_path / "run", training, held_out, half, save_every=0)
    pair = train(tmp_path / "run", training, held_out, RECIPE, save_every=0)
    curve = read_curve(tmp_path / "run")
    assert [line["step"] for line in curve] == list(range(1, 13))
    first = curve[0]["training_bits"]
    assert first["twin"] == pytest.approx(first["text"], rel=1e-3)  # one unit, equal first weights
    assert first["windows"] is None  # windows of 1 have no noise rows
    assert {line["length"] for line in curve} == {1, 2, 4}
    for name in ("text", "windows", "twin"):
        bits = [line["training_bits"][name] for line in curve]
        assert bits[-1] < next(one for one in bits if one is not None) - 1
    assert curve[-1]["perplexity"][2] < curve[0]["perplexity"][2] / 2
    export(tmp_path / "run", tmp_path / "out", [{"file": "text.jsonl"}], training, held_out)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"model", "twin", "noise.safetensors", "card.json", "card.md"}
    model, twin = (
        AutoModelForCausalLM.from_pretrained(tmp_path / "out" / name, dtype=torch.float32)
        for name in ("model", "twin")
    )
    noise = build(RECIPE).noise
    noise.load_state_dict(load_file(tmp_path / "out" / "noise.safetensors"))
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    found = perplexities(Pair(model, noise.float(), twin), held_out, RECIPE)
    assert found["perplexity"] == pytest.approx(card["held_out"]["perplexity"], rel=1e-4)
    assert found["twin_perplexity"] == pytest.approx(card["held_out"]["twin_perplexity"], rel=1e-4)
    trained = perplexities(pair, held_out, RECIPE)["perplexity"]
    assert found["perplexity"] == pytest.approx(trained, rel=0.05)  # rounded to bfloat16
    assert found["perplexity"] != trained


def test_products_in_bfloat16_learn_nearly_the_same(texts, tmp_path):
    short = {**vars(RECIPE), "steps": 2, "lengths": (2, 4)}
    curves = []
    for products in ("float32", "bfloat16"):
        recipe = Recipe(**{**short, "products": products})
        train(tmp_path / products, *texts, recipe, save_every=0)
        curves.append(
            [line["training_bits"]["windows"] for line in read_curve(tmp_path / products)]
        )
    assert curves[0] == pytest.approx(curves[1], rel=0.02) and curves[0] != curves[1]


def test_recipes_are_checked():
    for wrong, said in (
        ({"products": "int8"}, "Products are taken in"),
        ({"lengths": (4, 2)}, "The window lengths rise"),
        ({"lengths": (1,)}, "has 2 tokens or more"),
        ({"lengths": (2, 64), "context": 64}, "fewer than the context"),
        ({"lengths": ()}, "The window lengths rise"),
    ):
        with pytest.raises(InputError, match=said):
            Recipe(steps=1, **wrong)
    assert parse_lengths("1, 2,4") == (1, 2, 4)
    for words in ("", "1,,2", "1;2", "two"):
        with pytest.raises(InputError, match="whole numbers, such as"):
            parse_lengths(words)


def test_a_curves_line_leaves_out_steps_without_windows(texts, tmp_path):
    recipe = Recipe(**{**vars(RECIPE), "steps": 4, "lengths": (1, 2)})
    train(tmp_path / "run", *texts, recipe, save_every=1e9)  # one line for all four steps
    (line,) = read_curve(tmp_path / "run")
    bits = line["training_bits"]
    assert bits["windows"] > bits["text"] / 2  # of the steps with windows alone


def test_both_begin_equal_and_the_twin_is_plain():
    pair = build(RECIPE)
    for mine, theirs in zip(pair.model.parameters(), pair.twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    documents = pack([np.random.default_rng(0).integers(97, 120, 400).tolist()])
    found = perplexities(pair, documents, RECIPE)
    unread = unread_perplexity(pair, documents, RECIPE)
    assert unread[0] == found["perplexity"][0]  # no noise is before it
    assert unread[1] != found["perplexity"][1]
    assert found["perplexity"][0] == pytest.approx(found["twin_perplexity"][0], abs=1e-3)
