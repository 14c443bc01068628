"""A context run once: its hidden state, its continuations and their scores are the model's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from mtp.errors import InputError
from mtp.models.backbone import PREFILL_CHUNK, Backbone
from mtp.models.continuations import Continuations

Tiny = Callable[[str], PreTrainedModel]
Backbones = Callable[[str], Backbone]
ACCEPTED = ("llama", "gpt2", "gemma2", "mistral")
CONTEXT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)  # longer than the tiny models' sliding window


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", ACCEPTED)
def test_scores_are_those_of_the_model_on_the_whole_text(
    tiny: Tiny, tiny_backbone: Backbones, name: str, temperature: float
) -> None:
    context = Continuations(tiny_backbone(name), CONTEXT, 4, temperature=temperature)
    windows = torch.tensor([[1, 2, 3, 4], [9, 9, 9, 9], [0, 39, 0, 39]])
    found = context.score(windows)
    for row, window in enumerate(windows.tolist()):
        ids = torch.tensor([[*CONTEXT, *window]])
        with torch.inference_mode():
            out = tiny(name)(input_ids=ids, use_cache=False, output_hidden_states=True)
        logs = (out.logits[0] / temperature).log_softmax(-1)
        wanted = [logs[len(CONTEXT) - 1 + i, token] for i, token in enumerate(window)]
        torch.testing.assert_close(found[row], torch.stack(wanted), rtol=0, atol=1e-8)
        last = out.hidden_states[-1][0, len(CONTEXT) - 1]
        torch.testing.assert_close(context.hidden, last, rtol=0, atol=1e-8)
    torch.testing.assert_close(context.score(windows[:, :1]), found[:, :1])


def test_samples_come_with_their_scores_and_follow_the_seed(tiny_backbone: Backbones) -> None:
    context = Continuations(tiny_backbone("llama"), CONTEXT, 3)
    tokens, logs = context.sample(16, torch.Generator().manual_seed(5))
    assert tokens.shape == logs.shape == (16, 3)
    torch.testing.assert_close(context.score(tokens), logs, rtol=0, atol=1e-8)
    again, _ = context.sample(16, torch.Generator().manual_seed(5))
    assert torch.equal(tokens, again)
    other, _ = context.sample(16, torch.Generator().manual_seed(6))
    assert not torch.equal(tokens, other)


def test_samples_have_the_models_distribution(tiny_backbone: Backbones) -> None:
    context = Continuations(tiny_backbone("llama-four"), (0, 1, 2), 1)
    tokens, _ = context.sample(4000, torch.Generator().manual_seed(0))
    wanted = context.score(torch.arange(4)[:, None])[:, 0].exp()
    counts = torch.bincount(tokens[:, 0], minlength=4).double()
    chi_square = float(((counts - 4000 * wanted).square() / (4000 * wanted)).sum())
    assert chi_square < 16.3  # 3 degrees of freedom, 0.1%


def test_a_stop_ends_sampling_within_a_token(tiny_backbone: Backbones) -> None:
    context = Continuations(tiny_backbone("llama"), CONTEXT, 5)
    tokens, _ = context.sample(2, torch.Generator(), stop=lambda: True)
    assert tokens.shape == (2, 1)


def test_a_stop_ends_reading_within_a_chunk(tiny_backbone: Backbones) -> None:
    backbone = tiny_backbone("llama")
    seen: list[int] = []
    handle = backbone.model.register_forward_pre_hook(
        lambda _m, _a, given: seen.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    Continuations(backbone, (1,) * (PREFILL_CHUNK + 20), 2, stop=lambda: True)
    Continuations(backbone, (1,) * (PREFILL_CHUNK + 20), 2)
    handle.remove()
    assert seen == [PREFILL_CHUNK, PREFILL_CHUNK, 20]


def test_contexts_that_do_not_fit_are_refused(tiny_backbone: Backbones) -> None:
    with pytest.raises(InputError, match="no tokens"):
        Continuations(tiny_backbone("llama"), (), 4)
    with pytest.raises(InputError, match="takes 24 positions"):
        Continuations(tiny_backbone("llama-short"), (1,) * 21, 4)
    Continuations(tiny_backbone("llama-short"), (1,) * 20, 4)
