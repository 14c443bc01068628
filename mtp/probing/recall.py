"""How well masks foresee a text that is already there: the rank of each true token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mtp.models.backbone import Backbone, Block
from mtp.models.cache import PathCache
from mtp.probing.layout import mask_probes
from mtp.tree import chain

_CHUNK = 64  # tokens a forward; each brings its masks
NEVER = np.iinfo(np.int64).max
"""Rank of a token that pruning takes away: it repeats its parent."""


def foreseen_ranks(
    backbone: Backbone, prompt_ids: Sequence[int], output_ids: Sequence[int], masks: Tensor
) -> np.ndarray:
    """Ranks (T − 1, k) of true tokens under frozen masks (k, D), 0 for the most probable.

    Entry [t, i] is the rank of output token t + 1 + i by mask i + 1 behind the token before output
    token t: what ESP has to draft from when output token t is its root. −1 where the output ends.
    With one mask and K candidates a step, the share of ranks below K is the top-K recall, and
    1 + recall is what ESP's tokens per call come to.
    """
    count = len(masks)
    ids = [*prompt_ids, *output_ids]
    cache = PathCache()
    start = len(prompt_ids) - 1
    backbone.prefill(ids[:start], cache)
    ranks = np.full((len(output_ids) - 1, count), -1, dtype=np.int64)
    for first in range(0, len(ranks), _CHUNK):
        line = ids[start + first : start + min(first + _CHUNK, len(ranks))]
        tree = chain(line[1:], "text")
        probes = mask_probes(tree, masks, useful=len(line) + count)
        assert probes is not None
        rows = backbone.forward(Block(line[0], tree, probes), cache)
        cache.keep(range(len(line)))
        logits = rows.logits[len(line) :].unflatten(0, (len(line), count))  # (T, k, V)
        for row in range(len(line)):
            true = output_ids[first + row + 1 : first + row + 1 + count]
            parents = output_ids[first + row : first + row + count]
            for mask, (token, parent) in enumerate(zip(true, parents, strict=False)):
                ranks[first + row, mask] = _rank(logits[row, mask], token, parent)
    return ranks


def _rank(logits: Tensor, token: int, parent: int) -> int:
    """How many tokens come before `token` in logits (V,), its parent's own left out."""
    if token == parent:
        return int(NEVER)
    before = int(torch.count_nonzero(logits > logits[token]))
    return before - int(logits[parent] > logits[token])
