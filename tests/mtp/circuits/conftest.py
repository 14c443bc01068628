"""Small random circuits, and their joint distribution by brute force."""

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from mtp.circuits.circuit import Circuit
from mtp.circuits.structure import build

MAX_STATES = 3
SPREAD = 2.0  # standard deviation of random logits: uneven, none negligible


def random_circuit(
    name: str, window: int, rank: int, vocabulary: int, seed: int = 0, batch: int = 1
) -> Circuit:
    structure = build(name, window, rank)
    generator = torch.Generator().manual_seed(seed)

    def normalised(*shape: int) -> torch.Tensor:
        logits = torch.randn(batch, *shape, generator=generator, dtype=torch.float64)
        return torch.log_softmax(SPREAD * logits, dim=-1)

    return Circuit(
        structure,
        normalised(window, rank, vocabulary),
        normalised(*structure.root_shape),
        normalised(*structure.transitions_shape),
    )


def brute_force(circuit: Circuit, row: int = 0) -> np.ndarray:
    """The joint q(z, x) from MTPC's definitions; axes: latents in order, then positions."""
    name, window = circuit.structure.circuit, circuit.structure.window
    inputs = circuit.inputs[row].exp().numpy()
    root, transitions = circuit.root[row].exp().numpy(), circuit.transitions[row].exp().numpy()
    tokens = "uvwxyz"[:window]
    if name == "ff":
        return np.einsum(f"{','.join(tokens)}->{tokens}", *inputs[:, 0])
    if name == "cp":
        latents, links = "a", ["a"]
        owners = "a" * window
    elif name == "hmm":
        latents = "abcd"[:window]
        links = ["a"] + [latents[i : i + 2] for i in range(window - 1)]
        owners = latents
    elif window == 2:
        latents, links, owners = "a", ["a"], "aa"
    else:  # a halves the window of 4; b owns the left half, c the right
        latents, links, owners = "abc", ["a", "ab", "ac"], "bbcc"
    leaves = [owner + token for owner, token in zip(owners, tokens, strict=True)]
    terms = ",".join([*links, *leaves])
    return np.einsum(f"{terms}->{latents}{tokens}", root, *transitions, *inputs)


def all_windows(window: int, vocabulary: int) -> torch.Tensor:
    return torch.cartesian_prod(*[torch.arange(vocabulary)] * window).view(-1, window)


@st.composite
def circuits(draw: st.DrawFn, min_vocabulary: int = 1) -> Circuit:
    name = draw(st.sampled_from(["ff", "cp", "hmm", "btree"]))
    window = draw(st.sampled_from([2, 4]) if name == "btree" else st.integers(1, 4))
    rank = 1 if name == "ff" else draw(st.integers(1, MAX_STATES))
    vocabulary = draw(st.integers(min_vocabulary, 4))
    return random_circuit(name, window, rank, vocabulary, draw(st.integers(0, 10**6)))


class Small:
    """What the tests of this folder share."""

    circuit = staticmethod(random_circuit)
    joint = staticmethod(brute_force)
    windows = staticmethod(all_windows)
    circuits = staticmethod(circuits)

    @staticmethod
    def of_tokens(circuit: Circuit) -> np.ndarray:
        """q(x), latents summed out: axes are positions."""
        joint = brute_force(circuit)
        return joint.sum(axis=tuple(range(joint.ndim - circuit.structure.window)))


@pytest.fixture(scope="session")
def small() -> type[Small]:
    return Small
