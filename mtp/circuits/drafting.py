"""Drafting one window at batch 1: a circuit in NumPy and linear space, read token by token.

The same left-to-right walk as `prefix`, one token at a time, with states that may branch (a tree
of drafts shares them). Tokens are indices into the circuit's vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mtp.circuits.circuit import UNKNOWN, Circuit
from mtp.circuits.structure import Structure
from mtp.errors import InputError

Shape = Callable[[np.ndarray], np.ndarray]  # a conditional (v,) to the distribution to draw from


@dataclass(frozen=True)
class WindowCircuit:
    """Probabilities (not logs) of one circuit.

    inputs (n, r, v) in float32 or float64; root (r,) or (0,) and transitions (L - 1, r, r) in
    float64: products of likelihood ratios outgrow float32.
    """

    structure: Structure
    inputs: np.ndarray
    root: np.ndarray
    transitions: np.ndarray


class Frame(NamedTuple):
    """An open latent. `incoming` (S,): probability of its state given what was read before it was
    opened; `seen` (S,): likelihood ratio of what was read below it since, or None."""

    outer: Frame | None
    incoming: np.ndarray
    seen: np.ndarray | None

    def read(self, ratio: np.ndarray) -> Frame:
        """The same frame after something below it with this likelihood ratio (S,)."""
        seen = ratio if self.seen is None else self.seen * ratio
        return Frame(self.outer, self.incoming, seen)


class Prefix(NamedTuple):
    """Tokens read so far, ready for the one at `position` (n: the window is full).

    belief (S,): distribution of the latent that owns `position`, given everything read. log_prob:
    M_position, natural log.
    """

    position: int
    frame: Frame
    belief: np.ndarray
    log_prob: float


def from_circuit(circuit: Circuit, row: int = 0) -> WindowCircuit:
    """The circuit at one place of a batch, as arrays of its probabilities."""
    return WindowCircuit(
        circuit.structure,
        circuit.inputs[row].detach().exp().cpu().numpy(),
        circuit.root[row].detach().double().exp().cpu().numpy(),
        circuit.transitions[row].detach().double().exp().cpu().numpy(),
    )


def start(circuit: WindowCircuit, given: Sequence[int] = ()) -> Prefix:
    """A prefix with these tokens read.

    UNKNOWN tokens are summed out, and so are tokens to which the circuit gives probability zero:
    nothing follows from them. Raises InputError when they are too many or outside the vocabulary.
    """
    one = np.ones(1)
    prefix = Prefix(0, *_go(circuit, Frame(None, one, None), one, 0), 0.0)
    for token in given:
        _refuse_full(circuit, prefix)
        possible = token == UNKNOWN or _probability(circuit, prefix, token) > 0
        prefix = advance(circuit, prefix, token if possible else UNKNOWN)
    return prefix


def conditional(circuit: WindowCircuit, prefix: Prefix) -> np.ndarray:
    """q(x_j | x_<j) over the vocabulary (v,), in the inputs' float type; sums to 1 up to rounding.

    Raises InputError when the window is full.
    """
    _refuse_full(circuit, prefix)
    inputs = circuit.inputs[prefix.position]  # (r, v)
    return prefix.belief.astype(inputs.dtype, copy=False).dot(inputs)


def advance(circuit: WindowCircuit, prefix: Prefix, token: int) -> Prefix:
    """The prefix with one more token, or with one position summed out if it is UNKNOWN.

    Raises InputError when the window is full, or the token is outside the vocabulary or has
    probability zero.
    """
    _refuse_full(circuit, prefix)
    q = 1.0 if token == UNKNOWN else _possible(circuit, prefix, token)
    return _read(circuit, prefix, token, q)


def responsible(circuit: WindowCircuit, prefix: Prefix, token: int) -> tuple[int, float]:
    """The component likeliest to have given `token` behind the prefix, and its share of q(token).

    Raises InputError as `advance` does.
    """
    _refuse_full(circuit, prefix)
    q = _possible(circuit, prefix, token)
    shares = prefix.belief * circuit.inputs[prefix.position, :, token] / q
    state = int(shares.argmax())
    return state, float(shares[state])


@dataclass(frozen=True)
class Drafted:
    """A drafted continuation, one entry per drawn position.

    tokens: indices. log_q: natural log of the probability each was drawn with, given those before.
    q: (m, v) float64, the distributions they were drawn from.
    """

    tokens: list[int]
    log_q: list[float]
    q: np.ndarray


def draw(
    circuit: WindowCircuit,
    noise: Sequence[float],
    given: Sequence[int] = (),
    shape: Shape | None = None,
) -> Drafted:
    """Draws x_j = Pick(u_j, q(· | x_<j)) for the positions after `given`, one per noise value.

    noise: u in [0, 1), at most n - len(given) of them. `shape` maps each conditional to the
    distribution that is drawn from (see `sharpen`); the circuit itself is left as it is. Raises
    InputError when there is more noise than positions, or `given` doesn't fit.
    """
    if len(given) + len(noise) > circuit.structure.window:
        raise InputError(
            f"{len(given)} given and {len(noise)} drawn tokens don't fit a window of "
            f"{circuit.structure.window}."
        )
    prefix = start(circuit, given)
    tokens: list[int] = []
    q = np.empty((len(noise), circuit.inputs.shape[2]))
    for row, u in zip(q, noise, strict=True):
        plain = conditional(circuit, prefix)
        shaped = plain if shape is None else shape(plain)
        edges = shaped.cumsum(dtype=np.float64)
        total = edges[-1]
        edges /= total
        np.divide(shaped, total, out=row)
        token = int(edges.searchsorted(u, side="right"))
        tokens.append(token)
        prefix = _read(circuit, prefix, token, float(plain[token]))
    log_q = np.log(q[np.arange(len(tokens)), tokens]).tolist()
    return Drafted(tokens, log_q, q)


def sharpen(temperature: float) -> Shape:
    """A shape for `draw`: each conditional to the power 1 / temperature, normalised; 0 is argmax.

    The verifier samples at a temperature too, so drafts stand more often when q follows.
    """

    def greedy(q: np.ndarray) -> np.ndarray:
        certain = np.zeros_like(q)
        certain[int(q.argmax())] = 1.0
        return certain

    def power(q: np.ndarray) -> np.ndarray:
        tempered = (q / q.max()) ** (1.0 / temperature)
        normalised: np.ndarray = tempered / tempered.sum()
        return normalised

    return greedy if temperature == 0 else power


def _probability(circuit: WindowCircuit, prefix: Prefix, token: int) -> float:
    """q(token | prefix) for a prefix that isn't full. Raises InputError for no such token."""
    if not 0 <= token < circuit.inputs.shape[2]:
        raise InputError(f"Token {token} lies outside 0 … {circuit.inputs.shape[2] - 1}.")
    return float(prefix.belief.dot(circuit.inputs[prefix.position, :, token]))


