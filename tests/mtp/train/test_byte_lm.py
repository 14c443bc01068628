"""Training the byte model: resumed runs, held-out bits, and the folder that ships."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mtp.circuits.marks import words_in
from mtp.errors import InputError
from mtp.train.byte_data import IGNORED, encode, pack, read_documents, windows
from mtp.train.byte_eval import held_out_bits
from mtp.train.byte_lm import export, train
from mtp.train.byte_recipe import Recipe, Shape, build_model
from mtp.train.byte_tokenizer import USER_ID
from mtp.train.completions import Record
from mtp.train.run_folder import CHECKPOINT, CURVE

SHAPE = Shape(hidden=16, layers=1, heads=2, mlp=24, context=48)
RECIPE = Recipe(batch=4, learning_rate=0.02, steps=8)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "completions.jsonl"
    ends = [2, 7]
    records = [
        Record(f"Count to {i}.", [5, ends[i % 2]], "1 2 3 " * (1 + i % 9)) for i in range(60)
    ]
    path.write_text("".join(record.line() for record in records))
    return path


def test_documents_and_what_is_held_out(data):
    training, held_out = read_documents([data, data])
    assert (len(training), len(held_out)) == (118, 2)
    assert training.document(0).tolist() == encode("Count to 0.", "1 2 3 ", ended=True)
    assert training.document(1).tolist() == encode("Count to 1.", "1 2 3 1 2 3 ", ended=False)


def test_windows_are_pieces_of_the_text_and_learn_no_user_mark(data):
    training, _ = read_documents([data])
    inputs, labels = windows(training, np.random.default_rng(0), 20, 48)
    assert inputs.shape == labels.shape == (20, 48)
    assert (labels == IGNORED).any() and not (labels == USER_ID).any()
    same = labels[:, :-1] != IGNORED
    assert (inputs[:, 1:][same] == labels[:, :-1][same]).all()
    with pytest.raises(InputError, match="a window needs 5001"):
        windows(training, np.random.default_rng(0), 1, 5000)


def test_a_break_changes_nothing(data, tmp_path):
    training, held_out = read_documents([data])
    whole = train(tmp_path / "a", training, held_out, SHAPE, RECIPE)
    # The rate depends on the budget, so the first part stops by force, not by a smaller budget.
    calls = 0

    class BreakError(Exception):
        pass

    def report(line):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise BreakError

    with pytest.raises(BreakError):
        train(tmp_path / "b", training, held_out, SHAPE, RECIPE, save_every=0.0, report=report)
    state = torch.load(tmp_path / "b" / CHECKPOINT, weights_only=True)
    assert state["progress"]["step"] == 3
    rest = train(tmp_path / "b", training, held_out, SHAPE, RECIPE, save_every=0.0)
    for one, other in zip(whole.parameters(), rest.parameters(), strict=True):
        assert torch.equal(one, other)
    curve = [json.loads(line) for line in (tmp_path / "b" / CURVE).read_text().splitlines()]
    assert [line["step"] for line in curve] == list(range(1, 9))
    assert curve[-1]["bytes_seen"] == 8 * 4 * 48


def test_another_run_in_the_folder_is_refused(data, tmp_path):
    training, held_out = read_documents([data])
    train(tmp_path, training, held_out, SHAPE, dataclasses.replace(RECIPE, steps=1))
    with pytest.raises(InputError, match="hidden 16"):
        train(tmp_path, training, held_out, dataclasses.replace(SHAPE, hidden=32), RECIPE)
    with pytest.raises(InputError, match="seed 0"):
        train(tmp_path, training, held_out, SHAPE, dataclasses.replace(RECIPE, seed=1))


def test_rate_warms_up_and_falls_with_time_or_steps():
    recipe = Recipe(learning_rate=1.0, minutes=10)
    assert recipe.rate(0, 0.0) == pytest.approx(1 / 50)
    assert recipe.rate(100, 200.0) == 1.0
    assert recipe.rate(100, 420.0) == pytest.approx(0.5)
    assert recipe.rate(100, 700.0) == 0.0
    assert Recipe(steps=10).used(5, 1e9) == 0.5
    assert recipe.window(64, 100, 0.0) == (16, 32)
    assert recipe.window(64, 100, 421.0) == (8, 64)
    for bad in [{}, {"minutes": 0.0}, {"steps": 3, "batch": 0}]:
        with pytest.raises(InputError):
            Recipe(**bad)


def test_held_out_bits_are_the_models_own(data):
    training, _ = read_documents([data])
    model = build_model(SHAPE, seed=0).eval()
    documents = pack([training.document(i).tolist() for i in (0, 4, 8)])
    bits = held_out_bits(model, documents, context=200)
    surprise, entropy = [], []
    with torch.inference_mode():
        for i in range(3):
            ids = torch.from_numpy(documents.document(i).astype("int64"))
            log_p = model(ids[None]).logits[0].log_softmax(-1)
            start = (ids == 258).nonzero().item() + 1
            surprise += [-log_p[t - 1, ids[t]].item() for t in range(start, len(ids))]
            entropy += [
                -(log_p[t - 1].exp() * log_p[t - 1]).sum().item() for t in range(start, len(ids))
            ]
    assert bits.answer_bytes == len(surprise)
    assert bits.answers == pytest.approx(np.mean(surprise) / math.log(2), rel=1e-5)
    assert bits.entropy == pytest.approx(np.mean(entropy) / math.log(2), rel=1e-5)
    assert bits.entropy_07 < bits.entropy < 8.05


def test_export_loads_through_the_auto_classes(data, tmp_path):
    training, held_out = read_documents([data])
    trained = train(tmp_path / "run", training, held_out, SHAPE, RECIPE)
    with pytest.raises(InputError, match="no checkpoint"):
        export(tmp_path / "none", tmp_path / "out", [data], training, held_out)
    export(tmp_path / "run", tmp_path / "out", [data], training, held_out)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.float32 and model.config.eos_token_id == tokenizer.eos_token_id
    for one, other in zip(trained.parameters(), model.parameters(), strict=True):
        assert torch.equal(one.to(torch.bfloat16).float(), other)
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["steps"] == 8 and card["data"][0]["file"] == data.name
    assert card["held_out"]["answer_bits_per_byte"] == pytest.approx(
        held_out_bits(model, held_out, SHAPE.context).answers, abs=1e-4
    )
    text = (tmp_path / "out" / "card.md").read_text()
    assert "bits per byte" in text and str(tmp_path) not in text
    words = (tmp_path / "out" / "words.txt").read_text().split()
    raw = training.document(0)
    first = bytes(token if token < 256 else 32 for token in raw.tolist()).decode(errors="ignore")
    assert words == sorted(set(words)) and words_in(first) <= set(words)


def test_training_learns(data, tmp_path):
    training, held_out = read_documents([data])
    before = held_out_bits(build_model(SHAPE, 0), held_out, SHAPE.context).answers
    model = train(
        tmp_path, training, held_out, SHAPE, dataclasses.replace(RECIPE, steps=60), save_every=1e9
    )
    assert held_out_bits(model, held_out, SHAPE.context).answers < before - 3
