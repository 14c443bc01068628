"""Reading from left to right: prefix marginals, conditionals, sampling with given noise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mtp.circuits.circuit import UNKNOWN
from mtp.circuits.prefix import (
    conditionals,
    next_conditional,
    pick_rows,
    prefix_marginals,
    sample_with_noise,
)
from mtp.sampling import pick

quick = settings(deadline=None, max_examples=25)


@quick
@given(data=st.data())
def test_prefix_marginals_equal_enumeration(small, data):
    circuit = data.draw(small.circuits())
    n = circuit.structure.window
    windows = small.windows(n, circuit.vocabulary)
    found = prefix_marginals(circuit, windows).exp().numpy()
    q = small.of_tokens(circuit)
    for k in range(n + 1):
        marginal = q.sum(axis=tuple(range(k, n)))
        wanted = [marginal[tuple(window[:k])] for window in windows.tolist()]
        np.testing.assert_allclose(found[:, k], wanted, rtol=0, atol=1e-9)


@quick
@given(data=st.data())
def test_conditionals_equal_enumeration(small, data):
    circuit = data.draw(small.circuits())
    n = circuit.structure.window
    windows = small.windows(n, circuit.vocabulary)[::3]
    found = conditionals(circuit, windows).exp().numpy()
    q = small.of_tokens(circuit)
    for row, window in zip(found, windows.tolist(), strict=True):
        for j in range(n):
            joint = q[tuple(window[:j])].sum(axis=tuple(range(1, n - j)))
            np.testing.assert_allclose(row[j], joint / joint.sum(), rtol=0, atol=1e-9)


def test_conditionals_are_differences_of_prefix_marginals(small):
    circuit = small.circuit("btree", 16, 4, 5)
    windows = torch.randint(5, (7, 16), generator=torch.Generator().manual_seed(0))
    steps = prefix_marginals(circuit, windows).diff(dim=1)
    chosen = conditionals(circuit, windows).gather(2, windows[:, :, None])[..., 0]
    torch.testing.assert_close(steps, chosen)
    torch.testing.assert_close(
        next_conditional(circuit, windows[:, :5]), conditionals(circuit, windows)[:, 5]
    )


@quick
@given(data=st.data())
def test_noise_picks_each_token_from_its_conditional(small, data):
    circuit = data.draw(small.circuits())
    n = circuit.structure.window
    noise = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=n, max_size=n))
    drawn = sample_with_noise(circuit, torch.tensor([noise], dtype=torch.float64))
    given_drawn = conditionals(circuit, drawn.tokens)[0]
    wanted = [pick(u, row.exp()) for u, row in zip(noise, given_drawn, strict=True)]
    assert drawn.tokens[0].tolist() == wanted
    total = prefix_marginals(circuit, drawn.tokens)[:, -1]
    torch.testing.assert_close(drawn.log_q.sum(1), total)


@pytest.mark.parametrize("name", ["cp", "hmm", "btree"])
def test_noise_draws_pass_a_chi_square(small, name):
    circuit = small.circuit(name, 4, 3, 2, seed=3)
    noise = torch.rand(20_000, 4, generator=torch.Generator().manual_seed(0))
    tokens = sample_with_noise(circuit, noise).tokens
    cells = (tokens * torch.tensor([8, 4, 2, 1])).sum(1)
    counts = torch.bincount(cells, minlength=16)
    wanted = small.of_tokens(circuit).ravel() * len(noise)
    assert stats.chisquare(counts.numpy(), wanted).pvalue > 1e-3


def test_given_tokens_are_kept_and_conditioned_on(small):
    circuit = small.circuit("hmm", 4, 3, 3)
    noise = torch.rand(50, 4, generator=torch.Generator().manual_seed(0))
    kept = torch.tensor([[2, UNKNOWN, 1]])
    drawn = sample_with_noise(circuit, noise, kept)
    assert set(drawn.tokens[:, 0].tolist()) == {2}
    assert set(drawn.tokens[:, 2].tolist()) == {1}
    given_drawn = conditionals(circuit, drawn.tokens)
    torch.testing.assert_close(drawn.tokens[:, 1], pick_rows(noise[:, 1], given_drawn[:, 1]))


def test_pick_takes_the_first_token_whose_edge_lies_above_the_noise():
    quarters = torch.tensor([[0.25, 0.0, 0.25, 0.5]], dtype=torch.float64).log()
    noise = torch.tensor([0.0, 0.2499, 0.25, 0.4999, 0.5, 0.9999], dtype=torch.float64)
    assert pick_rows(noise, quarters.expand(6, -1)).tolist() == [0, 0, 2, 2, 3, 3]
