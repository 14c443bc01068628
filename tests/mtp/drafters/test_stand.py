"""Adaptive n-grams: longest match first, candidates by count, the likeliest tree."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from mtp.drafters.base import Context, Outcome
from mtp.drafters.ngrams import NgramCounts, most_probable_tree
from mtp.drafters.stand import AdaptiveNgrams
from mtp.sampling import Noise, Sampling


def counted(ids: list[int], longest: int = 3) -> NgramCounts:
    counts = NgramCounts(longest, escape=1.0)
    for position in range(1, len(ids)):
        counts.add(ids[:position], [(ids[position], 1.0)])
    return counts


def context(ids: list[int], most_depth: int = 100) -> Context:
    return Context(
        token_ids=ids,
        prompt_length=len(ids),
        hidden={},
        noise=Noise(0),
        sampling=Sampling(1.0),
        verification="coupled",
        most_depth=most_depth,
        room=most_depth,
    )


def test_longer_matches_count_first_and_leave_their_escape_to_shorter_ones() -> None:
    counts = counted([1, 2, 3, 9, 2, 4, 9, 2, 4, 7, 1, 2])
    # After (1, 2): 3 once. After (2): 3 once, 4 twice, of which 3 is known already.
    assert counts.after([5, 1, 2]) == [(3, 1 / 2), (4, pytest.approx(1 / 2 * 2 / 3))]
    assert counts.matched([5, 1, 2]) == 2
    assert counts.matched([8]) == 0 and counts.after([8]) == []


def test_probabilities_never_add_up_to_more_than_one() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, (200,), generator=generator).tolist()
    counts = counted(ids, longest=4)
    for end in range(1, 50):
        assert 0 < sum(p for _, p in counts.after(ids[:end])) < 1


@pytest.mark.parametrize("most_nodes", [1, 3, 8, 20])
def test_the_tree_holds_the_likeliest_paths(most_nodes: int) -> None:
    counts = counted([1, 2, 3, 1, 2, 4, 1, 3, 2, 1])
    ids, depth = [2, 1], 3
    every: dict[tuple[int, ...], float] = {}
    for length in range(1, depth + 1):
        for path in itertools.product(range(5), repeat=length):
            p = 1.0
            for end, token in enumerate(path):
                p *= dict(counts.after([*ids, *path[:end]])).get(token, 0.0)
            if p > 0:
                every[path] = p
    tree = most_probable_tree(counts, ids, most_nodes, depth, "stand")
    found = {}
    for node in range(len(tree)):
        path = tree.path(node)
        found[tuple(tree.token_ids[n] for n in path)] = math.exp(sum(tree.log_q[n] for n in path))
    assert len(found) == min(most_nodes, len(every))
    for path, p in found.items():
        assert p == pytest.approx(every[path])
    best = sorted(every.values(), reverse=True)[: len(found)]
    assert sorted(found.values(), reverse=True) == pytest.approx(best)


def test_the_verifiers_probabilities_count_where_they_are_known() -> None:
    drafter = AdaptiveNgrams(budget=2)
    draft = drafter.propose(context([1, 2, 1]))
    assert draft.tree.token_ids == (2,)
    logits = torch.full((1 + len(draft.tree), 6), -20.0)
    logits[0, 2], logits[0, 5] = math.log(0.4), math.log(0.6)
    logits[1, 3] = 0.0  # behind the node that stands
    drafter.observe(Outcome(draft, (0,), (2, 3), logits, {}), None)
    following = dict(drafter.counts.after([1]))
    assert following[2] == pytest.approx(1.4 / 2.5, abs=1e-3)  # once in the prompt, 0.4 here
    assert following[5] == pytest.approx(0.6 / 2.5, abs=1e-3)
    assert drafter.counts.after([1, 2, 1, 2])[0][0] == 3


def test_what_was_said_after_a_fallen_node_is_learnt_too() -> None:
    drafter = AdaptiveNgrams(budget=2)
    draft = drafter.propose(context([1, 2, 1]))
    logits = torch.full((2, 6), -20.0)
    logits[0, 5] = logits[1, 4] = 0.0  # 5 comes; had it been 2, then 4
    drafter.observe(Outcome(draft, (), (5,), logits, {}), None)
    assert drafter.counts.matched([2, 1, 2]) == 2  # not the longer run, which will not come again
    following = dict(drafter.counts.after([1, 2]))
    assert following[1] == pytest.approx(1 / 2.5, abs=1e-3)  # once in the prompt
    assert following[4] == pytest.approx(1 / 2.5, abs=1e-3)


def test_says_why_it_drafts_nothing() -> None:
    drafter = AdaptiveNgrams()
    assert "not stood in the text" in str(drafter.propose(context([1, 2, 3])).why_empty)
    assert "left to write" in str(drafter.propose(context([1, 1], most_depth=0)).why_empty)


def test_stays_within_depth_and_budget() -> None:
    drafter = AdaptiveNgrams(budget=6)
    tree = drafter.propose(context([1, 2, 3, 1, 2, 3, 1], most_depth=2)).tree
    assert 0 < len(tree) <= 5 and max(tree.depths) <= 1
