"""Masks ride along in a block exactly as if each owner's path and masks were run on their own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtp.models.backbone import Backbone, Block
from mtp.models.cache import PathCache
from mtp.probing.layout import mask_probes
from mtp.probing.masks import initial_masks
from mtp.tree import ROOT, DraftTree

ACCEPTED = ("llama", "qwen3", "gpt2", "gemma2", "mistral")
PREFIX = (5, 9, 2, 30, 7, 11, 4, 8, 21, 13, 6)
ROOT_TOKEN = 17
TREE = DraftTree(
    token_ids=(1, 2, 3, 4, 5, 6),
    parents=(ROOT, ROOT, 0, 0, 1, 2),
    log_q=(0.0,) * 6,
    kind=("deterministic",) * 6,
    origins=(("esp",),) * 6,
)


def alone(model: PreTrainedModel, ids: list[int], masks: Tensor) -> Tensor:
    """Logits (k, V) at masks behind a plain sequence: no cache, no tree, no block mask."""
    embeds = model.get_input_embeddings()(torch.tensor(ids))
    with torch.inference_mode():
        out = model(inputs_embeds=torch.cat([embeds, masks.to(embeds)])[None], use_cache=False)
    return out.logits[0, len(ids) :]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 2e-3)])
@pytest.mark.parametrize("name", ACCEPTED)
def test_mask_rows_equal_separate_forwards(
    name: str, dtype: torch.dtype, tolerance: float, tiny: Callable[[str], PreTrainedModel]
) -> None:
    model: PreTrainedModel = copy.deepcopy(tiny(name))
    model.to(dtype)  # type: ignore[arg-type]
    backbone = Backbone(model)
    if dtype is torch.float64 and backbone.config._attn_implementation == "eager":
        tolerance = 1e-5  # its softmax is in float32, whatever the model's precision
    masks = initial_masks(backbone, PREFIX, 3, "sample", seed=0)
    for useful in (9, 3):  # all masks; then the deeper nodes have fewer
        cache = PathCache()
        backbone.prefill(PREFIX, cache)
        probes = mask_probes(TREE, masks, useful)
        assert probes is not None
        rows = backbone.forward(Block(ROOT_TOKEN, TREE, probes), cache)
        found = rows.logits[1 + len(TREE) :]
        for owner in (ROOT, *range(len(TREE))):
            mine = [row for row, one in enumerate(probes.owner) if one == owner]
            depth = -1 if owner == ROOT else TREE.depths[owner]
            assert len(mine) == min(3, useful - depth - 1)
            path = [TREE.token_ids[node] for node in TREE.path(owner)]
            expected = alone(model, [*PREFIX, ROOT_TOKEN, *path], masks[: len(mine)])
            torch.testing.assert_close(found[mine], expected, rtol=0, atol=tolerance)


def test_token_rows_do_not_see_masks(tiny_backbone: Callable[[str], Backbone]) -> None:
    backbone = tiny_backbone("llama")
    masks = initial_masks(backbone, PREFIX, 2, "mean", seed=0)
    logits = []
    for probes in (None, mask_probes(TREE, masks, 9)):
        cache = PathCache()
        backbone.prefill(PREFIX, cache)
        block = Block(ROOT_TOKEN, TREE, probes)
        logits.append(backbone.forward(block, cache).logits[: 1 + len(TREE)])
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-10)


def test_no_masks_where_none_can_matter() -> None:
    assert mask_probes(DraftTree(), torch.zeros(2, 4), useful=0) is None
    one = mask_probes(TREE, torch.zeros(2, 4), useful=1)
    assert one is not None
    assert one.owner == (ROOT,)


def test_shapes_met_before_are_shared() -> None:
    first = mask_probes(TREE, torch.zeros(2, 4), useful=9)
    second = mask_probes(TREE, torch.ones(2, 4), useful=8)
    assert first is not None and second is not None
    assert first.sees is second.sees
    assert not first.sees.flags.writeable
