"""Loading models by name: tiny real ones of several architectures, and what is refused."""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging as transformers_logging

from mtp.errors import InputError, ModelError
from mtp.models import catalog
from mtp.models.load import load_model, parse_dtype, preferred_dtype, processor_flags

CPU = torch.device("cpu")
SIZE = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}


def tokenizer(size: int = 16) -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(size)}
    fast = Tokenizer(models.WordLevel(words, unk_token="w0"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=fast)


def saved(model: PreTrainedModel, folder: Path, words: int = 16, **options) -> str:
    model.save_pretrained(folder, **options)
    if words:
        tokenizer(words).save_pretrained(folder)
    return str(folder)


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SIZE, **HEADS))


def refused(name: str) -> str:
    with pytest.raises(ModelError) as told:
        load_model(name, torch.float32, CPU)
    text = str(told.value)
    assert "\n" not in text and text.endswith(".")
    return text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_local_folder(tmp_path, dtype):
    original = llama()
    name = saved(original, tmp_path)
    model, words, sha256 = load_model(name, dtype, "cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    head = original.lm_head.weight
    assert torch.equal(model.lm_head.weight, head.to(dtype))
    assert words("w3 w5")["input_ids"] == [3, 5]
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert sha256 == hashlib.sha256(weights).hexdigest()
    assert model.config._attn_implementation == "sdpa"


def test_shards_are_hashed_in_order_of_their_names(tmp_path):
    name = saved(llama(), tmp_path, max_shard_size="2KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    expected = hashlib.sha256(b"".join(shard.read_bytes() for shard in shards)).hexdigest()
    assert load_model(name, torch.float32, CPU)[2] == expected
    shards[0].unlink()
    assert "missing" in refused(name)


def test_soft_capped_attention_is_computed_as_written(tmp_path):
    config = Gemma2Config(**SIZE, **HEADS, head_dim=8, attn_logit_softcapping=1.0)
    original = Gemma2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.mul_(20)  # scores that the cap changes
    name = saved(original, tmp_path)
    model = load_model(name, torch.float32, CPU)[0]
    assert model.config._attn_implementation == "eager"
    ids = torch.arange(12).reshape(1, -1)
    original.set_attn_implementation("eager")
    with torch.no_grad():
        assert torch.equal(model(ids).logits, original(ids).logits)


def test_learned_positions(tmp_path):
    config = GPT2Config(vocab_size=16, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    name = saved(GPT2LMHeadModel(config), tmp_path)
    assert load_model(name, torch.float32, CPU)[0].config.model_type == "gpt2"


def test_architecture_without_sdpa_falls_back(tmp_path):
    from transformers import BloomConfig, BloomForCausalLM

    assert not BloomForCausalLM._supports_sdpa
    config = BloomConfig(vocab_size=16, hidden_size=16, n_layer=1, n_head=2)
    name = saved(BloomForCausalLM(config), tmp_path)
    assert load_model(name, torch.float32, CPU)[0].config._attn_implementation == "eager"


def test_not_a_causal_language_model(tmp_path):
    bert = BertConfig(**SIZE, num_attention_heads=2)
    text = refused(saved(BertForMaskedLM(bert), tmp_path / "bert"))
    assert "not a causal language model" in text and "BertForMaskedLM" in text
    t5 = T5Config(vocab_size=16, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    text = refused(saved(T5ForConditionalGeneration(t5), tmp_path / "t5"))
    assert "not a causal language model" in text


def test_folders_that_are_no_whole_model(tmp_path):
    assert "no config.json" in refused(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    assert "it has no weights" in refused(str(tmp_path))
    torch.save({}, tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin, which is not safetensors" in refused(str(tmp_path))
    save_file({}, tmp_path / "model.safetensors")
    assert "config.json could not be read" in refused(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "made-up"}')
    assert "config.json could not be read" in refused(str(tmp_path))


def test_no_tokenizer_or_another_models(tmp_path):
    assert "no tokenizer" in refused(saved(llama(), tmp_path / "a", words=0))
    assert "do not belong together" in refused(saved(llama(), tmp_path / "b", words=17))
    name = saved(llama(), tmp_path / "c")
    (tmp_path / "c" / "tokenizer.json").write_text("{}")
    assert "its tokenizer could not be read" in refused(name)


def test_damaged_weights(tmp_path):
    name = saved(llama(), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    cut = path.read_bytes()[:-10]
    path.write_bytes(cut)
    assert "its weights could not be read" in refused(name)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    assert "incomplete" in refused(name) and "up_proj" in refused(name)
    wrong = tensors | {"model.layers.0.mlp.up_proj.weight": torch.zeros(3, 5)}
    save_file(wrong, path, metadata={"format": "pt"})
    assert "its weights could not be read" in refused(name)


def test_code_that_comes_with_a_model_runs_only_when_allowed(tmp_path):
    name = saved(llama(), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    path.write_text(json.dumps(config))
    mark = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    assert "trust_remote_code" in refused(name)
    assert not mark.exists()


def test_names_that_are_not_here(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTSCOPE_CACHE", str(tmp_path))
    assert "python -m mtp fetch smollm2" in refused("smollm2")
    assert "There is no model" in refused("nonsense")
    monkeypatch.setattr(catalog, "REPOSITORY", tmp_path)
    assert "not in this copy of the repository" in refused("byte")


def test_a_hub_model_in_the_hubs_cache_is_loaded_without_asking_the_hub(tmp_path):
    folder = tmp_path / "hub" / "models--owner--name"
    saved(llama(), folder / "snapshots" / ("0" * 40))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    code = (
        "import torch; from mtp.models.load import load_model;"
        "print(type(load_model('owner/name', torch.float32, 'cpu')[0]).__name__)"
    )
    nowhere = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    command = [sys.executable, "-c", code]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        command, env=environment | nowhere, cwd=catalog.REPOSITORY, capture_output=True, check=False
    )
    assert done.stdout == b"LlamaForCausalLM\n", done.stderr.decode()


def test_loading_says_nothing_and_leaves_the_settings(tmp_path, capfd):
    name = saved(llama(), tmp_path)
    capfd.readouterr()
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    load_model(name, torch.float32, CPU)
    after = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    assert before == after
    assert capfd.readouterr() == ("", "")


def test_dtypes():
    assert parse_dtype("float64") is torch.float64
    for text in ("", "float16", "Float32", "\ud800"):
        with pytest.raises(InputError, match="float64, float32, bfloat16") as told:
            parse_dtype(text)
        str(told.value).encode()
    flags = processor_flags()
    assert flags
    expected = torch.bfloat16 if {"avx512_bf16", "amx_bf16"} & flags else torch.float32
    assert preferred_dtype("cpu") is expected
    assert preferred_dtype("cpu", "smollm2") is expected
    assert preferred_dtype("cpu", "byte") is torch.float32


def test_devices(tmp_path):
    name = saved(llama(), tmp_path)
    for device in ("cuda:99", "nonsense"):
        with pytest.raises(InputError):
            load_model(name, torch.float32, device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda(tmp_path):
    assert preferred_dtype("cuda") in (torch.bfloat16, torch.float32)
    model = load_model(saved(llama(), tmp_path), torch.float32, "cuda")[0]
    assert model.device.type == "cuda"


@pytest.mark.smollm2
def test_smollm2_loads_in_about_a_second():
    if not catalog.is_ready("smollm2"):
        pytest.skip("not fetched")
    load_model("smollm2", torch.float32, CPU)
    start = time.perf_counter()
    model, words, sha256 = load_model("smollm2", torch.float32, CPU)
    assert time.perf_counter() - start < 3
    assert sha256 == catalog.SMOLLM2.sha256
    ids = words("The capital of France is", return_tensors="pt")
    text = words.decode(model.generate(**ids, max_new_tokens=2, do_sample=False)[0])
    assert "Paris" in text
