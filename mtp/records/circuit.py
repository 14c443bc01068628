"""A circuit as a page shows it: what it believes, what it draws, what the verifier thinks of it.

Tokens are indices into the circuit's own vocabulary, whose exact bytes are kept, so that a view
can be looked at, clamped and sampled again without the model that made it.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from mtp.errors import InputError, TraceError
from mtp.records.versioned import strict_json

VERSION = 1
NO_LATENT = -1  # the parent of the first latent, and the owner of a position that has none

Mark = Literal["broken", "word", "unlikely"]


@dataclass(frozen=True)
class Question:
    """What to look at: which circuit (window None: the longest there is), behind which text."""

    circuit: str
    window: int | None
    prompt: str
    answer: str = ""
    mode: str = "chat"
    seed: int = 0


@dataclass(frozen=True)
class Share:
    """A token and its probability; `before`: the one without evidence, where there is some."""

    token: int
    p: float
    before: float | None = None


@dataclass(frozen=True)
class LatentView:
    """A latent: what it stands over, how probable its states are, and its sum weights.

    weights has a row for each state of the parent (one row for the first latent), a column for
    each of its own states.
    """

    parent: int
    start: int
    stop: int
    marginal: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class PositionView:
    """A position of the window: its owner, its most probable tokens, and each component's."""

    owner: int
    top: tuple[Share, ...]
    components: tuple[tuple[Share, ...], ...]


@dataclass(frozen=True)
class Beliefs:
    """What the circuit says, given some evidence or none.

    log_evidence: natural log of the evidence's probability, 0 for none.
    """

    latents: tuple[LatentView, ...]
    positions: tuple[PositionView, ...]
    log_evidence: float = 0.0


@dataclass(frozen=True)
class Marked:
    """Why a sample is called impossible; `what` is the broken bytes or the unknown word."""

    kind: Mark
    what: str = ""


@dataclass(frozen=True)
class Sample:
    """A window that was drawn. Natural logs; both count up to the token that ends the text.

    states: the latent states that chose its components; empty for an independent one.
    """

    tokens: tuple[int, ...]
    states: tuple[int, ...]
    text: str
    log_q: float
    log_p: float
    marks: tuple[Marked, ...]


@dataclass(frozen=True)
class Numbers:
    """The circuit's own parameters, log-probabilities as float32 arrays.

    inputs (n, r, v), root (r,) or (0,), transitions (L − 1, r, r). Whoever computes with them
    normalises them again.
    """

    inputs: np.ndarray
    root: np.ndarray
    transitions: np.ndarray


@dataclass(frozen=True)
class CircuitView:
    """A circuit on one context, with all that a page draws of it.

    information (n, n): mutual information of positions in bits, the diagonal their entropies; over
    the `kept` most probable tokens a position and the rest together where that is not None, and
    then a lower bound. `verifier_log_p`: of the verifier's own samples; `threshold` is their first
    percentile. `temperature`: of the text that the circuit was trained on, at which the verifier
    draws and judges, too. `known_words`: how many words the training text has; None where that is
    not known.
    """

    model: str
    weights_sha256: str
    dtype: str
    device: str
    mode: str
    prompt: str
    answer: str
    seed: int
    circuit: str
    window: int
    rank: int
    context: str
    pieces: tuple[bytes, ...]
    ends: tuple[int, ...]
    beliefs: Beliefs
    information: tuple[tuple[float, ...], ...]
    kept: int | None
    joint: tuple[Sample, ...]
    independent: tuple[Sample, ...]
    verifier_log_p: tuple[float, ...]
    threshold: float
    known_words: int | None
    numbers: Numbers
    temperature: float = 1.0

    def text_of(self, token: int) -> str:
        """A token as it is shown: its text, or ‹e2 96› for a part of a character."""
        return readable(self.pieces[token])

    def cut(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens up to and with the one that ends the text."""
        for place, token in enumerate(tokens):
            if token in self.ends:
                return tokens[: place + 1]
        return tokens

    def shown(self, tokens: tuple[int, ...]) -> str:
        """A window's text up to where it ends."""
        return readable(b"".join(self.pieces[token] for token in self.cut(tokens)))

    def read(self, text: str) -> tuple[int, ...]:
        """A text as the circuit's tokens, always the longest that fits, at most a window of them.

        Raises InputError for a text with a part that the circuit cannot draft.
        """
        raw = text.encode("utf-8", errors="surrogatepass")
        places = {piece: token for token, piece in reversed(list(enumerate(self.pieces))) if piece}
        longest = max(map(len, places))
        found: list[int] = []
        while raw and len(found) < self.window:
            sizes = range(min(longest, len(raw)), 0, -1)
            size = next((size for size in sizes if raw[:size] in places), None)
            if size is None:
                start = readable(raw[:4])
                raise InputError(f"This circuit cannot draft the text at {start!r}; leave it out.")
            found.append(places[raw[:size]])
            raw = raw[size:]
        return tuple(found)

    def to_json(self) -> str:
        """The view as JSON text; `from_json` reads it back."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("beliefs", "joint", "independent"):
            plain[name] = _ADAPTERS[name].dump_python(plain[name], mode="json")
        plain["pieces"] = [piece.hex() for piece in self.pieces]
        plain["numbers"] = {
            f.name: _packed(getattr(self.numbers, f.name)) for f in dataclasses.fields(self.numbers)
        }
        return json.dumps({"version": VERSION, **plain}, ensure_ascii=False)

    @classmethod
    def from_json(cls, content: str | bytes) -> CircuitView:
        """Reads a view. Raises TraceError for what is none."""
        try:
            plain = strict_json(content)
            if plain.pop("version") != VERSION:
                raise TraceError(f"This circuit view is not of version {VERSION}.")
            plain["pieces"] = tuple(bytes.fromhex(piece) for piece in plain["pieces"])
            plain["numbers"] = Numbers(**{k: _unpacked(v) for k, v in plain["numbers"].items()})
            for name, adapter in _ADAPTERS.items():
                plain[name] = adapter.validate_python(plain[name])
            return cls(**plain)
        except (
            ValueError, KeyError, TypeError, AttributeError, RecursionError, ValidationError
        ) as error:  # fmt: skip
            raise TraceError("The file is not a circuit view, or it is broken.") from error


_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "beliefs": TypeAdapter(Beliefs),
    "joint": TypeAdapter(tuple[Sample, ...]),
    "independent": TypeAdapter(tuple[Sample, ...]),
    "information": TypeAdapter(tuple[tuple[float, ...], ...]),
    "ends": TypeAdapter(tuple[int, ...]),
    "verifier_log_p": TypeAdapter(tuple[float, ...]),
}


def readable(raw: bytes) -> str:
    """Bytes as text; those that are no whole character as ‹e2 96›."""
    text = ""
    while raw:
        try:
            return text + raw.decode("utf-8")
        except UnicodeDecodeError as error:
            text += raw[: error.start].decode("utf-8")
            text += "\u2039" + raw[error.start : error.end].hex(" ") + "\u203a"
            raw = raw[error.end :]
    return text


def _packed(array: np.ndarray) -> dict[str, Any]:
    data = np.ascontiguousarray(array, dtype="<f4").tobytes()
    return {"shape": list(array.shape), "float32": base64.b64encode(data).decode("ascii")}


def _unpacked(plain: dict[str, Any]) -> np.ndarray:
    data = base64.b64decode(plain["float32"], validate=True)
    return np.frombuffer(data, dtype="<f4").reshape(plain["shape"])
