"""Training circuit heads: windows from texts, resumed runs, better than the start, and cards."""

import numpy as np
import pytest
import torch

from mtp.circuits.circuit import UNKNOWN
from mtp.circuits.head_files import load_card, load_config
from mtp.errors import InputError
from mtp.models.backbone import Backbone
from mtp.models.verifier import Verifier
from mtp.models.vocabulary import Vocabulary
from mtp.train.byte_recipe import Shape, build_model
from mtp.train.byte_tokenizer import build_tokenizer
from mtp.train.circuit_card import export
from mtp.train.circuit_heads import Recipe, parse_spec, windows_of
from mtp.train.circuits import train
from mtp.train.completions import Record
from mtp.train.run_folder import load_checkpoint, read_curve
from mtp.train.texts import Text, batches, draft_vocabulary, in_answers, padded, read_texts

SPECS = [parse_spec(text) for text in ("ff:4", "btree:4:3")]
RECIPE = Recipe(texts=6, windows=96, code=8, basis=8, steps=24, learning_rate=0.02)


@pytest.fixture(scope="module")
def verifier():
    model = build_model(Shape(hidden=16, layers=2, heads=2, mlp=24, context=96), seed=0).eval()
    return Verifier("tiny", "base", Backbone(model), Vocabulary(build_tokenizer(96)))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "completions.jsonl"
    records = [Record(f"Count to {i}.", [5, 2], "1 2 3 " * (1 + i % 5)) for i in range(80)]
    path.write_text("".join(record.line() for record in records))
    return [path]


def test_texts_are_prompt_and_answer_in_the_models_tokens(data, verifier):
    training, held_out = read_texts(data, verifier.vocabulary)
    assert (len(training), len(held_out)) == (78, 2)
    text = training[1]
    spelt = verifier.vocabulary.tokenizer.decode(text.ids)
    assert spelt == "<|user|>Count to 1.<|end|><|assistant|>1 2 3 1 2 3 <|end|>"
    assert text.ids[text.answer :][:3].tolist() == list(b"1 2")
    ids = padded([training[0], text])
    assert ids.shape == (2, len(text.ids)) and ids[0, -1] == -1
    places = in_answers([training[0], text], ids.shape[1])
    assert places[1].nonzero()[0] == text.answer - 1  # it predicts the answer's first token
    assert places[1].nonzero()[-1] == len(text.ids) - 2
    cut = [one.cut(40) for one in training]
    passes = batches(cut, np.random.default_rng(0), 10)
    seen = [one for _ in range(8) for one in next(passes)]
    assert len(seen) == 78 and len({one.prompt for one in seen}) == 78
    assert max(len(one.ids) for one in seen) == 40


def test_token_ids_of_the_same_vocabulary_are_kept(tmp_path, verifier):
    path = tmp_path / "own.jsonl"
    records = [Record(f"Say it {n} times.", [*b"hey", 256], "hey") for n in range(60)]
    path.write_text("".join(record.line() for record in records))
    training, _ = read_texts([path], verifier.vocabulary)
    assert training[0].ids[training[0].answer :].tolist() == [*b"hey", 256]


def test_windows_follow_their_place(data, verifier):
    training, _ = read_texts(data, verifier.vocabulary)
    vocabulary = draft_vocabulary(training, verifier.backbone.vocabulary_size, 0)
    windows = windows_of(verifier, training[:3], vocabulary, 4, lora=0)
    assert windows.targets.shape == (int(windows.places.sum()), 4)
    first = training[0]
    assert windows.targets[0].tolist() == first.ids[first.answer :][:4].tolist()
    ids = torch.from_numpy(first.ids)[None]
    alone = verifier.backbone.model.base_model(input_ids=ids).last_hidden_state[0]
    place = int(windows.places[0].nonzero()[0])
    torch.testing.assert_close(windows.entering[0, place], alone[place], atol=1e-5, rtol=0)
    last = windows.targets[int(windows.places[0].sum()) - 1].tolist()
    assert last == [256, UNKNOWN, UNKNOWN, UNKNOWN]
    few = draft_vocabulary(training, verifier.backbone.vocabulary_size, 5)
    assert few.ids.tolist() == sorted([*b" 123", 256])


@pytest.mark.parametrize("lora", [0, 1])
def test_training_helps_and_a_run_goes_on(lora, data, verifier, tmp_path):
    training, held_out = read_texts(data, verifier.vocabulary)
    recipe = Recipe(**{**vars(RECIPE), "lora": lora})
    half = Recipe(**{**vars(recipe), "steps": 12})
    train(tmp_path, verifier, training, held_out, SPECS, half, save_every=0.0)
    trained = train(tmp_path, verifier, training, held_out, SPECS, recipe, save_every=0.0)
    curve = read_curve(tmp_path)
    assert [line["step"] for line in curve] == list(range(1, 25))
    for name in ("ff-4", "btree-4-r3"):
        assert curve[-1]["loss"][name] < curve[0]["loss"][name] - 0.5
        assert curve[-1]["held_out"][name] > curve[0]["held_out"][name] + 1
    if lora:
        assert any(float(up.detach().abs().max()) > 1e-4 for up in trained["ff-4"].adapter.up)
    with pytest.raises(InputError, match="take the same or another folder"):
        other = Recipe(**{**vars(recipe), "windows": 50})
        train(tmp_path, verifier, training, held_out, SPECS, other)


