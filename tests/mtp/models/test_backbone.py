"""Blocks give what the model's own forwards give; probes ride along unseen; misfits are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtp.errors import InputError, ModelError
from mtp.models.backbone import Backbone, Block
from mtp.models.cache import PathCache, PathLayer
from mtp.tree import ROOT, DraftTree, Probes

ARCHITECTURES = ("llama", "qwen3", "gpt2", "gemma2", "mistral")
REFUSED = {
    "bloom": "BloomForCausalLM does not take a tree-shaped attention mask with a cache",
    "mpt": "MptForCausalLM cannot verify a draft tree: a branching block gives other logits",
    "mamba": "layers of the kind 'linear_attention'",
    "rwkv": "RwkvForCausalLM cannot verify a draft tree: a branching block gives other logits",
    "llama4": "layers of the kind 'chunked_attention'",
    "gpt-neo": "layers of the kind 'local'",
}
PREFIX = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9]  # longer than the sliding window
ROOT_TOKEN = 7
DEPTH = 12  # longer than the window too; each node of the path has a sibling before it
TREE = DraftTree(
    token_ids=tuple(range(10, 10 + 2 * DEPTH)),
    parents=tuple(2 * depth - 1 if depth else ROOT for depth in range(DEPTH) for _ in range(2)),
    log_q=(0.0,) * 24,
    kind=("deterministic",) * 24,
    origins=(("toy",),) * 24,
)
TOKEN_ROWS = 1 + len(TREE)


def tolerance(backbone: Backbone) -> float:
    """Eager attention takes its softmax in float32, whatever the model's precision."""
    return 1e-5 if backbone.config._attn_implementation == "eager" else 1e-10


