"""Final distributions, Pick and its intervals, and noise by position and stream."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mtp.errors import InputError
from mtp.sampling import (
    MAX_SEED,
    NOISE_BITS,
    Noise,
    Sampling,
    Stream,
    cumulative,
    final_probabilities,
    interval,
    pick,
)

STREAMS: tuple[Stream, ...] = ("pick", "accept", "residual", "draft")
LAST_U = 1 - 2.0**-NOISE_BITS  # the largest noise there is


def random_logits(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 2.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (1, 1.0), (5, 1.0), (500, 1.0), (0, 0.01), (0, 0.5), (7, 0.9)]
)
def test_final_distribution_is_that_of_transformers(
    temperature: float, top_k: int, top_p: float
) -> None:
    logits = random_logits(0, 20, 50)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    no_ids: Any = torch.zeros(20, 1, dtype=torch.long)
    expected = warpers(no_ids, logits.clone()).softmax(dim=-1)
    p = final_probabilities(logits, Sampling(temperature, top_k, top_p))
    assert p.dtype == torch.float64
    assert torch.equal(p > 0, expected > 0)
    torch.testing.assert_close(p, expected, atol=1e-14, rtol=1e-12)


def test_greedy_takes_the_first_of_equal_logits() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    p = final_probabilities(logits, Sampling(temperature=0))
    assert p.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert pick(0.0, p[0]) == pick(LAST_U, p[0]) == 1
    assert Sampling(temperature=0).greedy and not Sampling(temperature=0.1).greedy


def test_ties_at_the_edge_of_top_k_keep_exactly_k() -> None:
    p = final_probabilities(torch.zeros(6), Sampling(1.0, top_k=2))
    assert sorted(p.tolist()) == [0, 0, 0, 0, 0.5, 0.5]


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, 6, 1.0), Sampling(1.0, 0, 0.6)])
def test_intervals_tile_the_noise_and_pick_inverts_them(sampling: Sampling) -> None:
    for seed in range(20):
        p = final_probabilities(random_logits(seed, 30), sampling)
        edges = cumulative(p)
        intervals = [interval(token, edges) for token in range(30)]
        assert intervals[0][0] == 0 and intervals[-1][1] == 1
        assert all(before[1] == after[0] for before, after in pairwise(intervals))
        for token, (low, high) in enumerate(intervals):
            assert high - low == pytest.approx(float(p[token]), abs=1e-15)
            if p[token] == 0:
                assert low == high
                continue
            assert pick(low, p) == token  # the low end belongs to the token, the high end not
            assert pick((low + high) / 2, p) == token
            assert pick(math.nextafter(high, 0), p) == token


def test_pick_at_both_ends_passes_over_removed_tokens() -> None:
    p = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0], dtype=torch.float64)
    assert pick(0.0, p) == 1
    assert pick(0.25 - 2**-24, p) == 1
    assert pick(0.25, p) == 3
    assert pick(LAST_U, p) == 3


def test_pick_does_not_need_a_sum_of_one() -> None:
    p = torch.full((10,), 0.1, dtype=torch.float64)  # sums to 0.9999999999999999
    assert pick(LAST_U, p) == 9
    assert cumulative(p)[-1] == 1


def test_picks_have_the_frequencies_of_the_distribution() -> None:
    p = final_probabilities(random_logits(3, 8), Sampling(1.5))
    noise = Noise(11)
    count = 4000
    found = np.bincount([pick(noise.u(t, "pick"), p) for t in range(count)], minlength=8)
    expected = count * p.numpy()
    statistic = float(((found - expected) ** 2 / expected).sum())
    chance = torch.special.gammaincc(torch.tensor(7 / 2.0), torch.tensor(statistic / 2))
    assert chance > 1e-4


def test_noise_is_a_pure_function_of_seed_position_stream_and_index() -> None:
    places = [
        (seed, position, stream, index)
        for seed in (0, 1, MAX_SEED)
        for position in (0, 1, 70_000)
        for stream in STREAMS
        for index in (0, 1, 2)
    ]
    values = [Noise(seed).u(position, stream, index) for seed, position, stream, index in places]
    again = [
        Noise(seed).u(position, stream, index) for seed, position, stream, index in places[::-1]
    ]
    assert values == again[::-1]
    assert len(set(values)) == len(values)


def test_noise_is_exact_in_float32_and_below_one() -> None:
    for position in range(200):
        u = Noise(5).u(position, "pick")
        assert 0 <= u < 1
        assert float(np.float32(u)) == u
        assert (u * 2**NOISE_BITS).is_integer()


@pytest.mark.parametrize("stream", STREAMS)
def test_noise_is_uniform(stream: Stream) -> None:
    count = 4000
    for values in (
        [Noise(2).u(position, stream) for position in range(count)],  # along a text
        [Noise(seed).u(17, stream) for seed in range(count)],  # over seeds at one place
        [Noise(2).u(17, stream, index) for index in range(count)],  # over siblings
    ):
        ordered = np.sort(values)
        steps = np.arange(count)
        distance = max((ordered - steps / count).max(), ((steps + 1) / count - ordered).max())
        assert distance < 2.23 / math.sqrt(count)  # Kolmogorov-Smirnov, one in 10,000


def test_noise_streams_positions_seeds_and_siblings_are_uncorrelated() -> None:
    count = 4000
    columns = [[Noise(3).u(position, stream) for position in range(count)] for stream in STREAMS]
    columns.append([Noise(4).u(position, "pick") for position in range(count)])
    columns.append([Noise(3).u(position + 1, "pick") for position in range(count)])
    columns.append([Noise(3).u(position, "accept", 1) for position in range(count)])
    correlations = np.asarray(np.corrcoef(columns))
    beside = correlations[~np.eye(len(columns), dtype=bool)]
    assert np.abs(beside).max() < 4.5 / math.sqrt(count)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": -1}, "The temperature is -1; it can be from 0 (greedy) to 5."),
        ({"temperature": 5.1}, "The temperature is 5.1; it can be from 0 (greedy) to 5."),
        ({"temperature": math.nan}, "The temperature is nan; it can be from 0 (greedy) to 5."),
        ({"temperature": math.inf}, "The temperature is inf; it can be from 0 (greedy) to 5."),
        ({"top_k": -3}, "Top-k is -3; it can be 0 (off) or a positive number."),
        ({"top_p": 0}, "Top-p is 0; it can be above 0 and at most 1 (off)."),
        ({"top_p": 1.5}, "Top-p is 1.5; it can be above 0 and at most 1 (off)."),
        ({"top_p": math.nan}, "Top-p is nan; it can be above 0 and at most 1 (off)."),
    ],
)
def test_sampling_says_what_is_allowed(options: dict[str, float], said: str) -> None:
    with pytest.raises(InputError) as caught:
        Sampling(**options)  # type: ignore[arg-type]
    assert str(caught.value) == said


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1])
def test_noise_says_which_seeds_are_allowed(seed: int) -> None:
    with pytest.raises(InputError, match=f"The seed is {seed}; it can be from 0 to {MAX_SEED}."):
        Noise(seed)
