"""A context run once: its hidden state, its continuations and their scores are the model's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from mtp.errors import InputError
from mtp.models import continuations
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


def drawn_from_whole_texts(
    model: PreTrainedModel, count: int, length: int, seed: int
) -> torch.Tensor:
    """Samples (S, n) without any cache: a forward of all texts for each token."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.tensor([CONTEXT]).expand(count, -1)
    for _ in range(length):
        with torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False).logits[:, -1]
        said = logits.double().log_softmax(-1).exp()
        ids = torch.cat([ids, torch.multinomial(said, 1, generator=generator)], 1)
    return ids[:, len(CONTEXT) :]


@pytest.mark.parametrize("name", ACCEPTED)
def test_samples_in_pieces_are_those_of_one_batch(
    tiny: Tiny, tiny_backbone: Backbones, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny_backbone(name)
    batches: list[int] = []
    handle = backbone.model.register_forward_pre_hook(
        lambda _m, _a, given: batches.append(len(given["input_ids"])), with_kwargs=True
    )
    whole = Continuations(backbone, CONTEXT, 4)
    one_row = whole._spread_bytes()
    tokens, logs = whole.sample(23, torch.Generator().manual_seed(3))
    monkeypatch.setattr(continuations, "SPREAD_BYTES", 7 * one_row + 1)
    context = Continuations(backbone, CONTEXT, 4)
    batches.clear()
    found, scores = context.sample(23, torch.Generator().manual_seed(3))
    assert batches == [7, 7, 7, 2] * 3
    rescored = context.score(found)
    handle.remove()
    assert batches[12:] == [7, 7, 7, 2]
    assert torch.equal(found, tokens)
    torch.testing.assert_close(scores, logs, rtol=0, atol=1e-10)
    torch.testing.assert_close(rescored, logs, rtol=0, atol=1e-10)
    assert torch.equal(found, drawn_from_whole_texts(tiny(name), 23, 4, 3))


def test_a_long_context_is_not_held_once_a_sample(tiny_backbone: Backbones) -> None:
    context = Continuations(tiny_backbone("llama"), (1,) * 60, 3)
    caches: list[DynamicCache] = []
    behind = context._behind
    context._behind = lambda: caches.append(behind()) or caches[-1]  # type: ignore[method-assign]
    context.sample(50, torch.Generator().manual_seed(0))
    (cache,) = caches
    assert cache.get_seq_length() == 62
    held = [layer.keys for layer in cache.layers]
    assert all(keys is not None and keys.shape[::2] == (50, 2) for keys in held)


@pytest.mark.parametrize("layers", [0, 1])
def test_the_states_that_enter_the_last_layers_lead_to_the_final_one(
    tiny_backbone: Backbones, layers: int
) -> None:
    backbone = tiny_backbone("llama")
    context = Continuations(backbone, (1,) * (PREFILL_CHUNK + 5), 2, layers=layers)
    assert len(context.entering) == PREFILL_CHUNK + 5
    final = context.entering
    if layers:
        final = backbone.top(context.entering[None], layers)[0]
    torch.testing.assert_close(final[-1], context.hidden, rtol=0, atol=1e-8)


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
