"""Prompt lookup finds the latest, longest match and copies what followed, within its budget."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from mtp.drafters.base import Context, Draft
from mtp.drafters.pld import PromptLookup, find_continuations
from mtp.sampling import Noise, Sampling


def propose(drafter: PromptLookup, ids: Sequence[int], most_depth: int = 100) -> Draft:
    return drafter.propose(
        Context(
            token_ids=list(ids),
            prompt_length=1,
            hidden={},
            noise=Noise(0),
            sampling=Sampling(),
            verification="coupled",
            most_depth=most_depth,
            room=most_depth,
        )
    )


def search(ids: Sequence[int], longest: int) -> list[tuple[int, int]]:
    """By looking everywhere: (n, start) of all matches, longest first, then latest first."""
    size = len(ids)
    return [
        (n, start)
        for n in range(min(longest, size - 1), 0, -1)
        for start in range(size - 1, n - 1, -1)
        if list(ids[start - n : start]) == list(ids[size - n :])
    ]


def test_the_longest_match_counts_and_then_the_latest() -> None:
    ids = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3, 7, 3, 6, 1, 2, 3]
    assert find_continuations(np.array(ids), 3, 1) == (3, [10])
    assert find_continuations(np.array(ids), 3, 4) == (3, [10, 3, 6, 12])
    assert find_continuations(np.array(ids), 1, 2) == (1, [12, 10])


def test_no_match_and_too_little_text() -> None:
    assert find_continuations(np.array([1, 2, 3]), 3, 4) == (0, [])
    assert find_continuations(np.array([1]), 3, 4) == (0, [])
    assert find_continuations(np.array([1, 1]), 3, 4) == (1, [1])


def test_matches_are_those_found_by_looking_everywhere() -> None:
    random = np.random.default_rng(0)
    for size, longest, most in itertools.product((1, 2, 5, 30), (1, 2, 4), (1, 3, 64)):
        for _ in range(20):
            ids = random.integers(3, size=size)
            found = search(ids.tolist(), longest)
            places: list[int] = []
            for n, start in found:
                if len(places) >= most and found and n < found[0][0]:
                    break
                places += [start] if start not in places else []
            assert find_continuations(ids, longest, most) == (
                found[0][0] if found else 0,
                places[:most],
            )


def test_one_branch_copies_a_chain() -> None:
    draft = propose(PromptLookup(), [5, 6, 7, 8, 9, 5, 6])
    assert draft.tree.token_ids == (7, 8, 9, 5, 6)
    assert draft.tree.parents == (-1, 0, 1, 2, 3)
    assert set(draft.tree.kind) == {"deterministic"} and set(draft.tree.log_q) == {0.0}
    assert draft.insight == {"kind": "lookup", "matched": 2, "places": [2]}


def test_branches_merge_what_they_share() -> None:
    ids = [1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 6, 0, 1, 2]
    tree = propose(PromptLookup(length=2, branches=3), ids).tree
    paths = {tuple(tree.token_ids[n] for n in tree.path(node)) for node in range(len(tree))}
    assert paths == {(3,), (6,), (3, 4), (3, 5), (6, 0)}
    shares = dict(zip(tree.token_ids, tree.log_q, strict=True))
    assert math.exp(shares[3]) == pytest.approx(2 / 3)
    assert math.exp(shares[6]) == pytest.approx(1 / 3)
    assert math.exp(shares[4]) == pytest.approx(1 / 2)


@pytest.mark.parametrize("branches", [1, 5])
@pytest.mark.parametrize("budget", [1, 4, 30])
@pytest.mark.parametrize("most_depth", [0, 1, 3, 100])
def test_a_draft_stays_within_budget_length_and_room(
    branches: int, budget: int, most_depth: int
) -> None:
    ids = np.random.default_rng(1).integers(4, size=80).tolist()
    draft = propose(PromptLookup(budget, length=6, branches=branches), ids, most_depth)
    assert len(draft.tree) <= budget and draft.budget_rows == 1 + budget
    assert max(draft.tree.depths, default=-1) + 1 <= min(6, most_depth, budget)
    assert bool(len(draft.tree)) == (most_depth > 0)


def test_an_empty_draft_says_why() -> None:
    assert propose(PromptLookup(), [1, 2, 3]).why_empty == (
        "The last token has not stood in the text before."
    )
    assert propose(PromptLookup(), [1, 1], most_depth=0).why_empty == "One token is left to write."


def test_a_long_text_is_searched_quickly() -> None:
    ids = np.zeros(8000, dtype=np.int64)  # the worst case: everything matches
    matched, places = find_continuations(ids, 3, 8)
    assert matched == 3 and places == list(range(7999, 7991, -1))
