"""The NumPy path for one window agrees with the batched one, whatever is given or drawn."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp.circuits.circuit import UNKNOWN, Circuit
from mtp.circuits.conditioning import condition, token_marginals
from mtp.circuits.drafting import (
    advance,
    conditional,
    draw,
    from_circuit,
    responsible,
    sharpen,
    start,
)
from mtp.circuits.prefix import conditionals, prefix_marginals, sample_with_noise
from mtp.errors import InputError

quick = settings(deadline=None, max_examples=25)
ALL = [("ff", 1), ("cp", 4), ("hmm", 4), ("btree", 4)]


@quick
@given(data=st.data())
def test_every_conditional_and_marginal_equals_the_batched_ones(small, data):
    circuit = data.draw(small.circuits())
    n = circuit.structure.window
    window = data.draw(st.lists(st.integers(0, circuit.vocabulary - 1), min_size=n, max_size=n))
    wanted = conditionals(circuit, torch.tensor([window]))[0].exp().numpy()
    marginals = prefix_marginals(circuit, torch.tensor([window]))[0].numpy()
    one = from_circuit(circuit)
    prefix = start(one)
    for j, token in enumerate(window):
        assert prefix.log_prob == pytest.approx(marginals[j], abs=1e-9)
        np.testing.assert_allclose(conditional(one, prefix), wanted[j], rtol=0, atol=1e-9)
        prefix = advance(one, prefix, token)
    assert prefix.log_prob == pytest.approx(marginals[n], abs=1e-9)


@quick
@given(data=st.data())
def test_gaps_are_summed_out(small, data):
    circuit = data.draw(small.circuits())
    n = circuit.structure.window
    tokens = data.draw(st.lists(st.integers(UNKNOWN, circuit.vocabulary - 1), max_size=n - 1))
    posterior = condition(circuit, torch.tensor([tokens], dtype=torch.long))
    wanted = token_marginals(posterior)[0, len(tokens)].exp().numpy()
    one = from_circuit(circuit)
    found = conditional(one, start(one, tokens))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)


@quick
@given(data=st.data())
def test_the_component_said_to_have_given_a_token_is_the_likeliest_by_enumeration(small, data):
    circuit = data.draw(small.circuits())
    n, latents = circuit.structure.window, len(circuit.structure.latents)
    joint = small.joint(circuit)
    window = data.draw(st.lists(st.integers(0, circuit.vocabulary - 1), min_size=n, max_size=n))
    one = from_circuit(circuit)
    prefix = start(one)
    for j, token in enumerate(window):
        state, share = responsible(one, prefix, token)
        read = joint[(slice(None),) * latents + tuple(window[: j + 1])]
        read = read.sum(axis=tuple(range(latents, read.ndim)))  # over the later positions
        owner = circuit.structure.owners[j]
        if owner < 0:  # FF
            assert (state, share) == (0, pytest.approx(1.0))
        else:
            posterior = read.sum(axis=tuple(a for a in range(latents) if a != owner)) / read.sum()
            assert share == pytest.approx(posterior[state], abs=1e-9)
            assert posterior[state] == pytest.approx(posterior.max(), abs=1e-9)
        prefix = advance(one, prefix, token)


@pytest.mark.parametrize(("name", "rank"), ALL)
def test_drafts_with_noise_are_the_batched_drafts(small, name, rank):
    circuit = small.circuit(name, 16, rank, 7)
    noise = torch.rand(20, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given_token = torch.tensor([[3]])
    batched = sample_with_noise(circuit, noise, given_token)
    full = conditionals(circuit, batched.tokens).exp().numpy()
    one = from_circuit(circuit)
    for row, u in enumerate(noise.tolist()):
        drafted = draw(one, u[1:], [3])
        assert drafted.tokens == batched.tokens[row, 1:].tolist()
        np.testing.assert_allclose(drafted.log_q, batched.log_q[row, 1:], atol=1e-9)
        np.testing.assert_allclose(drafted.q, full[row, 1:], atol=1e-9)


@pytest.mark.parametrize(("name", "rank"), ALL)
def test_float32_stays_near_float64_over_long_windows(small, name, rank):
    circuit = small.circuit(name, 64, rank, 9)
    exact = from_circuit(circuit)
    sums = (circuit.root.float(), circuit.transitions.float())
    single = from_circuit(Circuit(circuit.structure, circuit.inputs.float(), *sums))
    noise = np.random.default_rng(0).random(64).tolist()
    drafted = draw(single, noise)
    prefix = start(exact, drafted.tokens)
    assert sum(drafted.log_q) == pytest.approx(prefix.log_prob, abs=1e-4)


@pytest.mark.parametrize(("name", "rank"), ALL)
def test_prefixes_branch_without_disturbing_each_other(small, name, rank):
    one = from_circuit(small.circuit(name, 4, rank, 3))
    fork = start(one, [2])
    before = conditional(one, fork).copy()
    left, right = advance(one, fork, 0), advance(one, fork, 1)
    np.testing.assert_array_equal(conditional(one, fork), before)
    for branch, token in ((left, 0), (right, 1)):
        alone = start(one, [2, token])
        np.testing.assert_array_equal(conditional(one, branch), conditional(one, alone))


def test_sharpening_raises_each_conditional_to_a_power(small):
    circuit = small.circuit("hmm", 4, 3, 5)
    one = from_circuit(circuit)
    noise = [0.2, 0.9, 0.4, 0.6]
    drafted = draw(one, noise, shape=sharpen(0.5))
    wanted = conditionals(circuit, torch.tensor([drafted.tokens]))[0].mul(2).softmax(-1)
    np.testing.assert_allclose(drafted.q, wanted, atol=1e-9)
    greedy = draw(one, noise, shape=sharpen(0))
    best = conditionals(circuit, torch.tensor([greedy.tokens]))[0].argmax(-1)
    assert greedy.tokens == best.tolist()
    assert greedy.log_q == [0.0] * 4


def test_tokens_of_probability_zero_say_nothing_when_given_and_are_refused_when_read(small):
    circuit = small.circuit("cp", 3, 2, 3)
    inputs = circuit.inputs.clone()
    inputs[:, 0, :, 1] = -torch.inf
    one = from_circuit(Circuit(circuit.structure, inputs, circuit.root, circuit.transitions))
    np.testing.assert_array_equal(
        conditional(one, start(one, [1])), conditional(one, start(one, [UNKNOWN]))
    )
    with pytest.raises(InputError, match="probability zero"):
        advance(one, start(one), 1)


def test_what_doesnt_fit_is_refused_with_a_reason(small):
    one = from_circuit(small.circuit("cp", 3, 2, 4))
    with pytest.raises(InputError, match="All 3 positions"):
        conditional(one, start(one, [0, 1, 2]))
    with pytest.raises(InputError, match="All 3 positions"):
        start(one, [0, 1, 2, UNKNOWN])
    with pytest.raises(InputError, match="0 … 3"):
        advance(one, start(one), 4)
    with pytest.raises(InputError, match="don't fit a window of 3"):
        draw(one, [0.5] * 3, [1])
