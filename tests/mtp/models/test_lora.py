"""Gated adapters and the top layers on their own, against the model's own forwards."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from mtp.errors import ModelError
from mtp.models.backbone import Backbone
from mtp.models.cache import PathCache
from mtp.models.lora import (
    ATTENTION,
    CONFIG_FILE,
    WEIGHTS_FILE,
    LowRankAdapter,
    load_adapter,
    save_adapter,
)

Tiny = Callable[[str], PreTrainedModel]
IDS = torch.arange(9)[None]


def adapter_for(model: PreTrainedModel, layers: tuple[int, ...] = (0, 1)) -> LowRankAdapter:
    generator = torch.Generator().manual_seed(0)
    adapter = LowRankAdapter(model, layers, 3, 6.0, generator=generator).to(model.dtype)
    for up in adapter.up:
        up.data = 0.1 * torch.randn(up.shape, generator=generator, dtype=torch.float64).to(up)
    return adapter


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_on_all_rows_it_is_the_model_with_the_weights_added(name: str, tiny: Tiny) -> None:
    model = tiny(name)
    adapter = adapter_for(model)
    merged = copy.deepcopy(model)
    with torch.no_grad():
        for target, down, up in zip(adapter.names, adapter.down, adapter.up, strict=True):
            merged.get_submodule(target).weight += 6.0 / 3 * up @ down
    with adapter.gate(model, 0):
        adapted = logits(model)
    torch.testing.assert_close(adapted, logits(merged), atol=1e-11, rtol=0)
    assert (adapted - logits(model)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_before_the_gate_are_bit_equal(dtype: torch.dtype, tiny: Tiny) -> None:
    model = copy.deepcopy(tiny("llama")).to(dtype)
    plain = logits(model)
    adapter = adapter_for(model).to(dtype)
    with adapter.gate(model, 5):
        gated = logits(model)
    assert torch.equal(gated[:, :5], plain[:, :5])
    assert not torch.equal(gated[:, 5:], plain[:, 5:])
    assert torch.equal(logits(model), plain)  # and nothing stays behind


def test_several_texts_and_models_at_one_gate(tiny: Tiny) -> None:
    """The rows of each text of a batch are adapted as alone, on whichever model is given."""
    model, other = tiny("llama"), copy.deepcopy(tiny("llama"))
    with torch.no_grad():
        other.get_submodule("model.layers.0.mlp.up_proj").weight.mul_(1.5)
    adapter = adapter_for(model)
    ids = torch.stack([IDS[0], IDS[0].flip(0)])
    for one in (model, other, model):
        with torch.inference_mode(), adapter.gate(one, 5):
            both = one(input_ids=ids, use_cache=False).logits
            for text, alone in enumerate(ids):
                apart = one(input_ids=alone[None], use_cache=False).logits[0]
                torch.testing.assert_close(both[text], apart, atol=1e-11, rtol=0)
    plain = logits(other)
    with adapter.gate(other, 5):
        assert (logits(other) - plain).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_evaluation_weights_are_cast_once_and_anew_when_they_may_have_changed(
    dtype: torch.dtype, tiny: Tiny
) -> None:
    model = tiny("llama")
    adapter = adapter_for(model).to(dtype)  # cast to the model's float64 at every gate, or once
    other = {name: 2 * tensor for name, tensor in adapter.state_dict().items()}

    def adapted() -> torch.Tensor:
        with torch.inference_mode(), adapter.gate(model, 0):
            return logits(model)

    training = adapted()
    adapter.eval()
    assert torch.equal(adapted(), training) and torch.equal(adapted(), training)
    with torch.no_grad():
        adapter.up[0] += 1
    assert torch.equal(adapted(), training)  # in evaluation the weights stay as they were
    adapter.train()
    changed = adapted()
    assert not torch.equal(changed, training)
    adapter.eval()
    assert torch.equal(adapted(), changed)
    adapter.load_state_dict(other)
    loaded = adapted()
    assert not torch.equal(loaded, changed)
    with torch.no_grad():
        adapter.up[0] += 1
    assert torch.equal(adapted(), loaded)
    adapter.double()
    assert not torch.equal(adapted(), loaded)


def test_a_new_adapter_changes_nothing_and_learns(tiny: Tiny) -> None:
    model = tiny("llama")
    adapter = LowRankAdapter(model, [1], 2, 2.0, ATTENTION).double()
    assert len(adapter.names) == 4 and all(".layers.1.self_attn." in n for n in adapter.names)
    with adapter.gate(model, 0):
        out = model(input_ids=IDS, use_cache=False).logits
    assert torch.equal(out, logits(model))
    out.square().mean().backward()
    assert all(up.grad is not None and up.grad.abs().max() > 0 for up in adapter.up)


def test_files_have_pefts_layout_and_come_back(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny("llama")
    adapter = adapter_for(model)
    save_adapter(adapter, tmp_path, "tiny", torch.float32)
    config = json.loads((tmp_path / CONFIG_FILE).read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 3, 6.0)
    tensors = load_file(tmp_path / WEIGHTS_FILE)
    down = tensors["base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"]
    assert down.shape == (3, 32)
    loaded = load_adapter(tmp_path, model)
    for mine, theirs in zip(adapter.parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(mine.float(), theirs, atol=1e-6, rtol=0)
    (tmp_path / WEIGHTS_FILE).write_bytes(b"broken")
    with pytest.raises(ModelError, match="cannot be read"):
        load_adapter(tmp_path, model)


def test_other_shapes_are_refused(tiny: Tiny) -> None:
    with pytest.raises(ModelError, match="adapters need a Llama-shaped model"):
        LowRankAdapter(tiny("gpt2"), [0], 2, 2.0)
    backbone = Backbone(tiny("gpt2"))
    with pytest.raises(ModelError, match="not Llama-shaped"):
        backbone.top(torch.zeros(1, 2, 32).double(), 1)
    with pytest.raises(ModelError, match="has 2 layers; 2 cannot be adapted"):
        Backbone(tiny("llama")).top(torch.zeros(1, 2, 32).double(), 2)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_top_on_its_own_is_the_models_in_one_go_and_in_pieces(name: str, tiny: Tiny) -> None:
    backbone = Backbone(tiny(name))
    with torch.inference_mode():
        states = backbone.model(input_ids=IDS, output_hidden_states=True).hidden_states
        whole = backbone.top(states[1], 1)
        torch.testing.assert_close(whole, states[-1], atol=1e-11, rtol=0)
        cache = PathCache()
        parts = []
        for start, end in ((0, 4), (4, 5), (5, 9)):
            parts.append(backbone.top(states[1][:, start:end], 1, None, cache))
            cache.keep(range(end - start))
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-11, rtol=0)
