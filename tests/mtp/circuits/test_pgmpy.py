"""Agreement with an independent library: each circuit as a Bayesian network in pgmpy."""

import numpy as np
import pytest
import torch
from pgmpy.factors.discrete import TabularCPD
from pgmpy.inference import VariableElimination
from pgmpy.models import DiscreteBayesianNetwork

from mtp.circuits.circuit import UNKNOWN
from mtp.circuits.conditioning import latent_posterior, token_marginals
from mtp.circuits.inference import log_prob
from mtp.circuits.prefix import next_conditional
from mtp.circuits.structure import TOP

TOKENS = 3


def network(circuit):
    """The circuit as a network of z0, z1, … (latents) and x0, x1, … (tokens)."""
    structure = circuit.structure
    edges, tables = [], []

    def table(name, parent, rows):
        """rows: (parent's states, own states); pgmpy wants a column per parent state."""
        columns = rows.exp().numpy().T
        if parent is None:
            tables.append(TabularCPD(name, len(columns), columns))
        else:
            edges.append((parent, name))
            tables.append(TabularCPD(name, len(columns), columns, [parent], [columns.shape[1]]))

    for latent in structure.latents:
        parent = None if latent.parent == TOP else f"z{latent.parent}"
        table(f"z{latent.index}", parent, circuit.weights(latent.index)[0])
    for position, owner in enumerate(structure.owners):
        parent = None if owner == TOP else f"z{owner}"
        table(f"x{position}", parent, circuit.inputs[0, position])
    model = DiscreteBayesianNetwork(edges)
    model.add_nodes_from([cpd.variable for cpd in tables])
    model.add_cpds(*tables)
    assert model.check_model()
    return VariableElimination(model)


@pytest.mark.parametrize(
    ("name", "window", "rank"), [("ff", 3, 1), ("cp", 4, 3), ("hmm", 4, 3), ("btree", 4, 3)]
)
def test_pgmpy_agrees(small, name, window, rank):
    circuit = small.circuit(name, window, rank, TOKENS, seed=2)
    pgmpy = network(circuit)
    positions = [f"x{i}" for i in range(window)]
    joint = pgmpy.query(positions, show_progress=False)
    axes = [joint.variables.index(position) for position in positions]
    wanted = joint.values.transpose(axes).ravel()
    found = log_prob(circuit, small.windows(window, TOKENS)).exp()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)

    marginals = token_marginals(circuit)[0].exp()
    for i, position in enumerate(positions):
        alone = pgmpy.query([position], show_progress=False).values
        np.testing.assert_allclose(marginals[i], alone, rtol=0, atol=1e-9)

    prefix, evidence = torch.tensor([[2, 0]]), {"x0": 2, "x1": 0}
    following = pgmpy.query(["x2"], evidence=evidence, show_progress=False).values
    np.testing.assert_allclose(next_conditional(circuit, prefix)[0].exp(), following, atol=1e-9)
    gapped = torch.tensor([[2, UNKNOWN, 1]])
    posterior = latent_posterior(circuit, gapped)[0].exp()
    for latent in range(len(circuit.structure.latents)):
        values = pgmpy.query(
            [f"z{latent}"], evidence={"x0": 2, "x2": 1}, show_progress=False
        ).values
        np.testing.assert_allclose(posterior[latent], values, rtol=0, atol=1e-9)
