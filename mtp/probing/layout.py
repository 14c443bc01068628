"""Where masks go in a block: k behind the root and behind every node, in the tree's order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from torch import Tensor

from mtp.tree import ROOT, DraftTree, Probes


def mask_probes(tree: DraftTree, masks: Tensor, useful: int) -> Probes | None:
    """Masks (k, D) behind the root and each node; None where there is none to place.

    Mask j of an owner sits at the owner's position + j, where the token x_{t+j} would, and
    predicts the one after it. `useful` is how many masks behind the root could still matter;
    one less for each token deeper. A mask sees its owner's earlier masks.
    """
    count = len(masks)
    deepest = max(tree.depths, default=ROOT)
    if useful - (deepest + 1) >= count:
        owner, slot, sees = _whole(1 + len(tree), count)
        return Probes(owner, slot, masks.repeat(1 + len(tree), 1), sees)
    each = [max(0, min(count, useful - (depth + 1))) for depth in (ROOT, *tree.depths)]
    if not any(each):
        return None
    owner = tuple(row - 1 for row, held in enumerate(each) for _ in range(held))
    slot = tuple(1 + mask for held in each for mask in range(held))
    return Probes(owner, slot, masks[[s - 1 for s in slot]], earlier_of_owner(owner, slot))


def earlier_of_owner(owner: Sequence[int], slot: Sequence[int]) -> np.ndarray:
    """sees (R, R): the probes of the same owner at the same or an earlier slot."""
    owners, slots = np.asarray(owner), np.asarray(slot)
    return (owners[:, None] == owners[None, :]) & (slots[:, None] >= slots[None, :])


@lru_cache(maxsize=512)
def _whole(owners: int, count: int) -> tuple[tuple[int, ...], tuple[int, ...], np.ndarray]:
    """Owner, slot and sees where every owner has all its masks."""
    owner = tuple(row - 1 for row in range(owners) for _ in range(count))
    slot = tuple(range(1, count + 1)) * owners
    sees = earlier_of_owner(owner, slot)
    sees.setflags(write=False)  # shared between blocks
    return owner, slot, sees
