"""Prompt and answer as bytes: documents, the part held out, and windows for training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtp.errors import InputError
from mtp.train.byte_tokenizer import ASSISTANT_ID, END_ID, USER_ID
from mtp.train.completions import how_ended, read_completions, split

IGNORED = -100  # label of a token that is not learnt, as in torch's cross_entropy


@dataclass(frozen=True)
class Documents:
    """Documents of one kind, packed: `tokens` (N,) and where each of the D starts, `starts`
    (D + 1,), the end last."""

    tokens: NDArray[np.int16]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def document(self, number: int) -> NDArray[np.int16]:
        """Tokens of one document (length,)."""
        return self.tokens[self.starts[number] : self.starts[number + 1]]


def encode(prompt: str, answer: str, ended: bool) -> list[int]:
    """One turn and its answer, as the chat template writes them; the answer is closed only where
    the teacher ended it, so that a cut-off answer teaches no end."""
    head = [USER_ID, *prompt.encode(), END_ID, ASSISTANT_ID]
    return [*head, *answer.encode(), *([END_ID] if ended else [])]


def pack(documents: Iterable[Sequence[int]]) -> Documents:
    """Documents one after another; raises InputError where there are none."""
    parts = [np.asarray(document, dtype=np.int16) for document in documents]
    if not parts:
        raise InputError("There are no completions to train on.")
    starts = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
    return Documents(np.concatenate(parts), starts)


def read_documents(paths: Sequence[Path]) -> tuple[Documents, Documents]:
    """The training part of the files and the part held out, as `split` has them."""
    training: list[list[int]] = []
    held_out: list[list[int]] = []
    parts = split([list(read_completions(path)) for path in paths])
    for path, (kept, last) in zip(paths, parts, strict=True):
        ended = how_ended(path)
        training += [encode(r.prompt, r.text, ended(r)) for r in kept]
        held_out += [encode(r.prompt, r.text, ended(r)) for r in last]
    return pack(training), pack(held_out)


def windows(
    documents: Documents, rng: np.random.Generator, batch: int, context: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs and labels (batch, context) from random places; a window may span documents.

    Nothing is learnt about what follows a document: the label there, the next user mark, is
    IGNORED.
    Raises InputError where there is less text than a window.
    """
    if len(documents.tokens) <= context:
        raise InputError(
            f"The training text has {len(documents.tokens)} bytes; a window needs {context + 1}."
        )
    offsets = rng.integers(len(documents.tokens) - context, size=(batch, 1))
    rows = documents.tokens[offsets + np.arange(context + 1)].astype(np.int64)
    inputs, labels = rows[:, :-1], rows[:, 1:].copy()
    labels[labels == USER_ID] = IGNORED
    return inputs, labels


def answer_start(document: NDArray[np.int16]) -> int:
    """Place of the first token of the answer, the one after the assistant mark."""
    return int(np.argmax(document == ASSISTANT_ID)) + 1
