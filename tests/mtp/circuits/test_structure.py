"""Structure: shapes, scopes, the left-to-right walk, and the graph of units."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp.circuits.inference import log_prob
from mtp.circuits.sampling import sample
from mtp.circuits.structure import TOP, build
from mtp.errors import InputError
from tests.circuit_units import induced_tree, units

quick = settings(deadline=None, max_examples=25)
ALL = [("ff", 8, 1), ("cp", 8, 3), ("hmm", 8, 3), ("btree", 8, 3), ("btree", 2, 2), ("hmm", 1, 2)]


@pytest.mark.parametrize(
    ("name", "latents", "root", "transitions"),
    [
        ("ff", 0, (0,), (0, 1, 1)),
        ("cp", 1, (3,), (0, 3, 3)),
        ("hmm", 8, (3,), (7, 3, 3)),
        ("btree", 7, (3,), (6, 3, 3)),
    ],
)
def test_sum_weights_have_the_papers_shapes(name, latents, root, transitions):
    structure = build(name, 8, 1 if name == "ff" else 3)
    assert len(structure.latents) == latents
    assert structure.root_shape == root
    assert structure.transitions_shape == transitions


@pytest.mark.parametrize(
    ("name", "window", "rank", "word"),
    [
        ("tree", 4, 2, "unknown"),
        ("btree", 6, 2, "power of two"),
        ("btree", 1, 2, "power of two"),
        ("ff", 4, 2, "one component"),
        ("cp", 0, 2, "at least 1"),
        ("cp", 4, 0, "at least 1"),
    ],
)
def test_impossible_circuits_are_refused_with_a_reason(name, window, rank, word):
    with pytest.raises(InputError, match=word):
        build(name, window, rank)


def test_btree_halves_its_window():
    structure = build("btree", 8, 2)
    scopes = [(latent.start, latent.stop) for latent in structure.latents]
    assert scopes == [(0, 8), (0, 4), (4, 8), (0, 2), (2, 4), (4, 6), (6, 8)]
    assert [latent.parent for latent in structure.latents] == [TOP, 0, 0, 1, 1, 2, 2]
    assert structure.owners == (3, 3, 4, 4, 5, 5, 6, 6)


@pytest.mark.parametrize(("name", "window", "rank"), ALL)
def test_the_walk_opens_each_latent_once_and_ends_at_each_owner(name, window, rank):
    structure = build(name, window, rank)
    here, opened = [TOP], []
    for owner, moves in zip(structure.owners, structure.moves, strict=True):
        for move in moves:
            if move.kind == "open":
                assert structure.latents[move.latent].parent == here[-1]
                here.append(move.latent)
                opened.append(move.latent)
            else:
                assert here.pop() == move.latent
        assert here[-1] == owner
    assert sorted(opened) == list(range(len(structure.latents)))


@pytest.mark.parametrize(("name", "window", "rank"), ALL)
def test_units_are_smooth_and_decomposable(name, window, rank):
    structure = build(name, window, rank)
    graph = units(structure)
    assert (graph[-1].start, graph[-1].stop) == (0, window)
    reached = {graph[-1].index}
    for unit in reversed(graph):
        scopes = [(graph[child].start, graph[child].stop) for child in unit.children]
        if unit.kind == "sum":  # smooth: all children have the scope of the sum
            assert set(scopes) == {(unit.start, unit.stop)}
            assert len(unit.children) == rank
        elif unit.kind == "product":  # decomposable: the children split the scope
            assert sorted(i for a, b in scopes for i in range(a, b)) == list(
                range(unit.start, unit.stop)
            )
        assert unit.index in reached
        reached.update(unit.children)
    assert len(reached) == len(graph)


def evaluate(circuit, window):
    """The output of the graph of units, bottom-up, in probabilities."""
    values = []
    for unit in units(circuit.structure):
        below = np.array([values[child] for child in unit.children])
        if unit.kind == "input":
            values.append(circuit.inputs[(0, *unit.row)].exp()[window[unit.start]].item())
        elif unit.kind == "product":
            values.append(below.prod())
        else:
            weights = getattr(circuit, unit.parameter)[(0, *unit.row)].exp().numpy()
            values.append(weights @ below)
    return values[-1]


@quick
@given(data=st.data())
def test_what_is_drawn_is_what_is_computed(small, data):
    circuit = data.draw(small.circuits())
    windows = small.windows(circuit.structure.window, circuit.vocabulary)[::5]
    drawn = [evaluate(circuit, window) for window in windows.tolist()]
    np.testing.assert_allclose(log_prob(circuit, windows).exp(), drawn, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "window", "rank"), ALL)
def test_a_sample_lights_up_one_input_for_each_position(small, name, window, rank):
    circuit = small.circuit(name, window, rank, 3)
    graph = units(circuit.structure)
    states = sample(circuit, 1, torch.Generator().manual_seed(0)).states[0, 0]
    lit = [graph[index] for index in induced_tree(circuit.structure, states.tolist())]
    assert sorted(unit.start for unit in lit if unit.kind == "input") == list(range(window))
    assert sum(unit.kind == "sum" for unit in lit) == len(circuit.structure.latents)
    chosen = {unit.index for unit in lit}
    for unit in lit:  # a product takes all children, a sum one
        count = len(chosen.intersection(unit.children))
        assert count == (1 if unit.kind == "sum" else len(unit.children))


def test_an_induced_tree_needs_a_state_for_each_latent():
    with pytest.raises(InputError, match="2 states below 3"):
        induced_tree(build("hmm", 2, 3), [0, 3])
