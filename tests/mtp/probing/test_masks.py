"""Mask vectors start where they should and follow the text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mtp.models.backbone import Backbone
from mtp.probing.masks import follow, initial_masks

PROMPT = (3, 1, 4, 1, 5)


def test_mean_is_the_mean_of_the_prompts_embeddings(
    tiny_backbone: Callable[[str], Backbone],
) -> None:
    backbone = tiny_backbone("llama")
    masks = initial_masks(backbone, PROMPT, 3, "mean", seed=0)
    expected = backbone.embeddings[list(PROMPT)].mean(dim=0)
    assert masks.shape == (3, backbone.hidden_size)
    for mask in masks:
        torch.testing.assert_close(mask, expected)


def test_table_is_the_mean_of_the_whole_table(
    tiny_backbone: Callable[[str], Backbone],
) -> None:
    for name in ("llama", "gemma2"):  # the second scales its embeddings
        backbone = tiny_backbone(name)
        masks = initial_masks(backbone, PROMPT, 2, "table", seed=0)
        expected = backbone.embed(range(backbone.vocabulary_size)).mean(dim=0)
        torch.testing.assert_close(masks, expected.repeat(2, 1))


def test_last_takes_the_last_embeddings_one_each(tiny_backbone: Callable[[str], Backbone]) -> None:
    backbone = tiny_backbone("llama")
    masks = initial_masks(backbone, PROMPT, 3, "last", seed=0)
    torch.testing.assert_close(masks, backbone.embeddings[[4, 1, 5]])
    short = initial_masks(backbone, PROMPT[:2], 4, "last", seed=0)
    torch.testing.assert_close(short, backbone.embeddings[[3, 3, 3, 1]])


def test_sample_has_the_tables_mean_and_spread(tiny_backbone: Callable[[str], Backbone]) -> None:
    backbone = tiny_backbone("llama")
    table = backbone.embeddings
    draws = torch.cat([initial_masks(backbone, PROMPT, 4, "sample", s) for s in range(500)])
    spread = table.std(dim=0, correction=0)
    assert ((draws.mean(dim=0) - table.mean(dim=0)).abs() < 5 * spread / len(draws) ** 0.5).all()
    torch.testing.assert_close(draws.std(dim=0), spread, rtol=0.1, atol=0)
    again = initial_masks(backbone, PROMPT, 4, "sample", seed=7)
    assert torch.equal(again, initial_masks(backbone, PROMPT, 4, "sample", seed=7))
    assert not torch.equal(again, initial_masks(backbone, PROMPT, 4, "sample", seed=8))


def test_embeddings_are_taken_as_the_first_layer_meets_them(
    tiny_backbone: Callable[[str], Backbone],
) -> None:
    backbone = tiny_backbone("gemma2")  # which scales its embeddings
    masks = initial_masks(backbone, PROMPT, 1, "last", seed=0)
    torch.testing.assert_close(masks, backbone.embed(PROMPT[-1:]))


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
def test_masks_move_towards_every_new_token(rate: float) -> None:
    masks = torch.zeros(2, 3, dtype=torch.float64)
    embeds = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], dtype=torch.float64)
    expected = rate * (1 - rate) * embeds[0] + rate * embeds[1]
    torch.testing.assert_close(follow(masks, embeds, rate), expected.repeat(2, 1))
