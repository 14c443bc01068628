"""Log-probability of windows: sums to 1, equals enumeration, circuits within circuits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp.circuits.circuit import UNKNOWN, Circuit
from mtp.circuits.inference import log_prob
from mtp.circuits.structure import build
from mtp.errors import InputError

quick = settings(deadline=None, max_examples=25)


@quick
@given(data=st.data())
def test_every_window_equals_enumeration_and_all_sum_to_one(small, data):
    circuit = data.draw(small.circuits())
    windows = small.windows(circuit.structure.window, circuit.vocabulary)
    q = log_prob(circuit, windows).exp().numpy()
    np.testing.assert_allclose(q, small.of_tokens(circuit).ravel(), rtol=0, atol=1e-9)
    assert q.sum() == pytest.approx(1.0, abs=1e-9)


@quick
@given(data=st.data())
def test_unknown_positions_are_summed_out(small, data):
    circuit = data.draw(small.circuits())
    window, vocabulary = circuit.structure.window, circuit.vocabulary
    tokens = data.draw(st.lists(st.integers(UNKNOWN, vocabulary - 1), min_size=1, max_size=window))
    place = tuple(slice(None) if token == UNKNOWN else token for token in tokens)
    wanted = small.of_tokens(circuit)[place].sum()
    assert log_prob(circuit, torch.tensor([tokens])).exp().item() == pytest.approx(wanted, abs=1e-9)


def test_batches_of_circuits_meet_batches_of_windows(small):
    circuits = small.circuit("btree", 4, 3, 4, batch=5)
    windows = torch.randint(4, (5, 4), generator=torch.Generator().manual_seed(1))
    each = [log_prob(circuits.at(row), windows[row : row + 1]) for row in range(5)]
    torch.testing.assert_close(log_prob(circuits, windows), torch.cat(each))
    torch.testing.assert_close(
        log_prob(circuits, windows[:1]), log_prob(circuits, windows[:1].expand(5, -1))
    )


@pytest.mark.parametrize("name", ["cp", "hmm", "btree"])
def test_with_one_component_every_circuit_is_ff(small, name):
    circuit = small.circuit(name, 4, 1, 3)
    independent = Circuit(
        build("ff", 4, 1), circuit.inputs, circuit.root[:, :0], circuit.transitions[:, :0]
    )
    windows = small.windows(4, 3)
    torch.testing.assert_close(log_prob(circuit, windows), log_prob(independent, windows))


@pytest.mark.parametrize("name", ["hmm", "btree"])
def test_cp_is_a_chain_or_tree_that_keeps_its_state(small, name):
    cp = small.circuit("cp", 4, 3, 3)
    structure = build(name, 4, 3)
    identity = torch.eye(3, dtype=torch.float64).log()
    same = Circuit(structure, cp.inputs, cp.root, identity.expand(1, *structure.transitions_shape))
    windows = small.windows(4, 3)
    torch.testing.assert_close(log_prob(same, windows), log_prob(cp, windows), rtol=0, atol=1e-9)


def test_long_windows_of_unlikely_tokens_stay_finite(small):
    circuit = small.circuit("btree", 64, 4, 2)
    rare = (circuit.inputs - torch.tensor([0.0, 50.0], dtype=torch.float64)).log_softmax(-1)
    found = log_prob(
        Circuit(circuit.structure, rare, circuit.root, circuit.transitions),
        torch.ones(1, 64, dtype=torch.long),
    )
    assert -64 * 80 < found.item() < -64 * 40


def test_what_doesnt_fit_is_refused_with_a_reason(small):
    circuit = small.circuit("cp", 3, 2, 4)
    with pytest.raises(InputError, match="0 … 3"):
        log_prob(circuit, torch.tensor([[0, 4, 1]]))
    with pytest.raises(InputError, match="at most 3"):
        log_prob(circuit, torch.tensor([[0, 1, 1, 2]]))
    with pytest.raises(InputError, match=r"needs root of shape \(B, 2\)"):
        Circuit(circuit.structure, circuit.inputs, circuit.root[:, :1], circuit.transitions)


@pytest.mark.parametrize(("name", "rank"), [("ff", 1), ("cp", 3), ("hmm", 3), ("btree", 3)])
def test_gradients_reach_every_parameter(small, name, rank):
    circuit = small.circuit(name, 4, rank, 3)
    leaves = [
        tensor.clone().requires_grad_()
        for tensor in (circuit.inputs, circuit.root, circuit.transitions)
    ]
    windows = small.windows(4, 3)
    log_prob(Circuit(circuit.structure, *leaves), windows).sum().backward()
    for leaf in leaves:
        if leaf.numel():
            assert bool((leaf.grad != 0).all())
