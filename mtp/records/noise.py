"""What noise does to a context's next tokens: predictions from one call, and the verifier's own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Foreseen:
    """A drafter's token at one place: how sure it was, and what the verifier thinks of it.

    probability: the drafter's, of that token. verifier: the verifier's, given the drafter's tokens
    before it. picked: whether the verifier picks it with the same noise behind the same tokens.
    """

    id: int
    text: str
    probability: float
    verifier: float
    picked: bool


@dataclass(frozen=True)
class Picked:
    """A token of plain sampling with this noise: its interval, and the most probable others, each
    as (text, low, high) in the order of the vocabulary.
    """

    id: int
    text: str
    u: float
    interval: tuple[float, float]
    strip: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True)
class NoiseView:
    """One setting of the noise: plain sampling's tokens, and each drafter's from one call."""

    noise: tuple[float, ...]
    plain: tuple[Picked, ...]
    foreseen: dict[str, tuple[Foreseen, ...]]


@dataclass(frozen=True)
class Sweep:
    """The noise of one place swept over [0, 1): `noise` (S,), and the tokens at it and every later
    place for each value, `texts` (S, N − place), with the drafter's probability of each.
    """

    place: int
    noise: tuple[float, ...]
    texts: tuple[tuple[str, ...], ...]
    probabilities: tuple[tuple[float, ...], ...]
