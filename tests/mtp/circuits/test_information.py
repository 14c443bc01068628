"""Mutual information between positions, and its lower bound over fewer tokens."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

from mtp.circuits.conditioning import condition
from mtp.circuits.inference import log_prob
from mtp.circuits.information import coarsen, mutual_information, pair_joint

quick = settings(deadline=None, max_examples=25)


@quick
@given(data=st.data())
def test_mutual_information_equals_enumeration(small, data):
    circuit = data.draw(small.circuits())
    q = small.of_tokens(circuit)
    n = q.ndim
    found = mutual_information(circuit)[0].numpy()
    for i in range(n):
        alone = q.sum(axis=tuple(a for a in range(n) if a != i))
        assert abs(found[i, i] - entropy(alone)) < 1e-9
        for j in range(i + 1, n):
            joint = q.sum(axis=tuple(a for a in range(n) if a not in (i, j)))
            np.testing.assert_allclose(pair_joint(circuit, i, j)[0], joint, rtol=0, atol=1e-9)
            independent = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
            wanted = entropy(joint.ravel(), independent.ravel())
            assert abs(found[i, j] - wanted) < 1e-9
            assert found[i, j] == found[j, i]


def test_independent_positions_say_nothing_about_each_other(small):
    found = mutual_information(small.circuit("ff", 4, 1, 5))[0]
    assert (found - torch.diag(found.diag())).abs().max() < 1e-12


def test_a_prefix_takes_information_away(small):
    circuit = small.circuit("cp", 3, 2, 4)
    known = mutual_information(condition(circuit, torch.tensor([[1]])))[0]
    assert known[0].abs().max() < 1e-12
    assert known[1, 2] > 0


def test_merging_tokens_bounds_information_from_below(small):
    circuit = small.circuit("btree", 4, 3, 4)
    coarse = coarsen(circuit, 2)
    assert coarse.circuit.vocabulary == 3
    assert coarse.tokens.shape == (1, 4, 2)
    total = log_prob(coarse.circuit, small.windows(4, 3)).exp().sum()
    assert abs(total.item() - 1) < 1e-9
    lost = mutual_information(circuit) - mutual_information(coarse.circuit)
    assert (lost > -1e-12).all()
