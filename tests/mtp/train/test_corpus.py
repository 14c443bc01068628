"""The corpus: appended to, gone on with, and never mixed with another."""

import dataclasses
import gzip
import hashlib
import json

import pytest

from mtp.errors import InputError, ModelError
from mtp.models.catalog import ENTRIES, entry_folder
from mtp.sampling import Sampling
from mtp.train.byte_tokenizer import END_ID, VOCABULARY, build_tokenizer
from mtp.train.completions import read_completions, read_header
from mtp.train.corpus import Plan, Teacher, encode_prompt, load_teacher, make_corpus, run_seed
from tests.mtp.train.tiny import tiny_llama

PLAN = Plan(Sampling(1.0), seed=5, max_new_tokens=6, batch=4, count=10)


@pytest.fixture(scope="module")
def teacher():
    model = tiny_llama(VOCABULARY)
    return Teacher("tiny", "0" * 64, model, build_tokenizer(512), frozenset({256}))


@pytest.fixture(autouse=True)
def room(monkeypatch):
    monkeypatch.setattr("mtp.train.corpus.PROMPT_ROOM", 200)


def test_a_break_changes_nothing(teacher, tmp_path):
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    assert make_corpus(teacher, PLAN, whole) == 10
    lines = whole.read_bytes().splitlines(keepends=True)
    # What an interruption leaves: some of the completions, the last of them cut.
    broken.write_bytes(b"".join([lines[0], *lines[3:6], lines[7][:20]]))
    assert make_corpus(teacher, PLAN, broken) == 7
    assert sorted(broken.read_bytes().splitlines()) == sorted(whole.read_bytes().splitlines())
    assert make_corpus(teacher, PLAN, broken) == 0
    records = list(read_completions(whole))
    assert sorted(record.index for record in records) == list(range(10))
    assert len({record.seed for record in records}) == 10


def test_more_can_be_added(teacher, tmp_path):
    out = tmp_path / "corpus.jsonl"
    make_corpus(teacher, dataclasses.replace(PLAN, count=3), out)
    make_corpus(teacher, PLAN, out)
    assert len(list(read_completions(out))) == 10


def test_another_corpus_is_refused(teacher, tmp_path):
    out = tmp_path / "corpus.jsonl"
    make_corpus(teacher, dataclasses.replace(PLAN, count=1), out)
    for plan, word in [
        (dataclasses.replace(PLAN, sampling=Sampling(0.5)), "temperature 1.0"),
        (dataclasses.replace(PLAN, seed=6), "seed 5"),
        (dataclasses.replace(PLAN, max_new_tokens=7), "max_new_tokens 6"),
    ]:
        with pytest.raises(InputError, match=word):
            make_corpus(teacher, plan, out)
    other = dataclasses.replace(teacher, weights_sha256="1" * 64)
    with pytest.raises(InputError, match="weights_sha256"):
        make_corpus(other, PLAN, out)
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"prompt": "a", "ids": [1], "text": "b"}\n')
    with pytest.raises(InputError, match="no header"):
        make_corpus(teacher, PLAN, bare)
    with pytest.raises(InputError, match="must end in"):
        make_corpus(teacher, PLAN, tmp_path / "corpus.txt")


def test_header_and_text(teacher, tmp_path):
    out = tmp_path / "corpus.jsonl"
    make_corpus(teacher, PLAN, out)
    header = read_header(out)
    assert header["model"] == "tiny" and header["dtype"] == "float64"
    assert {"torch", "transformers"} <= set(header["software"])
    for record in read_completions(out):
        assert record.text == teacher.tokenizer.decode(record.ids, skip_special_tokens=True)
        assert record.seed == run_seed(5, record.index)
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(out.read_bytes()))
    assert list(read_completions(packed)) == list(read_completions(out))
    assert read_header(packed) == header


def test_a_line_that_is_no_completion_is_named(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"prompt": "a", "ids": [], "text": ""}) + "\n[1]\n")
    with pytest.raises(InputError, match="Line 2"):
        list(read_completions(path))


def test_prompts_go_through_the_chat_template(teacher):
    ids = encode_prompt(teacher.tokenizer, "Hi")
    assert teacher.tokenizer.decode(ids) == "<|user|>Hi<|end|><|assistant|>"


def test_numbers_outside_what_is_allowed(tmp_path):
    for change in [{"batch": 0}, {"seed": -1}, {"count": 0}, {"minutes": 0.0}]:
        with pytest.raises(InputError):
            dataclasses.replace(PLAN, **change)


def test_a_teacher_is_named_or_a_folder_and_its_weights_are_told(tmp_path):
    folder = entry_folder(ENTRIES["byte"])
    named, local = (load_teacher(source, "float32") for source in ("byte", str(folder)))
    assert named.name == local.name == "byte"
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert named.weights_sha256 == local.weights_sha256 == digest
    assert named.end_ids == local.end_ids == {END_ID}
    with pytest.raises(ModelError, match="nowhere"):
        load_teacher(str(tmp_path / "nowhere"), "float32")
