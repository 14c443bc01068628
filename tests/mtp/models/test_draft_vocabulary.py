"""The draft vocabulary keeps the most frequent tokens in the model's order."""

import numpy as np
import pytest
import torch

from mtp.errors import InputError
from mtp.models.draft_vocabulary import OUTSIDE, DraftVocabulary, most_frequent, whole


def test_the_most_frequent_tokens_are_kept_in_rising_order():
    corpus = np.array([[7, 7, 7, 2], [2, 9, 0, 9]])
    assert most_frequent(corpus, 10, 3).ids.tolist() == [2, 7, 9]
    assert most_frequent(corpus, 10, 5).ids.tolist() == [0, 1, 2, 7, 9]  # ties: smaller id


def test_indices_of_tokens_outside_are_unknown():
    vocabulary = DraftVocabulary(np.array([2, 7, 9]), 10)
    found = vocabulary.index(torch.tensor([[7, 0], [9, OUTSIDE]]))
    assert found.tolist() == [[1, OUTSIDE], [2, OUTSIDE]]
    assert whole(4).index(torch.arange(4)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("ids", [[], [3, 2], [2, 2], [-1, 2], [2, 10]])
def test_impossible_lists_are_refused(ids):
    with pytest.raises(InputError):
        DraftVocabulary(np.array(ids, dtype=np.int64), 10)


def test_impossible_sizes_are_refused():
    with pytest.raises(InputError, match="1 … 10"):
        most_frequent(np.array([1]), 10, 11)
