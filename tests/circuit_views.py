"""Views of small random circuits, for tests of records and pictures."""

from __future__ import annotations

from mtp.circuits.circuit import Circuit
from mtp.circuits.view import beliefs, circuit_of, draw_one, information
from mtp.records.circuit import CircuitView, Marked, Numbers, Sample
from tests.mtp.circuits.conftest import random_circuit

PIECES = (b"a", b" ", b"\xe2\x96", b"<b>x</b>", b"%{y}", b"&amp;")
WINDOW = 4


def numbers_of(circuit: Circuit) -> Numbers:
    """Its parameters as a record keeps them."""
    parts = (circuit.inputs, circuit.root, circuit.transitions)
    return Numbers(*(part[0].float().numpy() for part in parts))


def circuit_view(
    name: str = "btree", window: int = WINDOW, rank: int = 6, seed: int = 1
) -> CircuitView:
    """A view over six tokens, hostile ones among them; its verifier is made up."""
    rank = 1 if name == "ff" else rank
    numbers = numbers_of(random_circuit(name, window, rank, len(PIECES), seed))
    circuit = circuit_of(name, numbers)
    samples = []
    for number in range(1, 5):
        tokens, states, log_q = draw_one(circuit, 0, number)
        marks = (Marked("word", "<i>qx</i>"), Marked("unlikely")) if number % 2 else ()
        text = "".join(PIECES[token].decode("utf-8", errors="replace") for token in tokens)
        samples.append(Sample(tokens, states, text, log_q, -4.0 * number, marks))
    return CircuitView(
        model="tiny",
        weights_sha256="0" * 64,
        dtype="float64",
        device="cpu",
        mode="raw",
        prompt="a <b>prompt</b>",
        answer="",
        seed=0,
        circuit=name,
        window=window,
        rank=rank,
        context="… <b>prompt</b>",
        pieces=PIECES,
        ends=(),
        beliefs=beliefs(circuit),
        information=information(circuit),
        kept=None,
        joint=tuple(samples),
        independent=tuple(Sample(s.tokens, (), s.text, s.log_q, s.log_p, ()) for s in samples),
        verifier_log_p=(-3.0, -5.0, -9.0),
        threshold=-8.92,
        known_words=None,
        numbers=numbers,
    )
