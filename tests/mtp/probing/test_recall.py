"""Ranks measured over a text agree, step for step, with what the drafter got right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers import PreTrainedModel

from mtp.decode import Decoding
from mtp.drafters.esp import EmbeddingProbing
from mtp.models.backbone import Backbone
from mtp.probing.masks import initial_masks
from mtp.probing.recall import NEVER, foreseen_ranks
from mtp.sampling import Sampling


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_a_step_stands_exactly_where_the_rank_is_within_the_candidates(
    name: str,
    tiny: Callable[[str], PreTrainedModel],
    prompt: Callable[[int], tuple[int, ...]],
    write: Callable[..., Decoding],
) -> None:
    backbone = Backbone(tiny(name))
    candidates, stood = 6, 0
    for seed in range(3):
        ids = prompt(seed)
        run = write(
            backbone,
            EmbeddingProbing(backbone, masks=1, init="mean", tree=str(candidates)),
            prompt_ids=ids,
            sampling=Sampling(1.0),
            seed=seed,
            max_new_tokens=80,
        )
        masks = initial_masks(backbone, ids, 1, "mean", seed)
        ranks = foreseen_ranks(backbone, ids, run.output_ids, masks)
        assert ranks.shape == (79, 1)
        written = 0
        for step in run.steps:
            if step.tree.token_ids:  # its root is output token `written` − 1
                right = len(step.committed) == 2
                stood += right
                assert right == (0 <= ranks[written - 1, 0] < candidates)
            written += len(step.committed)
    assert stood


def test_ranks_beyond_the_text_and_pruned_tokens(
    tiny: Callable[[str], PreTrainedModel],
) -> None:
    backbone = Backbone(tiny("llama"))
    masks = initial_masks(backbone, (1, 2, 3), 3, "mean", 0)
    ranks = foreseen_ranks(backbone, (1, 2, 3), (4, 5, 5, 6), masks)
    assert (ranks == -1).tolist() == [[False] * 3, [False, False, True], [False, True, True]]
    assert (ranks == NEVER).tolist() == [[False, True, False], [True, False, False], [False] * 3]
    assert ranks[ranks < NEVER].max() < 40
