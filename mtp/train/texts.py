"""Sampled completions as one model's tokens: the prompt in its chat template, then the answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtp.errors import InputError
from mtp.models.draft_vocabulary import DraftVocabulary, most_frequent, whole
from mtp.models.vocabulary import Vocabulary
from mtp.train.completions import Record, how_ended, read_completions, split


@dataclass(frozen=True)
class Text:
    """ids (S,): prompt and answer; the answer's first token stands at `answer`."""

    prompt: str
    ids: NDArray[np.int64]
    answer: int

    def cut(self, context: int) -> "Text":
        """Its first `context` tokens."""
        return Text(self.prompt, self.ids[:context], self.answer)


def read_texts(paths: Sequence[Path], vocabulary: Vocabulary) -> tuple[list[Text], list[Text]]:
    """The texts to train on and those held out, as `split` has them.

    An answer keeps the token ids it was sampled as where they are this vocabulary's, else its text
    is encoded; an end token closes it only where the teacher ended it. Raises InputError where
    there is no completion.
    """
    training: list[Text] = []
    held_out: list[Text] = []
    files = [list(read_completions(path)) for path in paths]
    for path, records, (kept, last) in zip(paths, files, split(files), strict=True):
        ended = how_ended(path)
        own_ids = bool(records) and _spells(vocabulary, records[0])
        training += [_text(r, vocabulary, own_ids, ended(r)) for r in kept if r.text]
        held_out += [_text(r, vocabulary, own_ids, ended(r)) for r in last if r.text]
    if not training or not held_out:
        raise InputError(
            "There are too few completions to train on; a hundred, each of another prompt, are a "
            "start."
        )
    return training, held_out


def cut_all(texts: Sequence[Text], context: int) -> list[Text]:
    """The first `context` tokens of each text whose answer begins in them. Raises InputError where
    none does.
    """
    found = [text.cut(context) for text in texts if text.answer < min(context, len(text.ids))]
    if not found:
        raise InputError(f"No answer begins within {context} tokens; give a longer context.")
    return found


def draft_vocabulary(texts: Sequence[Text], size: int, keep: int) -> DraftVocabulary:
    """The `keep` most frequent tokens of the answers, of a model's `size`; all of them for 0."""
    if keep == 0:
        return whole(size)
    return most_frequent(np.concatenate([text.ids[text.answer :] for text in texts]), size, keep)


def batches(texts: Sequence[Text], rng: np.random.Generator, rows: int) -> Iterator[list[Text]]:
    """Endless batches of `rows` texts of like length.

    Each pass takes every text once, in an order of its own.
    """
    lengths = np.array([len(text.ids) for text in texts])
    while True:
        order = np.argsort(lengths + rng.random(len(texts)) * lengths.max() / 8)  # like, not sorted
        groups = [order[start : start + rows] for start in range(0, len(order), rows)]
        for group in rng.permutation(len(groups)):
            yield [texts[index] for index in groups[group]]


def padded(texts: Sequence[Text]) -> Tensor:
    """Token ids (B, S), −1 behind a text's end."""
    longest = max(len(text.ids) for text in texts)
    ids = torch.full((len(texts), longest), -1, dtype=torch.long)
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)] = torch.from_numpy(text.ids)
    return ids


def in_answers(texts: Sequence[Text], length: int) -> Tensor:
    """(B, length) bool: whether the row of a place predicts a token of the answer next."""
    place = torch.arange(length)[None]
    first = torch.tensor([text.answer - 1 for text in texts])[:, None]
    last = torch.tensor([len(text.ids) - 2 for text in texts])[:, None]
    return (place >= first) & (place <= last)


def _spells(vocabulary: Vocabulary, record: Record) -> bool:
    """Whether the record's ids are tokens of this vocabulary: they spell its text."""
    size = len(vocabulary.tokenizer)
    if any(not 0 <= token < size for token in record.ids):
        return False
    hidden = vocabulary.special_ids | vocabulary.stop_ids
    spelt = b"".join(vocabulary.bytes_of(token) for token in record.ids if token not in hidden)
    return spelt.decode("utf-8", errors="replace") == record.text


def _text(record: Record, vocabulary: Vocabulary, own_ids: bool, ended: bool) -> Text:
    prompt = vocabulary.encode(record.prompt, "chat")
    if own_ids:
        return Text(record.prompt, np.array([*prompt, *record.ids]), len(prompt))
    answer = vocabulary.encode(record.text, "raw") if record.text.strip() else []
    close = sorted(vocabulary.stop_ids)[:1] if ended else []
    return Text(record.prompt, np.array([*prompt, *answer, *close]), len(prompt))
