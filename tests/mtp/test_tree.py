"""Draft trees, probes, and the mask and positions of their blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mtp.records.trace import Kind
from mtp.tree import ROOT, DraftTree, Probes, Templates, build_template, chain, trie


def tree_of(parents: tuple[int, ...]) -> DraftTree:
    size = len(parents)
    kind: Kind = "deterministic"
    return DraftTree(
        token_ids=tuple(range(10, 10 + size)),
        parents=parents,
        log_q=(0.0,) * size,
        kind=(kind,) * size,
        origins=(("toy",),) * size,
    )


def probes_of(owner: tuple[int, ...], slot: tuple[int, ...], sees: np.ndarray) -> Probes:
    return Probes(owner, slot, torch.zeros(len(owner), 4), sees)


def test_depths_children_and_paths() -> None:
    tree = tree_of((-1, -1, 0, 2, 0))
    assert len(tree) == 5
    assert tree.depths == (0, 0, 1, 2, 1)
    assert tree.children == {ROOT: (0, 1), 0: (2, 4), 2: (3,)}
    assert tree.path(3) == (0, 2, 3)
    assert tree.path(ROOT) == ()
    assert DraftTree().depths == () and len(DraftTree()) == 0


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-2,), (1, -1)])
def test_a_parent_comes_before_its_children(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must come before"):
        tree_of(parents)


def test_a_tree_needs_whole_columns_and_q_of_sampled_nodes() -> None:
    with pytest.raises(ValueError, match="one entry a node"):
        DraftTree(token_ids=(1, 2), parents=(-1,), log_q=(0.0,), kind=("deterministic",))
    with pytest.raises(ValueError, match="need q"):
        DraftTree((1,), (-1,), (0.0,), ("sampled",), (("toy",),))


def test_a_chain_is_sampled_when_it_comes_with_distributions() -> None:
    plain = chain([4, 5, 6], "toy")
    assert plain.parents == (-1, 0, 1) and set(plain.kind) == {"deterministic"}
    q = [torch.full((8,), 0.125)] * 2
    sampled = chain([4, 5], "toy", log_q=[math.log(0.125)] * 2, q=q)
    assert set(sampled.kind) == {"sampled"} and sorted(sampled.q) == [-1, 0]


def test_a_trie_merges_prefixes_and_counts_shares() -> None:
    tree = trie([([1, 2, 3], 1.0), ([1, 2, 4], 1.0), ([5], 1.0), ([1, 6], 1.0)], "toy", 10)
    paths = {tuple(tree.token_ids[n] for n in tree.path(node)) for node in range(len(tree))}
    assert paths == {(1,), (5,), (1, 2), (1, 6), (1, 2, 3), (1, 2, 4)}
    share = {
        tuple(tree.token_ids[n] for n in tree.path(node)): math.exp(tree.log_q[node])
        for node in range(len(tree))
    }
    assert share[(1,)] == pytest.approx(3 / 4)
    assert share[(1, 2)] == pytest.approx(2 / 3)
    assert share[(1, 2, 3)] == pytest.approx(1 / 2)
    assert tree.depths == tuple(sorted(tree.depths))  # breadth first


@pytest.mark.parametrize("budget", range(1, 9))
def test_a_trie_within_a_budget_keeps_whole_paths(budget: int) -> None:
    copies = [([1, 2, 3, 4], 1.0), ([1, 2, 9], 1.0), ([7, 8], 1.0)]
    tree = trie(copies, "toy", budget)
    assert len(tree) == min(budget, 7)
    if budget >= 2:
        assert tree.token_ids[:2] == (1, 2) or (1 in tree.token_ids and 2 in tree.token_ids)
    for node in range(len(tree)):
        path = [tree.token_ids[n] for n in tree.path(node)]
        assert any(path == tokens[: len(path)] for tokens, _ in copies)


def test_a_row_sees_its_path_and_nothing_else() -> None:
    tree = tree_of((-1, -1, 0, 2, 1))
    template = build_template(tree, None)
    assert template.offsets.tolist() == [0, 1, 1, 2, 3, 2]
    for node in range(len(tree)):
        seen = {0, node + 1} | {n + 1 for n in tree.path(node)}
        assert set(template.mask[node + 1].nonzero().flatten().tolist()) == seen
    assert template.mask[0].tolist() == [True] + [False] * 5


def test_a_probe_sees_its_owners_path_and_the_probes_it_names() -> None:
    tree = tree_of((-1, -1, 0))
    sees = np.zeros((4, 4), dtype=bool)
    sees[1, 0] = sees[3, 2] = True
    template = build_template(tree, probes_of((-1, -1, 2, 2), (1, 2, 0, 1), sees))
    assert template.offsets.tolist() == [0, 1, 1, 2, 1, 2, 2, 3]
    seen = [set(row.nonzero().flatten().tolist()) for row in template.mask]
    assert seen[4:] == [{0, 4}, {0, 4, 5}, {0, 1, 3, 6}, {0, 1, 3, 6, 7}]
    assert all(max(row) < 4 for row in seen[:4])  # tokens never see probes


def test_probes_need_whole_columns() -> None:
    with pytest.raises(ValueError, match="one owner, slot, embedding"):
        probes_of((-1, -1), (1,), np.zeros((2, 2), dtype=bool))
    with pytest.raises(ValueError, match="one owner, slot, embedding"):
        probes_of((-1, -1), (1, 2), np.zeros((3, 3), dtype=bool))


def test_templates_are_reused_by_shape_and_forgotten_by_age() -> None:
    templates = Templates(capacity=2)
    first = templates.get(tree_of((-1, 0)), None)
    other = DraftTree((8, 9), (-1, 0), (0.0,) * 2, ("deterministic",) * 2, (("other",),) * 2)
    assert templates.get(other, None) is first  # the tokens do not matter
    assert templates.rebuilds == 1
    probes = probes_of((-1,), (1,), np.zeros((1, 1), dtype=bool))
    assert templates.get(tree_of((-1, 0)), probes) is not first
    assert templates.get(tree_of((-1, 0)), probes_of((-1,), (2,), probes.sees)) is not first
    assert templates.rebuilds == 3
    templates.get(tree_of((-1, 0)), None)  # the oldest of three: gone from room for two
    assert templates.rebuilds == 4
