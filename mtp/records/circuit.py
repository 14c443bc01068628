"""A circuit as a page shows it: what it believes, what it draws, what the verifier thinks of it.

Tokens are indices into the circuit's own vocabulary, whose exact bytes are kept, so that a view
can be looked at, clamped and sampled again without the model that made it.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from mtp.errors import InputError, TraceError
from mtp.records.trace import Mode
from mtp.records.versioned import strict_json

VERSION = 1
NO_LATENT = -1  # the parent of the first latent, and the owner of a position that has none

Mark = Literal["broken", "word", "unlikely"]


@dataclass(frozen=True)
class Question:
    """What to look at: which circuit, behind which text.

    window None: the longest there is; rank 0: the highest; lora: K, adapted last layers.
    """

    circuit: str
    window: int | None
    prompt: str
    answer: str = ""
    mode: Mode = "chat"
    seed: int = 0
    rank: int = 0
    lora: int = 0


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
class Pair:
    """Tokens of two positions, their joint probability, and that of both were they independent."""

    tokens: tuple[int, int]
    p: float
    apart: float


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
    not known. `lora`: K, how many of the model's last layers were adapted for drafting.
    """

    model: str
    weights_sha256: str
    dtype: str
    device: str
    mode: Mode
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
    lora: int = 0

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

    def read(self, text: str, behind: Sequence[int] = ()) -> tuple[int, ...]:
        """The tokens `behind` and then a text as the circuit's tokens, always the longest that
        fits; at most a window in all.

        Raises InputError for tokens that are none, or more than a window, and for a text with a
        part that the circuit cannot draft.
        """
        if len(behind) > self.window or not all(0 <= one < len(self.pieces) for one in behind):
            raise InputError(
                f"A window of this circuit has at most {self.window} tokens, each a number below "
                f"{len(self.pieces)}."
            )
        raw = text.encode("utf-8", errors="surrogatepass")
        places = {piece: token for token, piece in reversed(list(enumerate(self.pieces))) if piece}
        longest = max(map(len, places))
        found = list(behind)
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
            for name in _ADAPTERS.keys() & plain.keys():
                plain[name] = _ADAPTERS[name].validate_python(plain[name])
            view = cls(**plain)
            _check(view)
            return view
        except (
            ValueError, KeyError, TypeError, AttributeError, RecursionError, ValidationError
        ) as error:  # fmt: skip
            raise TraceError("The file is not a circuit view, or it is broken.") from error


_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(hint)
    for name, hint in get_type_hints(CircuitView).items()
    if name not in ("pieces", "numbers")
}


def _check(view: CircuitView) -> None:
    """Raises ValueError where the parts of a view do not fit each other."""
    window, rank, tokens = view.window, view.rank, len(view.pieces)
    latents, positions, numbers = view.beliefs.latents, view.beliefs.positions, view.numbers
    count = len(latents)
    arrays = (numbers.inputs, numbers.root, numbers.transitions)
    shapes = (window, rank, tokens), (rank if count else 0,), (max(count - 1, 0), rank, rank)
    samples = (*view.joint, *view.independent)
    shares = [share for one in positions for part in (one.top, *one.components) for share in part]
    fits = (
        window >= 1 <= rank,
        tuple(array.shape for array in arrays) == shapes,
        all(bool(np.isfinite(array).all()) for array in arrays),
        len(positions) == len(view.information) == window,
        all(len(row) == window for row in view.information),
        all(len(one.components) == rank and all(one.components) for one in positions),
        all(one.top and NO_LATENT <= one.owner < count for one in positions),
        all(NO_LATENT <= one.parent < index for index, one in enumerate(latents)),
        all(0 <= one.start < one.stop <= window for one in latents),
        all(len(one.marginal) == rank for one in latents),
        all(len(one.weights) == (1 if one.parent < 0 else rank) for one in latents),
        all(len(row) == rank for one in latents for row in one.weights),
        view.joint and view.independent and view.verifier_log_p,
        all(len(one.tokens) == window and len(one.states) in (0, count) for one in samples),
        all(0 <= state < rank for one in samples for state in one.states),
        all(0 <= token < tokens for one in samples for token in one.tokens),
        all(0 <= share.token < tokens for share in shares),
        all(0 <= token < tokens for token in view.ends),
    )
    if not all(fits):
        raise ValueError("parts of the view do not fit each other")


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
