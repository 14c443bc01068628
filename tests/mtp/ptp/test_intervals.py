"""Noise of known tokens: inverse to Pick, on the grid, uniform where the token is drawn."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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


def test_tokens_that_no_grid_point_picks_are_told():
    rows = [[0.5 + 1e-9, 1e-9, 0.5 - 2e-9], [0.0, 1.0, 0.0]]
    p = torch.tensor(rows, dtype=torch.float64)
    for token, wanted in ((0, [True, False]), (1, [False, True]), (2, [True, False])):
        assert drawable(*intervals(p, torch.tensor([token, token]))).tolist() == wanted


@given(st.integers(0, 10**6), st.sampled_from(SAMPLINGS))
def test_the_noise_of_drawn_tokens_is_uniform(seed, sampling):
    """t ~ P and ũ ~ U(0, 1) give u ~ U(0, 1): else training would meet another noise."""
    generator = torch.Generator().manual_seed(seed)
    count = 2000
    p = final_probabilities(rows(seed, count, spread=3.0), sampling)
    drawn = torch.multinomial(p, 1, generator=generator)[:, 0]
    share = torch.rand(count, generator=generator, dtype=torch.float64)
    u = noise_inside(*intervals(p, drawn), share)
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-6


def test_training_shares_lie_near_the_edges():
    shares = training_shares(4000, torch.Generator().manual_seed(0)).numpy()
    assert stats.kstest(shares, stats.beta(0.3, 0.3).cdf).pvalue > 1e-3
