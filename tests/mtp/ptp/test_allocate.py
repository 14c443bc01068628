"""The budget's shares are the best ones, by trying all."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp.ptp.allocate import allocate, chances_of_ending


def test_the_chances_of_ending_sum_to_one():
    assert chances_of_ending([]) == [1.0]
    assert chances_of_ending([0.8, 0.5]) == pytest.approx([0.2, 0.4, 0.4])


def worth(rows, ending, gains):
    expected = [0.0, *gains]
    return sum(a * expected[min(b, len(gains))] for a, b in zip(ending, rows, strict=True))


@given(
    st.lists(st.floats(0.05, 0.95), max_size=3),
    st.integers(0, 8),
    st.lists(st.floats(0.05, 1.0), min_size=1, max_size=4),
)
def test_no_other_share_is_worth_more(stands, budget, steps):
    ending = chances_of_ending(stands)
    steps = sorted(steps, reverse=True)  # concave: each further row brings less
    gains = list(itertools.accumulate(steps))
    longest = [4] * len(ending)
    rows = allocate(ending, budget, longest, gains)
    assert sum(rows) <= budget and all(b <= 4 for b in rows)
    best = max(
        worth(other, ending, gains)
        for other in itertools.product(range(5), repeat=len(ending))
        if sum(other) <= budget
    )
    assert worth(rows, ending, gains) == pytest.approx(best)


def test_a_first_row_that_brings_nothing_is_never_left_alone():
    rows = allocate([0.5, 0.5], 5, [4, 4], [0.0, 1.0, 1.8, 2.4])
    assert sum(rows) <= 5 and 1 not in rows and max(rows) >= 2
    assert allocate([1.0], 1, [4], [0.0, 1.0]) == [0]
    assert allocate([0.2, 0.8], 8, [0, 8], [0.0, 1.0, 1.8]) == [0, 3]
