"""Heads on disk: what is saved is what is loaded, and only onto the right base."""

import json

import numpy as np
import pytest
import torch

from mtp.circuits.head_files import CONFIG_FILE, WEIGHTS_FILE, load_card, load_head, save_head
from mtp.circuits.heads import CircuitHead, HeadConfig
from mtp.errors import ModelError
from mtp.models.draft_vocabulary import DraftVocabulary

SHA = "a" * 64
UNEMBEDDING = torch.randn(9, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def head():
    config = HeadConfig("btree", 4, 3, 8, 9, 4, SHA, code=4, basis=4, own=2, gate=3)
    vocabulary = DraftVocabulary(np.array([0, 2, 5, 8]), 9)
    return CircuitHead(config, UNEMBEDDING, vocabulary, torch.Generator().manual_seed(1))


def test_a_saved_head_comes_back_the_same(head, tmp_path):
    save_head(head, tmp_path / "new", {"steps": 900})
    loaded = load_head(tmp_path / "new", UNEMBEDDING, SHA)
    hidden = torch.randn(2, 8, generator=torch.Generator().manual_seed(2))
    one, other = head(hidden), loaded(hidden)
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.transitions, other.transitions)
    assert loaded.vocabulary.ids.tolist() == [0, 2, 5, 8]
    assert loaded.config == head.config
    assert load_card(tmp_path / "new") == {"steps": 900}
    assert not loaded.training


def test_the_unembedding_is_not_saved_and_bfloat16_halves_the_file(head, tmp_path):
    save_head(head, tmp_path / "full")
    save_head(head, tmp_path / "half", dtype=torch.bfloat16)
    weights = sum(parameter.numel() for parameter in head.parameters())
    header = 1_600
    assert (tmp_path / "full" / WEIGHTS_FILE).stat().st_size < 4 * weights + header
    assert (tmp_path / "half" / WEIGHTS_FILE).stat().st_size < 2 * weights + header
    loaded = load_head(tmp_path / "half", UNEMBEDDING, SHA)
    assert loaded.inputs.down.dtype == torch.float32


def test_another_base_is_refused_in_a_sentence(head, tmp_path):
    save_head(head, tmp_path)
    with pytest.raises(ModelError, match="trained on a model with weights aaaaaaaaaaaa…"):
        load_head(tmp_path, UNEMBEDDING, "b" * 64)


def test_missing_and_broken_files_are_refused_in_a_sentence(head, tmp_path):
    with pytest.raises(ModelError, match="No head can be read"):
        load_head(tmp_path, UNEMBEDDING, SHA)
    save_head(head, tmp_path)
    (tmp_path / WEIGHTS_FILE).write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be read"):
        load_head(tmp_path, UNEMBEDDING, SHA)
    save_head(head, tmp_path)
    described = json.loads((tmp_path / CONFIG_FILE).read_text())
    described["config"]["rank"] = 2
    (tmp_path / CONFIG_FILE).write_text(json.dumps(described))
    with pytest.raises(ModelError, match="don't fit"):
        load_head(tmp_path, UNEMBEDDING, SHA)
    del described["config"]["rank"]
    (tmp_path / CONFIG_FILE).write_text(json.dumps(described))
    with pytest.raises(ModelError, match="doesn't describe a head"):
        load_head(tmp_path, UNEMBEDDING, SHA)
    (tmp_path / CONFIG_FILE).write_text("[]")
    with pytest.raises(ModelError, match="doesn't describe a head"):
        load_head(tmp_path, UNEMBEDDING, SHA)
