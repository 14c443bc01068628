"""Noise of known tokens: inverse to Pick, on the grid, uniform where the token is drawn."""

import pytest
import torch
from scipy import stats

from mtp.ptp.intervals import GRID, drawable, intervals, noise_inside, training_shares
from mtp.sampling import Sampling, final_probabilities, pick

SAMPLINGS = [Sampling(1.0), Sampling(0.7), Sampling(0.7, top_p=0.8), Sampling(1.3, 5, 0.9)]


def rows(seed, count=64, size=11, spread=6.0):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(count, size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_pick_and_intervals_are_inverse_for_every_token(sampling, share):
    logits = rows(0)
    p = final_probabilities(logits, sampling)
    for token in range(11):  # the first and the last included
        tokens = torch.full((64,), token)
        low, high = intervals(p, tokens)
        assert ((high - low) - p[:, token]).abs().max() < 1e-12
        u = noise_inside(low, high, torch.full((64,), share, dtype=torch.float64))
        assert torch.equal(u * GRID, (u * GRID).round()) and bool(((u >= 0) & (u < 1)).all())
        for row in drawable(low, high).nonzero()[:, 0].tolist():
            assert pick(float(u[row]), p[row]) == token, (row, token)


@pytest.mark.parametrize("size", [11, 264])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_tokens_that_can_be_drawn_are_those_that_some_noise_picks(sampling, size):
    """By trying the grid points on both sides of every edge, and some others."""
    some = torch.arange(0, GRID, 1 << 16).double() / GRID
    total = 0
    for p in final_probabilities(rows(1, 8, size, spread=1.5), sampling):
        low, high = intervals(p.expand(size, size), torch.arange(size))
        near = torch.ceil(torch.cat([low, high]) * GRID)
        near = torch.cat([near - 1, near]).clamp(0, GRID - 1) / GRID
        found = {pick(float(u), p) for u in torch.cat([near, some])}
        assert set(drawable(low, high).nonzero()[:, 0].tolist()) == found
        total += len(found)
    assert total > 16


def test_tokens_that_no_grid_point_picks_are_told():
    rows = [[0.5 + 1e-9, 1e-9, 0.5 - 2e-9], [0.0, 1.0, 0.0]]
    p = torch.tensor(rows, dtype=torch.float64)
    for token, wanted in ((0, [True, False]), (1, [False, True]), (2, [True, False])):
        assert drawable(*intervals(p, torch.tensor([token, token]))).tolist() == wanted


def noise_of_drawn(drawn_with, known_with):
    """The noise that is found for tokens drawn with one sampling where another is assumed."""
    generator = torch.Generator().manual_seed(1)  # not that of the logits
    logits = rows(0, 200_000, spread=3.0)
    p = final_probabilities(logits, drawn_with)
    drawn = torch.multinomial(p, 1, generator=generator)[:, 0]
    share = torch.rand(len(p), generator=generator, dtype=torch.float64)
    low, high = intervals(final_probabilities(logits, known_with), drawn)
    there = high > low
    return noise_inside(low[there], high[there], share[there]).numpy()


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_noise_of_drawn_tokens_is_uniform(sampling):
    """t ~ P and ũ ~ U(0, 1) give u ~ U(0, 1): else training would meet another noise."""
    assert stats.kstest(noise_of_drawn(sampling, sampling), "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    ("drawn_with", "known_with"),
    [
        (Sampling(0.7), Sampling(0.85)),
        (Sampling(0.7), Sampling(1.0)),
        (Sampling(0.7, top_p=0.8), Sampling(0.7)),
        (Sampling(1.3, 5, 0.9), Sampling(1.3)),
    ],
)
def test_the_noise_of_tokens_drawn_otherwise_is_not(drawn_with, known_with):
    assert stats.kstest(noise_of_drawn(drawn_with, known_with), "uniform").pvalue < 1e-3


def test_training_shares_lie_near_the_edges():
    shares = training_shares(4000, torch.Generator().manual_seed(0)).numpy()
    assert stats.kstest(shares, stats.beta(0.3, 0.3).cdf).pvalue > 1e-3
