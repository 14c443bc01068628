"""The draft vocabulary: which of the model's tokens a trained drafter can draft.

A subword vocabulary of 50,000 is too wide for a draft's many distributions, and most of it is
rarely seen, so drafting is restricted to the most frequent tokens. The kept ids stay in the model's
order, because coupled drafting compares cumulative sums in vocabulary order.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mtp.errors import InputError

OUTSIDE = -1  # the index of a token that is not kept


@dataclass(frozen=True)
class DraftVocabulary:
    """ids (v,): token ids in rising order; size: the model's vocabulary V.

    Raises InputError when ids are not rising or lie outside 0 … V - 1.
    """

    ids: np.ndarray
    size: int

    def __post_init__(self) -> None:
        ids = self.ids
        if ids.ndim != 1 or not len(ids) or ids[0] < 0 or ids[-1] >= self.size:
            raise InputError(f"A draft vocabulary is a list of token ids below {self.size}.")
        if (np.diff(ids) <= 0).any():
            raise InputError("The ids of a draft vocabulary must rise: Pick goes in their order.")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sha256(self) -> str:
        """Tells it from others."""
        return hashlib.sha256(self.ids.astype("<i8").tobytes()).hexdigest()

    @cached_property
    def places(self) -> np.ndarray:
        """(V,): index of each token id in the draft vocabulary, OUTSIDE where it is not in it."""
        places = np.full(self.size, OUTSIDE, dtype=np.int64)
        places[self.ids] = np.arange(len(self.ids))
        return places

    def index(self, token_ids: Tensor) -> Tensor:
        """Indices of token ids (any shape); OUTSIDE for tokens outside and for negative ids."""
        places = torch.as_tensor(self.places, device=token_ids.device)
        return places[token_ids.clamp(min=0)].where(token_ids >= 0, torch.tensor(OUTSIDE))


def whole(size: int) -> DraftVocabulary:
    """Every token of a model with a small vocabulary."""
    return DraftVocabulary(np.arange(size), size)


def most_frequent(token_ids: np.ndarray, size: int, keep: int) -> DraftVocabulary:
    """The `keep` most frequent tokens of a corpus of token ids (any shape).

    Ties go to the smaller id. Raises InputError when `keep` is not within 1 … V.
    """
    if not 1 <= keep <= size:
        raise InputError(f"A draft vocabulary can keep 1 … {size} tokens, not {keep}.")
    counts = np.bincount(token_ids.reshape(-1), minlength=size)
    ranked = np.argsort(-counts, kind="stable")[:keep]
    return DraftVocabulary(np.sort(ranked), size)
