"""Max-product: exact over latents and tokens together, exact over tokens for FF."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp.circuits.maximum import max_product

quick = settings(deadline=None, max_examples=40)


@quick
@given(data=st.data())
def test_it_finds_the_best_joint_and_never_beats_the_best_window(small, data):
    circuit = data.draw(small.circuits())
    best = max_product(circuit)
    joint, q = small.joint(circuit), small.of_tokens(circuit)
    assert abs(best.log_joint.item() - np.log(joint.max())) < 1e-9
    place = (*best.states[0].tolist(), *best.tokens[0].tolist())
    assert abs(np.log(joint[place]) - best.log_joint.item()) < 1e-9
    assert abs(np.log(q[tuple(best.tokens[0].tolist())]) - best.log_prob.item()) < 1e-9
    assert best.log_prob.item() <= np.log(q.max()) + 1e-9
    if circuit.structure.circuit == "ff":
        assert abs(best.log_prob.item() - np.log(q.max())) < 1e-9


def test_it_goes_by_row_in_a_batch(small):
    circuits = small.circuit("hmm", 4, 3, 4, batch=4)
    together = max_product(circuits)
    for row in range(4):
        alone = max_product(circuits.at(row))
        assert alone.tokens[0].tolist() == together.tokens[row].tolist()
