"""What is asked of a circuit's view, and the answer: the circuit conditioned on it.

Without evidence everything is in the record; with some, the circuit is conditioned anew, which
takes torch but no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mtp.errors import InputError
from mtp.records.circuit import Beliefs, CircuitView, Pair, Sample
from viz.runs import imported
from viz.texts import text

if TYPE_CHECKING:
    from mtp.circuits.circuit import Circuit

MOST_GIVEN = 400  # characters of a window that a person types
MOST_TAKEN = 1024  # tokens of a window that a person clicks
MOST_DRAWN = 100_000  # samples in a row


@dataclass(frozen=True)
class Asked:
    """What a person asks of a circuit: a window's beginning, as tokens taken and then a text, a
    latent's state, a sample, two positions.

    sample: (joint | independent | drawn, number).
    """

    given: str = ""
    clamped: tuple[int, int] | None = None
    sample: tuple[str, int] | None = None
    taken: tuple[int, ...] = ()
    pair: tuple[int, int] | None = None


@dataclass(frozen=True)
class Answer:
    """The circuit under what was asked. `latents`: its beliefs, or with a sample chosen the
    posterior given that sample (and the held state). `before`: of the held state, without evidence.
    `pairs`: the most probable ones of the two positions asked for.
    """

    tokens: tuple[int, ...]
    now: Beliefs
    latents: Beliefs
    information: tuple[tuple[float, ...], ...]
    sample: Sample | None = None
    before: float = 0.0
    pairs: tuple[Pair, ...] = ()


def asked_from(plain: object) -> Asked:
    """What the page asks, {"taken": [token], "given", "clamp": [latent, state], "sample": [kind,
    number], "pair": [position, position]}, checked for its form. Raises InputError.
    """
    if not isinstance(plain, dict):
        raise InputError(text("circuit.error.asked"))
    words, taken = plain.get("given") or "", plain.get("taken") or []
    clamp, sample, pair = plain.get("clamp"), plain.get("sample"), plain.get("pair")
    pairs = _pair(clamp, int) and _pair(sample, str) and _pair(pair, int)
    if not isinstance(words, str) or not isinstance(taken, list) or not pairs:
        raise InputError(text("circuit.error.asked"))
    if not all(map(_whole, taken)):
        raise InputError(text("circuit.error.asked"))
    if len(words) > MOST_GIVEN or len(taken) > MOST_TAKEN:
        raise InputError(text("circuit.error.long", most=MOST_GIVEN))
    return Asked(
        words,
        None if clamp is None else (clamp[0], clamp[1]),
        None if sample is None else (sample[0], sample[1]),
        tuple(taken),
        None if pair is None else (pair[0], pair[1]),
    )


def _pair(value: object, first: type) -> bool:
    if value is None:
        return True
    if not isinstance(value, list) or len(value) != 2 or not _whole(value[1]):
        return False
    return _whole(value[0]) if first is int else isinstance(value[0], first)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def answer(view: CircuitView, asked: Asked) -> Answer:
    """Conditions the circuit on what was asked. Raises InputError for what is not there, or for
    evidence that the circuit finds impossible.
    """
    tokens = view.read(asked.given, asked.taken)
    if not tokens and (asked.clamped, asked.sample, asked.pair) == (None, None, None):
        return Answer((), view.beliefs, view.beliefs, view.information)
    imported("mtp.circuits.view")
    from mtp.circuits.view import beliefs, circuit_of, given, information, top_pairs

    circuit = circuit_of(view.circuit, view.numbers)
    held, log_evidence = given(circuit, tokens, asked.clamped)
    plain = not tokens and asked.clamped is None
    now = view.beliefs if plain else beliefs(held, log_evidence, circuit)
    known = view.information if plain else information(held, view.kept)
    sample = _sample(view, asked.sample, held)
    latents = now
    if sample is not None:
        latents = beliefs(given(circuit, view.cut(sample.tokens), asked.clamped)[0])
    before = 0.0
    if asked.clamped is not None:
        latent, state = asked.clamped
        before = view.beliefs.latents[latent].marginal[state]
    pairs = top_pairs(held, *asked.pair, view.kept) if asked.pair else ()
    return Answer(tokens, now, latents, known, sample, before, pairs)


def _sample(view: CircuitView, asked: tuple[str, int] | None, held: Circuit) -> Sample | None:
    if asked is None:
        return None
    kind, number = asked
    if kind == "drawn" and 0 < number <= MOST_DRAWN:
        from mtp.circuits.view import draw_one

        tokens, states, log_q = draw_one(held, view.seed, number)
        return Sample(tokens, states, view.shown(tokens), log_q, float("nan"), ())
    samples = {"joint": view.joint, "independent": view.independent}.get(kind, ())
    if not 0 <= number < len(samples):
        raise InputError(text("circuit.error.sample"))
    return samples[number]
