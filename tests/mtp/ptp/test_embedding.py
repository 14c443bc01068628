"""Noise embeddings: their definitions, and that the constant one is blind."""

import math

import pytest
import torch

from mtp.errors import InputError
from mtp.ptp.embedding import EMBEDDINGS, NoiseEmbedding
from mtp.sampling import NOISE_BITS

U = torch.tensor([0.0, 0.25, 0.3, 1 - 2**-NOISE_BITS], dtype=torch.float64)


def make(name, **options):
    return NoiseEmbedding(name, 8, 0.5, generator=torch.Generator().manual_seed(0), **options)


def test_features_are_their_definitions():
    bits = make("binary").features(U) + 0.5
    values = (bits * 2 ** torch.arange(NOISE_BITS).double()).sum(-1) / 2**NOISE_BITS
    torch.testing.assert_close(values, torch.floor(U * 2**NOISE_BITS) / 2**NOISE_BITS)
    assert make("linear").features(U)[1].tolist() == [0.5, 0.5, 0.0]
    five = make("linear", anchors=5).features(torch.tensor([0.3]).double())[0]
    torch.testing.assert_close(five, torch.tensor([0, 0.8, 0.2, 0, 0]).double())
    assert make("sawtooth").features(U)[2, 3] == pytest.approx(4 * 0.3 % 1 - 0.5)
    assert make("quarter-cos").features(U)[2, 4] == pytest.approx(math.cos(5 * math.pi * 0.3))
    assert make("round").features(U).argmax(-1).tolist() == [0, 8, 9, 31]


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_every_embedding_but_the_constant_one_tells_noise_apart(name):
    embedding = make(name)
    vectors = embedding(U)
    assert vectors.shape == (4, 8) and vectors.dtype == torch.float32
    apart = (vectors[0] - vectors[3]).abs().max() > 1e-3
    assert bool(apart) == (name != "constant")
    vectors.sum().backward()
    assert all(p.grad is not None for p in embedding.parameters())


def test_other_names_and_sizes_are_refused():
    with pytest.raises(InputError, match="A noise embedding is one of binary, linear"):
        make("sine")
    with pytest.raises(InputError, match="at least 2 anchors"):
        make("linear", anchors=1)