def own_logits(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """The model's own forward: no cache, no mask or positions of ours. (T, V)"""
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_node_has_the_logits_of_its_path_alone(
    tiny: Callable[[str], PreTrainedModel], name: str
) -> None:
    backbone = Backbone(tiny(name))
    cache = PathCache()
    backbone.prefill(PREFIX, cache)
    rows = backbone.forward(Block(ROOT_TOKEN, TREE, hidden_layers=(0, -1)), cache)
    assert backbone.forwards == 2 and backbone.rows == len(PREFIX) + TOKEN_ROWS
    assert rows.logits.shape == (TOKEN_ROWS, backbone.vocabulary_size)
    assert rows.hidden[-1].shape == (TOKEN_ROWS, backbone.hidden_size)
    for node in (ROOT, *range(len(TREE))):
        path = [TREE.token_ids[n] for n in TREE.path(node)]
        expected = own_logits(tiny(name), [*PREFIX, ROOT_TOKEN, *path])[-1]
        torch.testing.assert_close(
            rows.logits[node + 1], expected, atol=tolerance(backbone), rtol=0
        )
    backbone.check()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_one_token_at_a_time_is_the_models_own_forward(
    tiny: Callable[[str], PreTrainedModel], name: str
) -> None:
    backbone = Backbone(tiny(name))
    tokens = [int(token) for token in np.random.default_rng(0).integers(40, size=48)]
    expected = own_logits(tiny(name), tokens)
    cache = PathCache()
    for position, token in enumerate(tokens):
        logits = backbone.forward(Block(token), cache).logits
        cache.keep([0])
        torch.testing.assert_close(logits[0], expected[position], atol=tolerance(backbone), rtol=0)


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_architecture_that_cannot_take_a_tree_is_refused_with_a_reason(
    tiny: Callable[[str], PreTrainedModel], name: str, reason: str, dtype: torch.dtype
) -> None:
    model = tiny(name)
    nn.Module.to(model, dtype)
    with pytest.raises(ModelError) as caught:
        Backbone(model).check()
    said = str(caught.value)
    assert reason in said
    assert re.search("full (and|or) sliding-window attention", said)
    assert "\n" not in said and len(said) < 400


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_alone_is_not_refused(
    tiny: Callable[[str], PreTrainedModel], name: str, dtype: torch.dtype
) -> None:
    model = type(tiny(name))._from_config(
        tiny(name).config, attn_implementation=tiny(name).config._attn_implementation
    )
    model.load_state_dict(tiny(name).state_dict())
    nn.Module.to(model, dtype)
    Backbone(model.eval()).check()


@pytest.mark.parametrize("name", ["llama-short", "gpt2-short"])
def test_rows_past_the_context_are_refused_before_they_run(
    tiny_backbone: Callable[[str], Backbone], name: str
) -> None:
    backbone = tiny_backbone(name)
    assert backbone.context_limit == 24
    cache = PathCache()
    backbone.prefill(list(range(23)), cache)
    with pytest.raises(InputError, match="would pass this model's 24 positions"):
        backbone.forward(Block(1, TREE), cache)
    assert cache.length == 23
    backbone.forward(Block(1), cache)  # the last position is still free


def test_a_prefill_stops_between_chunks(tiny_backbone: Callable[[str], Backbone]) -> None:
    backbone = tiny_backbone("llama")
    cache = PathCache()
    backbone.prefill([1] * 700, cache, stop=lambda: backbone.forwards >= 1)
    assert backbone.forwards == 1 and cache.length == 512


# Probes


class GatedScale:
    """An adapter for tests: adds to the output of every MLP, on the probe rows alone."""

    def __init__(self, amount: float = 0.5) -> None:
        self.amount = amount
        self.entered = 0

    @contextmanager
    def gate(self, model: nn.Module, first_row: int) -> Iterator[None]:
        def add(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            gated = output.clone()
            gated[:, first_row:] += self.amount * torch.tanh(output[:, first_row:])
            return gated

        self.entered += 1
        with ExitStack() as hooks:
            for name, module in model.named_modules():
                if name.endswith(".mlp"):
                    hooks.callback(module.register_forward_hook(add).remove)
            yield


def make_probes(width: int, adapter: GatedScale | None) -> Probes:
    """Masks in a row behind the root and two nodes, and rows of slot 0 as PTP's first noise."""
    owner = (ROOT, ROOT, ROOT, 3, 3, 23, 6, 6)
    slot = (1, 2, 3, 1, 2, 1, 0, 1)
    sees = np.zeros((8, 8), dtype=bool)
    for row in range(8):
        for other in range(row):
            sees[row, other] = owner[row] == owner[other]
    generator = torch.Generator().manual_seed(5)
    embeds = torch.randn(8, width, generator=generator, dtype=torch.float64)
    return Probes(owner, slot, embeds, sees, adapter)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("gated", [False, True])
def test_a_probe_is_a_forward_of_its_path_and_the_probes_before_it(
    tiny: Callable[[str], PreTrainedModel], name: str, gated: bool
) -> None:
    backbone = Backbone(tiny(name))
    adapter = GatedScale() if gated else None
    probes = make_probes(backbone.hidden_size, adapter)
    cache = PathCache()
    backbone.prefill(PREFIX, cache)
    rows = backbone.forward(Block(ROOT_TOKEN, TREE, probes, (-1,)), cache)
    assert rows.logits.shape[0] == TOKEN_ROWS + 8
    changed = 0
    for probe, (owner, slot) in enumerate(zip(probes.owner, probes.slot, strict=True)):
        tokens = [*PREFIX, ROOT_TOKEN, *(TREE.token_ids[n] for n in TREE.path(owner))]
        before = [p for p in range(8) if probes.sees[probe, p]]
        line = [*before, probe]
        embeds = torch.cat([backbone.embed(tokens), probes.embeds[line]])
        places = [*range(len(tokens)), *(len(tokens) - 1 + probes.slot[p] for p in line)]
        assert places[-1] == len(tokens) - 1 + slot
        with torch.inference_mode():
            whole = {
                "inputs_embeds": embeds[None],
                "position_ids": torch.tensor([places]),
                "use_cache": False,
                "output_hidden_states": True,
            }
            if 0 in (probes.slot[p] for p in line):  # two rows at one position: a mask of ours
                whole["attention_mask"] = causal(backbone, places)
            with adapter.gate(tiny(name), len(tokens)) if adapter else ExitStack():
                alone = tiny(name)(**whole)
            without = tiny(name)(**whole).logits[0, -1]
        torch.testing.assert_close(
            rows.logits[TOKEN_ROWS + probe],
            alone.logits[0, -1],
            atol=max(1e-8, tolerance(backbone)),
            rtol=0,
        )
        torch.testing.assert_close(
            rows.hidden[-1][TOKEN_ROWS + probe],
            alone.hidden_states[-1][0, -1],
            atol=max(1e-8, tolerance(backbone)),
            rtol=0,
        )
        changed += not torch.allclose(alone.logits[0, -1], without, atol=1e-2)
    assert changed == (8 if gated else 0)  # the adapter does something


def causal(backbone: Backbone, places: list[int]) -> Any:
    """The causal mask of rows at these positions, which transformers would take for packing."""
    position = torch.tensor(places)
    mask = torch.ones(len(places), len(places), dtype=torch.bool).tril()
    masks = {}
    for layer_type in backbone.layer_types:
        allowed = mask
        if layer_type == "sliding_attention":
            assert backbone.window is not None
            allowed = mask & (position[:, None] - position[None, :] < backbone.window)
        if backbone.config._attn_implementation == "eager":
            lowest = torch.finfo(torch.float64).min
            allowed = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~allowed, lowest)
        masks[layer_type] = allowed[None, None]
    return masks if len(masks) > 1 else next(iter(masks.values()))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_token_rows_do_not_notice_probes_or_adapter(
    tiny_backbone: Callable[[str], Backbone], name: str
) -> None:
    backbone = tiny_backbone(name)
    adapter = GatedScale()
    probes = make_probes(backbone.hidden_size, adapter)
    results = []
    for riders in (None, probes):
        cache = PathCache()
        backbone.prefill(PREFIX, cache)
        rows = backbone.forward(Block(ROOT_TOKEN, TREE, riders, (-1,)), cache)
        cache.keep([0, 2, 4, 6])
        results.append((rows.logits[:TOKEN_ROWS], rows.hidden[-1][:TOKEN_ROWS], cache))
    assert adapter.entered == 1
    (logits, hidden, cache), (logits_beside, hidden_beside, cache_beside) = results
    # Masked keys add an exact zero; only the width of a product may round otherwise (GPT-2).
    assert (logits - logits_beside).abs().max() < 1e-12
    assert (hidden - hidden_beside).abs().max() < 1e-12
    assert cache.length == cache_beside.length == len(PREFIX) + 4
    for layer, beside in zip(cache.layers, cache_beside.layers, strict=True):
        assert isinstance(layer, PathLayer) and isinstance(beside, PathLayer)
        assert layer.length == beside.length == len(PREFIX) + 4  # no probe stayed
        assert layer.keys is not None and beside.keys is not None
        kept = layer.keys[..., : layer.length, :]
        torch.testing.assert_close(kept, beside.keys[..., : layer.length, :], atol=1e-12, rtol=0)


def test_blocks_of_a_known_shape_reuse_its_template(
    tiny_backbone: Callable[[str], Backbone],
) -> None:
    backbone = tiny_backbone("llama")
    cache = PathCache()
    backbone.prefill(PREFIX, cache)
    before = backbone.templates.rebuilds
    for amount in range(5):
        probes = make_probes(backbone.hidden_size, GatedScale(float(amount)))
        backbone.forward(Block(amount, TREE, probes), cache)
        cache.keep([0, 1 + amount % 2])
    assert backbone.templates.rebuilds == before + 1
