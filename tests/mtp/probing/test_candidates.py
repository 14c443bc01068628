"""The draft tree from masks' predictions, compared with all trees where they can be listed."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from mtp.probing.candidates import grow, most_probable
from mtp.tree import ROOT

LOGITS = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0], [0.5, 0.4, 2.5, 0.3, 0.2]])


def test_most_probable_are_the_largest_logits_with_their_probability() -> None:
    found = most_probable(LOGITS, 2)
    log_p = LOGITS.log_softmax(dim=-1)
    assert [[token for token, _ in pairs] for pairs in found] == [[0, 1], [2, 0]]
    assert found[1][0][1] == pytest.approx(float(log_p[1, 2]))
    assert len(most_probable(LOGITS, 9)[0]) == 5


@pytest.mark.parametrize("most_nodes", range(1, 9))
def test_dynamic_trees_hold_the_most_probable_paths(most_nodes: int) -> None:
    root = 4
    tree = grow(root, most_probable(LOGITS, most_nodes + 1), most_nodes)
    p = LOGITS.softmax(dim=-1).tolist()
    first = (0, 1, 2, 3)  # the root's own token is pruned
    second = (2, 1, 3, 4)  # below the best, which is 0
    every: dict[tuple[int, ...], float] = {(token,): p[0][token] for token in first}
    every |= {(0, token): p[0][0] * p[1][token] for token in second}
    wanted = sorted(every, key=lambda path: -every[path])[:most_nodes]
    paths = [tuple(tree.token_ids[n] for n in tree.path(node)) for node in range(len(tree))]
    assert sorted(paths) == sorted(wanted)
    for path, log_q in zip(paths, tree.log_q, strict=True):
        assert log_q == pytest.approx(math.log(p[len(path) - 1][path[-1]]))
    assert list(tree.depths) == sorted(tree.depths)  # breadth first


def test_a_candidate_equal_to_its_parent_gives_way() -> None:
    tree = grow(0, most_probable(LOGITS, 5), 3, children=(2, 1))
    assert tree.token_ids == (1, 2, 2)  # not the root's 0
    assert tree.parents == (ROOT, ROOT, 0)
    same = most_probable(torch.tensor([[9.0, 0, 0, 0, 0], [9.0, 1.0, 0, 0, 0]]), 3)
    assert grow(3, same, 2, children=(1, 1)).token_ids == (0, 1)


def test_fixed_trees_have_children_per_depth() -> None:
    wide = torch.randn(3, 60, generator=torch.Generator().manual_seed(0))
    for children in ((4,), (14,), (15, 4), (5, 3, 2)):
        tree = grow(0, most_probable(wide, 1 + max(children)), sum(children), children)
        counts = [list(tree.depths).count(depth) for depth in range(len(children))]
        assert counts == list(children)
        parents = [{tree.parents[n] for n, d in enumerate(tree.depths) if d == depth}
                   for depth in range(len(children))]  # fmt: skip
        firsts = [ROOT, *itertools.accumulate(children[:-1], initial=0)]
        assert parents == [{first} for first in firsts[: len(children)]]


def test_nothing_foreseen_gives_no_tree() -> None:
    assert len(grow(1, (), 5)) == 0
    assert len(grow(1, [[(1, -0.5)]], 5)) == 0  # all there was is pruned
