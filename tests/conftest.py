"""Tiny randomly initialised models of several architectures, built once and shared by all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MptConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    RwkvConfig,
)

from mtp.decode import Decoding, Request
from mtp.drafters.base import Drafter
from mtp.errors import DraftscopeError
from mtp.models.backbone import Backbone
from mtp.models.fetch import fetch
from mtp.models.vocabulary import Vocabulary

settings.register_profile("shared", deadline=None)  # machines that run tests are shared
settings.load_profile("shared")
torch.set_num_threads(1)  # tiny models: threads cost more than they give

TINY_VOCABULARY = 40
TINY_WINDOW = 8  # shorter than every text that is written with it
LOGIT_SPREAD = 6.0  # flat enough to reject drafts, peaked enough to accept some

_SIZES: dict[str, Any] = {
    "vocab_size": TINY_VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 768,
    "initializer_range": 0.1,  # attention that matters, texts that repeat themselves
    "tie_word_embeddings": False,  # the head is scaled on its own
}
_GROUPED: dict[str, Any] = {**_SIZES, "num_key_value_heads": 2}
_GPT2: dict[str, Any] = {
    "bos_token_id": None,
    "eos_token_id": None,
    "vocab_size": TINY_VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 768,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}

TINY: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    # Architectures that can take a draft tree.
    "llama": (LlamaConfig, _GROUPED),
    "qwen3": (Qwen3Config, {**_GROUPED, "head_dim": 8}),
    "gpt2": (GPT2Config, _GPT2),
    "gemma2": (
        Gemma2Config,
        {
            **_GROUPED,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": TINY_WINDOW,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 20.0,
        },
    ),
    "mistral": (MistralConfig, {**_GROUPED, "sliding_window": TINY_WINDOW}),
    # The same with little room.
    "llama-short": (LlamaConfig, {**_GROUPED, "max_position_embeddings": 24}),
    "gpt2-short": (GPT2Config, {**_GPT2, "n_positions": 24}),
    # Four tokens, so that all texts of three can be enumerated.
    "llama-four": (
        LlamaConfig,
        {**_GROUPED, "vocab_size": 4, "hidden_size": 16, "num_hidden_layers": 1},
    ),
    "llama-four-deep": (LlamaConfig, {**_GROUPED, "vocab_size": 4, "hidden_size": 16}),
    # Architectures that cannot.
    "bloom": (BloomConfig, {"vocab_size": 40, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mpt": (MptConfig, {"vocab_size": 40, "d_model": 32, "n_layers": 4, "n_heads": 4}),
    "mamba": (MambaConfig, {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2}),
    "rwkv": (RwkvConfig, {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2}),
    "llama4": (
        Llama4TextConfig,
        {**_GROUPED, "head_dim": 8, "attention_chunk_size": 8, "num_local_experts": 2},
    ),
    "gpt-neo": (
        GPTNeoConfig,
        {
            "vocab_size": 40,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
        },
    ),
}

ACCEPTED = ("llama", "qwen3", "gpt2", "gemma2", "mistral")
REFUSED = ("bloom", "mpt", "mamba", "rwkv", "llama4", "gpt-neo")


def build(name: str) -> PreTrainedModel:
    """The tiny model of that name: fixed weights, float64, logits of the wanted spread."""
    config_class, sizes = TINY[name]
    config = config_class(**sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        # sdpa leaves out the soft-capping of attention scores, as in `load_model`.
        capped = getattr(config, "attn_logit_softcapping", None) is not None
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation="eager" if capped else None
        )
    model.double().eval().requires_grad_(False)
    if name not in REFUSED:
        ids = torch.arange(min(16, model.config.vocab_size))[None, :]
        head = model.get_output_embeddings()
        head.weight.mul_(LOGIT_SPREAD / model(input_ids=ids).logits.std(dim=-1).mean())
    generation = model.generation_config
    assert generation is not None
    generation.eos_token_id = None  # `generate` writes on to the limit
    return model


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], PreTrainedModel]:
    """Tiny models by name, each built once."""
    built: dict[str, PreTrainedModel] = {}

    def get(name: str) -> PreTrainedModel:
        if name not in built:
            built[name] = build(name)
        return built[name]

    return get


@pytest.fixture(scope="session")
def tiny_backbone(tiny: Callable[[str], PreTrainedModel]) -> Callable[[str], Backbone]:
    """A fresh backbone of a tiny model by name."""
    return lambda name: Backbone(tiny(name))


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2's files, fetched where they are not here yet; skips on machines without a network."""
    try:
        return fetch("smollm2")
    except DraftscopeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def tiny_vocabulary() -> Vocabulary:
    """Words w0 … w39 for the tiny models."""
    words = {f"w{token}": token for token in range(TINY_VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    return Vocabulary(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


@pytest.fixture
def prompt() -> Callable[[int], tuple[int, ...]]:
    """Prompts of 12 tokens by seed; the second half repeats the first, so lookups match."""

    def make(seed: int) -> tuple[int, ...]:
        generator = torch.Generator().manual_seed(seed)
        half = torch.randint(TINY_VOCABULARY, (6,), generator=generator).tolist()
        return tuple(half + half)

    return make


@pytest.fixture(scope="session")
def generate() -> Callable[..., list[int]]:
    """Greedy text by `transformers` itself: model, prompt ids, new tokens to prompt + output."""

    def run(model: PreTrainedModel, prompt_ids: tuple[int, ...], new_tokens: int) -> list[int]:
        ids = torch.tensor([prompt_ids])
        own: Any = model.generate
        written: list[int] = own(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )[0].tolist()
        return written

    return run


@pytest.fixture
def write(tiny_vocabulary: Vocabulary) -> Callable[..., Decoding]:
    """Decodes to the end: backbone, drafter, and the request's fields; `vocabulary` if another."""

    def run(
        backbone: Backbone,
        drafter: Drafter,
        vocabulary: Vocabulary = tiny_vocabulary,
        **request: Any,
    ) -> Decoding:
        decoding = Decoding(backbone, vocabulary, drafter, Request(**request))
        for _ in decoding:
            pass
        return decoding

    return run
