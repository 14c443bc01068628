"""Ancestral samples come from the joint of tokens and latents."""

import numpy as np
import pytest
import torch
from scipy import stats

from mtp.circuits.sampling import sample

COUNT = 20_000


def test_samples_have_a_place_for_each_position_and_latent(small):
    drawn = sample(small.circuit("btree", 4, 3, 5, batch=2), 7)
    assert drawn.tokens.shape == (7, 2, 4)
    assert drawn.states.shape == (7, 2, 3)


@pytest.mark.parametrize(
    ("name", "window", "rank"), [("ff", 3, 1), ("cp", 3, 3), ("hmm", 3, 2), ("btree", 4, 2)]
)
def test_samples_pass_a_chi_square_over_tokens_and_latents(small, name, window, rank):
    circuit = small.circuit(name, window, rank, 2, seed=1)
    drawn = sample(circuit, COUNT, torch.Generator().manual_seed(0))
    joint = small.joint(circuit)
    cells = torch.zeros(COUNT, dtype=torch.long)
    for size, column in zip(
        joint.shape, torch.cat([drawn.states, drawn.tokens], dim=-1)[:, 0].T, strict=True
    ):
        cells = cells * size + column
    counts = torch.bincount(cells, minlength=joint.size).numpy()
    wanted = joint.ravel() * COUNT
    rare = wanted < 5  # merged, so that the statistic is near its limit
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        wanted = np.append(wanted[~rare], wanted[rare].sum())
    assert stats.chisquare(counts, wanted).pvalue > 1e-3


def test_each_circuit_of_a_batch_is_sampled_by_itself(small):
    circuits = small.circuit("cp", 2, 2, 3, batch=2, seed=5)
    drawn = sample(circuits, COUNT, torch.Generator().manual_seed(1)).tokens
    for row in range(2):
        cells = drawn[:, row, 0] * 3 + drawn[:, row, 1]
        wanted = small.of_tokens(circuits.at(row)).ravel() * COUNT
        assert stats.chisquare(torch.bincount(cells, minlength=9), wanted).pvalue > 1e-3