def test_heads_are_exported_with_cards(data, verifier, tmp_path):
    training, held_out = read_texts(data, verifier.vocabulary)
    recipe = Recipe(**{**vars(RECIPE), "lora": 1})
    run, shelf = tmp_path / "run", tmp_path / "shelf"
    with pytest.raises(InputError, match="train first"):
        export(run, shelf, verifier, data, held_out, prompts=2)
    train(run, verifier, training, held_out, SPECS, recipe)
    export(run, shelf, verifier, data, held_out, prompts=2)
    folder = shelf / "tiny-btree-4-r3-k1"
    assert sorted(path.name for path in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "card.md",
        "head.json",
        "head.safetensors",
    ]
    config, card = load_config(folder), load_card(folder)
    assert (config.circuit, config.window, config.rank, config.lora) == ("btree", 4, 3, 1)
    assert 0 < card["held_out"]["windows"] == card["held_out"]["whole"]  # all can be drafted
    assert card["steps"] == 24 and len(card["held_out"]["cross_entropy"]) == 4
    total = sum(card["held_out"]["cross_entropy"])
    assert card["held_out"]["joint"] == pytest.approx(-total, abs=1e-3)
    for verification in ("rejection", "coupled"):
        assert card["acceptance"][verification]["tokens_per_call"] >= 1
    assert "--heads ff:4:1,btree:4:3" in card["command"]
    assert "held-out joint" in (folder / "card.md").read_text()


def test_a_run_begins_from_another(data, verifier, tmp_path):
    """With its draft vocabulary, whatever the texts; with its adapter or without one."""
    training, held_out = read_texts(data, verifier.vocabulary)
    short = Recipe(**{**vars(RECIPE), "steps": 4, "draft_vocabulary": 5})
    train(tmp_path / "first", verifier, training, held_out, SPECS, short)
    for layers, begin in ((0, "first"), (1, "first"), (1, "1")):
        recipe = Recipe(**{**vars(short), "lora": layers, "learning_rate": 1e-9})
        folder = tmp_path / str(layers) if begin == "first" else tmp_path / "again"
        other = Text("x", training[0].ids.clip(0, 97), training[0].answer)
        trained = train(
            folder, verifier, [other] * 6, held_out, SPECS[1:], recipe, begin=tmp_path / begin
        )["btree-4-r3"]
        old = load_checkpoint(tmp_path / begin)["trainees"]["btree-4-r3"]
        assert trained.head.vocabulary.ids.tolist() == sorted([*b" 123", 256])
        for name, tensor in trained.head.state_dict().items():
            torch.testing.assert_close(tensor, old["head"][name], atol=1e-5, rtol=0)
        if begin == "1":
            for name, tensor in trained.adapter.state_dict().items():
                torch.testing.assert_close(tensor, old["adapter"][name], atol=1e-5, rtol=0)
    for specs, given, begin, said in (
        ([parse_spec("cp:4:3")], {}, "first", "has no cp-4-r3 to begin from"),
        (SPECS, {"code": 4}, "first", "has code 8, this one 4"),
        (SPECS[1:], {}, "1", "adapts 1 layers, this one 0"),
    ):
        recipe = Recipe(**{**vars(short), **given})
        with pytest.raises(InputError, match=said):
            new = tmp_path / "new"
            train(new, verifier, training, held_out, specs, recipe, begin=tmp_path / begin)
        assert not new.exists()


def test_heads_of_many_ranks_and_full_ones_train_together(data, verifier, tmp_path):
    training, held_out = read_texts(data, verifier.vocabulary)
    recipe = Recipe(**{**vars(RECIPE), "inputs": "full", "steps": 12})
    specs = [parse_spec(text) for text in ("btree:4:2", "btree:4:3")]
    trained = train(tmp_path, verifier, training, held_out, specs, recipe, save_every=0.0)
    assert list(trained) == ["btree-4-r2", "btree-4-r3"]
    wide = trained["btree-4-r3"].head.inputs.weight
    assert wide.shape == (4, 3, 264, 16)
    curve = read_curve(tmp_path)
    for name in trained:
        assert curve[-1]["loss"][name] < curve[0]["loss"][name] - 0.5
    with pytest.raises(InputError, match="The inputs are low-rank or full"):
        Recipe(**{**vars(RECIPE), "inputs": "wide"})


@pytest.mark.parametrize("text", ["tree:4:2", "ff", "btree:x:2", "btree:4:2:1", ""])
def test_specs_are_refused_in_a_sentence(text):
    with pytest.raises(InputError, match="A head is written CIRCUIT:WINDOW:RANK"):
        parse_spec(text)
