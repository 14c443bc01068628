"""Draft trees hold exactly the most probable prefixes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp.circuits.draft_tree import ROOT, best_prefixes
from mtp.circuits.drafting import advance, conditional, from_circuit, sharpen, start

quick = settings(deadline=None, max_examples=40)


def paths_of(tree):
    paths = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*(() if parent == ROOT else paths[parent]), token))
    return paths


@quick
@given(data=st.data())
def test_the_tree_holds_the_most_probable_prefixes(small, data):
    circuit = data.draw(small.circuits())
    n, v = circuit.structure.window, circuit.vocabulary
    budget = data.draw(st.integers(1, 30))
    one = from_circuit(circuit)
    tree = best_prefixes(one, start(one), budget)
    q = small.of_tokens(circuit)
    exact = {
        prefix: q[prefix].sum()
        for k in range(1, n + 1)
        for prefix in itertools.product(range(v), repeat=k)
    }
    found = [exact[path] for path in paths_of(tree)]
    assert len(set(paths_of(tree))) == len(found) == min(budget, len(exact))
    np.testing.assert_allclose(found, sorted(exact.values(), reverse=True)[: len(found)], atol=1e-9)
    assert tree.expected == pytest.approx(sum(found), abs=1e-9)
    for node, parent in enumerate(tree.parents):
        above = 1.0 if parent == ROOT else found[parent]
        assert tree.log_q[node] == pytest.approx(np.log(found[node] / above), abs=1e-9)
        assert parent < node


def test_a_tree_continues_the_tokens_that_are_known(small):
    one = from_circuit(small.circuit("btree", 4, 3, 3))
    prefix = start(one, [2])
    tree = best_prefixes(one, prefix, 100)
    assert len(tree.tokens) == 3 + 9 + 27
    first = conditional(one, prefix)
    at = tree.parents.index(ROOT)
    assert tree.tokens[at] == int(first.argmax())
    assert tree.log_q[at] == pytest.approx(np.log(first.max()))
    assert tree.expected == pytest.approx(3.0)


def test_a_greedy_tree_is_one_path_of_certain_tokens(small):
    one = from_circuit(small.circuit("hmm", 4, 3, 3))
    tree = best_prefixes(one, start(one), 10, sharpen(0))
    assert tree.parents == [ROOT, 0, 1, 2]
    prefix = start(one)
    for token in tree.tokens:
        assert token == int(conditional(one, prefix).argmax())
        prefix = advance(one, prefix, token)


def test_there_is_no_tree_without_room(small):
    one = from_circuit(small.circuit("cp", 3, 2, 3))
    assert best_prefixes(one, start(one), 0).tokens == []
    assert best_prefixes(one, start(one, [0, 0, 0]), 5).tokens == []
