"""Merged trees: siblings joined, the likeliest kept, and rejection still lossless."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from mtp.drafters.merge import merge, select, weigh
from mtp.sampling import Noise, pick
from mtp.tree import ROOT, DraftTree, chain, trie
from mtp.verify import rejection


def tree_of(paths: Sequence[Sequence[int]], origin: str) -> DraftTree:
    return trie([(path, 1.0) for path in paths], origin, 99)


def test_siblings_with_the_same_token_become_one_node() -> None:
    merged = merge({"a": tree_of([(1, 2), (3,)], "a"), "b": tree_of([(1, 4), (1, 2, 5)], "b")})
    weigh(merged, lambda name, q, depth: 0.5 * q)
    tree, kept = select(merged, 99)
    paths = {
        tuple(tree.token_ids[n] for n in tree.path(node)): set(tree.origins[node])
        for node in range(len(tree))
    }
    assert paths == {
        (1,): {"a", "b"},
        (3,): {"a"},
        (1, 2): {"a", "b"},
        (1, 4): {"b"},
        (1, 2, 5): {"b"},
    }
    assert len(kept) == len(tree) == 5
    assert list(tree.depths) == sorted(tree.depths)


def test_two_witnesses_make_a_token_likelier_and_siblings_add_up_to_one() -> None:
    merged = merge({"a": tree_of([(1,), (2,)], "a"), "b": tree_of([(1,), (3,)], "b")})
    weigh(merged, lambda name, q, depth: 0.4)
    chances = {one.token: one.chance for one in merged.candidates}
    total = 0.64 + 0.4 + 0.4
    assert chances == pytest.approx({1: 0.64 / total, 2: 0.4 / total, 3: 0.4 / total})


@pytest.mark.parametrize("most", range(1, 8))
def test_the_likeliest_nodes_are_kept_ancestors_first(most: int) -> None:
    merged = merge({"a": tree_of([(1, 2, 3), (1, 4)], "a"), "b": tree_of([(5, 6), (7,)], "b")})
    chance = {"a": 0.9, "b": 0.3}
    weigh(merged, lambda name, q, depth: chance[name] * q)
    tree, kept = select(merged, most)
    assert len(tree) == min(most, 7)
    values = [merged.candidates[index].value for index in kept]
    left = [one.value for i, one in enumerate(merged.candidates) if i not in kept]
    assert not left or min(values) >= max(left) - 1e-12
    for node, parent in enumerate(tree.parents):
        assert parent < node


def test_sampled_nodes_are_kept_first_and_never_joined_with_each_other() -> None:
    q = {ROOT: torch.tensor([0.25, 0.75])}
    twice = DraftTree((1, 1), (ROOT, ROOT), (-0.3, -0.3), ("sampled",) * 2, (("m",),) * 2, q)
    merged = merge({"a": tree_of([(0,), (1, 0)], "a"), "m": twice})
    weigh(merged, lambda name, q, depth: 0.9)
    tree, _ = select(merged, 3)
    assert tree.token_ids == (1, 1, 0)
    assert tree.kind == ("sampled", "sampled", "deterministic")
    assert tree.origins == (("m", "a"), ("m",), ("a",))
    assert torch.equal(tree.q[ROOT], q[ROOT])
    assert tree.log_q[0] == pytest.approx(math.log(0.75))


# Rejection over merged trees, without a model: three tokens of a vocabulary of three.

SAMPLES = 12_000
SIZE = 3


class Toy:
    """A distribution by context, drawn once."""

    def __init__(self, seed: int, spread: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = {
            text: (spread * torch.randn(SIZE, generator=generator).double()).softmax(dim=0)
            for length in range(3)
            for text in itertools.product(range(SIZE), repeat=length)
        }

    def __getitem__(self, text: Sequence[int]) -> Tensor:
        return self.rows[tuple(text)]


def draw(p: Toy, q: Toy, seed: int, fixed: DraftTree, most: int) -> tuple[int, ...]:
    """Three tokens by drafting from q beside a fixed tree, and rejection against p."""
    noise = Noise(seed)
    text: list[int] = []
    while len(text) < 3:
        depth = min(2, 3 - len(text) - 1)
        sampled: list[int] = []
        rows: list[Tensor] = []
        for _ in range(depth):
            rows.append(q[(*text, *sampled)])
            sampled.append(pick(noise.u(len(text) + len(sampled), "draft"), rows[-1]))
        trees = {"m": chain(sampled, "m", [-1.0] * depth, rows)} if depth else {}
        trees |= {"a": fixed} if not text else {}
        merged = merge(trees)
        # Chances that depend on the draws make the kept nodes depend on them, too.
        weigh(merged, lambda name, q, depth: 0.1 + 0.1 * sum(sampled))  # noqa: B023
        tree, _ = select(merged, most)
        start = tuple(text)
        verdict = rejection(
            tree,
            lambda row: p[(*start, *(tree.token_ids[n] for n in tree.path(row)))],  # noqa: B023
            noise,
            len(text),
        )
        text += [decision.token for decision in verdict.decisions][: 3 - len(text)]
    return tuple(text)


def chance_of(found: Counter[tuple[int, ...]], expected: Mapping[tuple[int, ...], float]) -> float:
    """The chi-square test's p-value."""
    total = found.total()
    statistic = sum((found[t] - total * p) ** 2 / (total * p) for t, p in expected.items())
    half = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, torch.tensor(statistic / 2, dtype=torch.float64)))


@pytest.mark.parametrize("most", [3, 5])
def test_rejection_over_merged_trees_keeps_the_distribution(most: int) -> None:
    p, q = Toy(1, 1.0), Toy(2, 1.5)
    expected = {
        text: float(p[()][text[0]] * p[text[:1]][text[1]] * p[text[:2]][text[2]])
        for text in itertools.product(range(SIZE), repeat=3)
    }
    fixed = tree_of([(0, 1), (0, 2), (1, 0)], "a")
    found = Counter(draw(p, q, seed, fixed, most) for seed in range(SAMPLES))
    assert chance_of(found, expected) > 1e-3
