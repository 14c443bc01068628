"""The cache after any sequence of blocks is that of a fresh prefill of the tokens kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from mtp.models.backbone import Backbone, Block
from mtp.models.cache import PathCache, PathLayer
from mtp.records.trace import Kind
from mtp.tree import DraftTree

ARCHITECTURES = ("llama", "qwen3", "gpt2", "gemma2", "mistral")


def random_tree(random: np.random.Generator, size: int, vocabulary: int) -> DraftTree:
    kind: Kind = "deterministic"
    return DraftTree(
        token_ids=tuple(int(token) for token in random.integers(vocabulary, size=size)),
        parents=tuple(int(random.integers(-1, node)) for node in range(size)),
        log_q=(0.0,) * size,
        kind=(kind,) * size,
        origins=(("toy",),) * size,
    )


def cached(cache: PathCache) -> list[tuple[torch.Tensor, torch.Tensor]]:
    states = []
    for layer in cache.layers:
        assert isinstance(layer, PathLayer) and layer.keys is not None and layer.values is not None
        assert layer.get_seq_length() == layer.length == cache.length
        states.append((layer.keys[..., : layer.length, :], layer.values[..., : layer.length, :]))
    return states


def assert_fresh(cache: PathCache, backbone: Backbone, tokens: list[int]) -> None:
    assert cache.length == len(tokens)
    fresh = PathCache()
    backbone.prefill(tokens, fresh)
    eager = backbone.config._attn_implementation == "eager"  # its softmax is float32
    for mine, theirs in zip(cached(cache), cached(fresh), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6 if eager else 1e-11, rtol=0)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("seed", [0, 1])
def test_keep_leaves_what_a_fresh_prefill_gives(
    tiny_backbone: Callable[[str], Backbone], name: str, seed: int
) -> None:
    backbone = tiny_backbone(name)
    random = np.random.default_rng(seed)
    tokens = [int(token) for token in random.integers(40, size=5)]
    cache = PathCache()
    backbone.prefill(tokens, cache)
    for _ in range(12):
        root = int(random.integers(40))
        tree = random_tree(random, int(random.integers(0, 9)), 40)
        backbone.forward(Block(root, tree), cache)
        node = int(random.integers(-1, len(tree)))  # any node may turn out the deepest
        path = tree.path(node)
        cache.keep([0, *(n + 1 for n in path)])
        tokens += [root, *(tree.token_ids[n] for n in path)]
    assert len(tokens) > 16
    assert_fresh(cache, backbone, tokens)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_the_cache_grows_past_its_capacity(
    tiny_backbone: Callable[[str], Backbone], name: str
) -> None:
    backbone = tiny_backbone(name)
    random = np.random.default_rng(2)
    tokens = [int(token) for token in random.integers(40, size=240)]
    cache = PathCache()
    backbone.prefill(tokens, cache)
    capacities = set()
    while len(tokens) < 270:  # over the first 256
        tree = random_tree(random, 6, 40)
        root = int(random.integers(40))
        backbone.forward(Block(root, tree), cache)
        path = tree.path(5)
        cache.keep([0, *(n + 1 for n in path)])
        tokens += [root, *(tree.token_ids[n] for n in path)]
        layer = cache.layers[0]
        assert isinstance(layer, PathLayer) and layer.keys is not None
        capacities.add(layer.keys.shape[-2])
    assert capacities == {256, 512}
    assert_fresh(cache, backbone, tokens)
    more = [int(token) for token in random.integers(40, size=400)]
    backbone.prefill(more, cache)  # over the next 512 at once
    assert_fresh(cache, backbone, tokens + more)


def test_a_prefill_in_chunks_is_one_prefill(tiny_backbone: Callable[[str], Backbone]) -> None:
    backbone = tiny_backbone("gemma2")
    tokens = [int(token) for token in np.random.default_rng(3).integers(40, size=600)]
    cache = PathCache()
    hidden = backbone.prefill(tokens, cache, hidden_layers=(0, -1))
    assert backbone.forwards == 2 and backbone.rows == 600
    one_by_one = PathCache()
    backbone.prefill(tokens[:599], one_by_one)
    last = backbone.forward(Block(tokens[599], hidden_layers=(0, -1)), one_by_one)
    for layer in (0, -1):
        assert hidden[layer].shape == (600, 32)
        torch.testing.assert_close(hidden[layer][-1:], last.hidden[layer], atol=1e-6, rtol=0)


def test_keeping_nothing_drops_the_block(tiny_backbone: Callable[[str], Backbone]) -> None:
    backbone = tiny_backbone("llama")
    cache = PathCache()
    backbone.prefill([1, 2, 3], cache)
    before = [(keys.clone(), values.clone()) for keys, values in cached(cache)]
    backbone.forward(Block(4), cache)
    cache.keep([])
    assert cache.length == 3
    for mine, theirs in zip(cached(cache), before, strict=True):
        assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])
