"""Lookahead: the window's rows, its trajectory, and the pool."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from mtp.decode import Decoding
from mtp.drafters.jacobi import Window, offsets, window_mask
from mtp.drafters.lookahead import Lookahead, Pool
from mtp.models.backbone import Backbone, Block
from mtp.models.cache import PathCache
from mtp.sampling import Sampling
from mtp.tree import ROOT, DraftTree, Probes

PREFIX = (5, 9, 2, 30, 7, 11, 4, 8)
ROOT_TOKEN = 17


@pytest.mark.parametrize(("levels", "columns"), [(3, 4), (1, 3), (2, 1), (4, 2)])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_window_rows_equal_separate_forwards(
    name: str, levels: int, columns: int, tiny: Callable[[str], PreTrainedModel]
) -> None:
    """Every guess reads level 0 up to its column, then its own column, as plain text."""
    backbone = Backbone(tiny(name))
    generator = torch.Generator().manual_seed(0)
    window = Window(torch.randint(40, (levels, columns), generator=generator).tolist())
    cache = PathCache()
    backbone.prefill(PREFIX, cache)
    places = offsets(levels, columns)
    probes = Probes(
        owner=(ROOT,) * len(places),
        slot=places,
        embeds=backbone.embed(window.rows(columns)),
        sees=window_mask(levels, columns),
    )
    if not len(probes):
        return
    rows = backbone.forward(Block(ROOT_TOKEN, DraftTree(), probes), cache).logits[1:]
    row = 0
    for level in range(levels):
        for column in range(columns):
            if level == column == 0:
                continue
            base = [ROOT_TOKEN, *window.levels[0][1 : column + 1]]
            below = [window.levels[j][column] for j in range(1, level + 1)]
            ids = torch.tensor([[*PREFIX, *base, *below]])
            with torch.inference_mode():
                expected = backbone.model(input_ids=ids, use_cache=False).logits[0, -1]
            torch.testing.assert_close(rows[row], expected, rtol=0, atol=1e-8)
            row += 1


def test_ngrams_are_columns_and_what_the_model_said() -> None:
    window = Window([[0, 1, 2], [10, 11, 12]])
    assert window.ngrams(9, [20, 21, 22], 3) == [(9, 10, 20), (1, 11, 21), (2, 12, 22)]


@pytest.mark.parametrize("accepted", [0, 1, 2, 5])
def test_guesses_stay_at_their_positions(accepted: int) -> None:
    width, levels = 4, 3
    # A guess is named by its position behind the root, in hundreds by its level's age.
    window = Window([[100 * j + i + j for i in range(width)] for j in range(levels)])
    said = [100 * levels + i + levels for i in range(width)]
    window.advance(said, accepted, [-1] * width)
    for level, row in enumerate(window.levels):
        assert len(row) == width
        for column, token in enumerate(row):
            if token != -1:
                assert token == 100 * (level + 1) + (1 + accepted + level + column)
    kept = sum(token != -1 for row in window.levels for token in row)
    assert kept == levels * max(0, width - accepted)


def test_the_pool_keeps_the_latest_of_each_first_token() -> None:
    pool = Pool(2)
    for ngram in ((1, 2, 3), (1, 4, 5), (1, 2, 3), (1, 6, 7), (8, 9, 9)):
        pool.add(ngram)
    assert pool.after(1) == [(6, 7), (2, 3)]
    assert pool.after(5) == []
    assert len(pool) == 3


@pytest.mark.parametrize(("n", "window", "guesses", "rows"), [(3, 4, 1, 10), (4, 5, 5, 30)])
def test_rows_are_those_of_the_paper(
    n: int,
    window: int,
    guesses: int,
    rows: int,
    tiny: Callable[[str], PreTrainedModel],
    prompt: Callable[[int], tuple[int, ...]],
    write: Callable[..., Decoding],
) -> None:
    """(L − 1)(W + G) at most."""
    backbone = Backbone(tiny("llama"))
    run = write(
        backbone,
        Lookahead(backbone, n, window, guesses),
        prompt_ids=prompt(0),
        sampling=Sampling(1.0),
        max_new_tokens=32,
    )
    for step in run.steps[:-4]:
        assert (n - 1) * window <= step.rows <= rows == step.budget.rows


def test_the_window_finds_what_greedy_text_goes_on_with(
    tiny: Callable[[str], PreTrainedModel], write: Callable[..., Decoding]
) -> None:
    """Without the prompt's n-grams, all that stands was found by the window."""
    backbone = Backbone(tiny("gemma2"))
    run = write(
        backbone,
        Lookahead(backbone, pool="window"),
        prompt_ids=tuple(range(12)),
        sampling=Sampling(0),
        max_new_tokens=64,
    )
    assert len(run.output_ids) / len(run.steps) > 1.2
