"""Evidence: the conditioned circuit is the posterior; clamping, latent and token marginals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp.circuits.circuit import UNKNOWN, Circuit
from mtp.circuits.conditioning import (
    clamp,
    condition,
    latent_marginals,
    latent_posterior,
    token_marginals,
)
from mtp.errors import InputError

quick = settings(deadline=None, max_examples=25)


def restrict(joint, given):
    """The joint with zero wherever it contradicts `given` (UNKNOWN allows all), normalised."""
    allowed = np.ones_like(joint)
    for axis, value in enumerate(given):
        if value != UNKNOWN:
            keep = np.zeros(joint.shape[axis])
            keep[value] = 1
            allowed = allowed * keep.reshape([-1 if a == axis else 1 for a in range(joint.ndim)])
    return joint * allowed / (joint * allowed).sum()


def marginal(joint, axis):
    return joint.sum(axis=tuple(a for a in range(joint.ndim) if a != axis))


@quick
@given(data=st.data())
def test_a_conditioned_circuit_has_the_posteriors_joint(small, data):
    circuit = data.draw(small.circuits())
    structure = circuit.structure
    latents = len(structure.latents)
    states = data.draw(
        st.lists(st.integers(UNKNOWN, structure.rank - 1), min_size=latents, max_size=latents)
    )
    tokens = data.draw(
        st.lists(st.integers(UNKNOWN, circuit.vocabulary - 1), max_size=structure.window)
    )
    posterior = condition(
        circuit,
        torch.tensor([tokens], dtype=torch.long),
        torch.tensor([states], dtype=torch.long),
    )
    wanted = restrict(small.joint(circuit), [*states, *tokens])
    np.testing.assert_allclose(small.joint(posterior), wanted, rtol=0, atol=1e-9)
    for latent, row in enumerate(latent_marginals(posterior)[0].exp().numpy()):
        np.testing.assert_allclose(row, marginal(wanted, latent), rtol=0, atol=1e-9)
    for position, row in enumerate(token_marginals(posterior)[0].exp().numpy()):
        np.testing.assert_allclose(row, marginal(wanted, latents + position), rtol=0, atol=1e-9)


@quick
@given(data=st.data())
def test_latent_posterior_of_a_prefix_equals_enumeration(small, data):
    circuit = data.draw(small.circuits())
    latents = len(circuit.structure.latents)
    prefix = data.draw(
        st.lists(st.integers(0, circuit.vocabulary - 1), max_size=circuit.structure.window)
    )
    found = latent_posterior(circuit, torch.tensor([prefix], dtype=torch.long))[0].exp().numpy()
    wanted = restrict(small.joint(circuit), [UNKNOWN] * latents + prefix)
    assert found.shape[0] == latents
    for latent, row in enumerate(found):
        np.testing.assert_allclose(row, marginal(wanted, latent), rtol=0, atol=1e-9)


def test_clamping_a_latent_moves_what_hangs_below_it(small):
    circuit = small.circuit("btree", 4, 3, 3)
    before = token_marginals(circuit)
    after = token_marginals(clamp(circuit, 1, 2))
    assert (after - before).abs().amax(dim=(0, 2)).min() > 1e-3
    states = latent_marginals(clamp(circuit, 1, 2))[0, 1].exp()
    torch.testing.assert_close(states, torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))


def test_conditioning_goes_by_row_in_a_batch(small):
    circuits = small.circuit("hmm", 3, 2, 3, batch=3)
    windows = torch.tensor([[0, UNKNOWN, 2], [1, 1, UNKNOWN], [UNKNOWN, UNKNOWN, UNKNOWN]])
    together = token_marginals(condition(circuits, windows))
    for row in range(3):
        alone = token_marginals(condition(circuits.at(row), windows[row : row + 1]))
        torch.testing.assert_close(together[row : row + 1], alone)


def test_impossible_evidence_is_refused_with_a_reason(small):
    circuit = small.circuit("cp", 2, 2, 3)
    never = circuit.inputs.clone()
    never[:, 0, :, 1] = -torch.inf
    without = Circuit(circuit.structure, never, circuit.root, circuit.transitions)
    with pytest.raises(InputError, match="probability zero"):
        condition(without, torch.tensor([[1]]))
    with pytest.raises(InputError, match="no latent 1"):
        clamp(circuit, 1, 0)
    with pytest.raises(InputError, match="0 … 1"):
        clamp(circuit, 0, 2)
    with pytest.raises(InputError, match="no latent 0"):
        clamp(small.circuit("ff", 2, 1, 3), 0, 0)