def _possible(circuit: WindowCircuit, prefix: Prefix, token: int) -> float:
    """As `_probability`; raises InputError for a token of probability zero, too."""
    q = _probability(circuit, prefix, token)
    if q <= 0.0:
        raise InputError(f"Token {token} has probability zero at position {prefix.position}.")
    return q


def _refuse_full(circuit: WindowCircuit, prefix: Prefix) -> None:
    if prefix.position >= circuit.structure.window:
        raise InputError(f"All {circuit.structure.window} positions of the window are read.")


def _read(circuit: WindowCircuit, prefix: Prefix, token: int, q: float) -> Prefix:
    """`advance` for a token (or UNKNOWN) whose probability q > 0 is known."""
    position, frame, belief, log_prob = prefix
    if token != UNKNOWN:
        # Dividing by q keeps the belief normalised: its mean likelihood ratio is 1.
        ratio = circuit.inputs[position, :, token].astype(np.float64)
        ratio /= q
        belief = belief * ratio
        frame = frame.read(ratio)
        log_prob += math.log(q)
    position += 1
    if position < circuit.structure.window:
        frame, belief = _go(circuit, frame, belief, position)
    return Prefix(position, frame, belief, log_prob)


def _go(
    circuit: WindowCircuit, frame: Frame, belief: np.ndarray, position: int
) -> tuple[Frame, np.ndarray]:
    """Moves to where `position` is read; see `prefix.go`."""
    for kind, latent in circuit.structure.moves[position]:
        if kind == "open":
            # Nothing is ever read at the top before latent 0, so its distribution is the root's.
            belief = circuit.root if latent == 0 else belief.dot(circuit.transitions[latent - 1])
            frame = Frame(frame, belief, None)
        else:
            outer, seen = frame.outer, frame.seen
            assert outer is not None
            if seen is not None:
                # Latent 0 is never closed: everything hangs below it.
                outer = outer.read(circuit.transitions[latent - 1].dot(seen))
            frame = outer
            belief = outer.incoming if outer.seen is None else outer.incoming * outer.seen
    return frame, belief
