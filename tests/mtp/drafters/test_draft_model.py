"""A draft model reads only what is new, drafts with the right noise, has the same vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mtp.decode import Decoding
from mtp.drafters.base import Context, Draft
from mtp.drafters.build import make_drafter, weights_of
from mtp.drafters.draft_model import DraftModel
from mtp.errors import InputError, ModelError
from mtp.models.backbone import Backbone
from mtp.models.verifier import Verifier
from mtp.models.vocabulary import Vocabulary
from mtp.sampling import Noise, Sampling, Stream, final_probabilities, pick

SAMPLING = Sampling(0.7)

Prompt = Callable[[int], tuple[int, ...]]
Write = Callable[..., Decoding]


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_the_verifier_itself_as_draft_model_is_always_right(
    verification: str, tiny: Callable[[str], PreTrainedModel], prompt: Prompt, write: Write
) -> None:
    backbone, small = Backbone(tiny("llama")), Backbone(tiny("llama"))
    run = write(
        backbone,
        DraftModel(small, 40, length=3),
        prompt_ids=prompt(0),
        sampling=Sampling(1.0),
        seed=3,
        verification=verification,
        max_new_tokens=40,
    )
    assert len(run.steps) == 10
    assert all(status == "accepted" for step in run.steps for status in step.tree.status)
    assert all(step.forwards == 1 for step in run.steps)
    # The prompt once; then each token of the text once, but the last drafted one and the bonus
    # together.
    assert small.rows <= 11 + 10 + 10 * 4
    assert backbone.rows == 11 + sum(step.rows for step in run.steps)


class Recording(DraftModel):
    """Keeps what it drafted, and behind which text."""

    def propose(self, context: Context) -> Draft:
        draft = super().propose(context)
        self.made = [*getattr(self, "made", []), (list(context.token_ids), draft)]
        return draft


@pytest.mark.parametrize(("verification", "stream"), [("coupled", "pick"), ("rejection", "draft")])
def test_drafts_equal_a_plain_forward_with_the_right_noise(
    verification: str,
    stream: Stream,
    tiny: Callable[[str], PreTrainedModel],
    prompt: Prompt,
    write: Write,
) -> None:
    """However the cache got there: q and the tokens are those of the text read from its start."""
    model = tiny("gpt2")
    drafter = Recording(Backbone(model), 40, length=3)
    write(
        Backbone(tiny("llama")),
        drafter,
        prompt_ids=prompt(2),
        sampling=Sampling(0.8),
        verification=verification,
        max_new_tokens=20,
    )
    assert sum(len(draft.tree) for _, draft in drafter.made) > 20
    for ids, draft in drafter.made:
        for node, token in enumerate(draft.tree.token_ids):
            text = torch.tensor([[*ids, *draft.tree.token_ids[:node]]])
            with torch.inference_mode():
                logits = model(input_ids=text, use_cache=False).logits[0, -1]
            q = final_probabilities(logits, Sampling(0.8))
            torch.testing.assert_close(draft.tree.q[node - 1], q, atol=1e-9, rtol=0)
            assert token == pick(Noise(0).u(text.shape[1], stream), q)
            assert draft.tree.kind[node] == "sampled"


def test_a_narrower_or_wider_table_is_fitted(tiny: Callable[[str], PreTrainedModel]) -> None:
    logits = torch.arange(4.0)
    small = Backbone(tiny("llama-four"))
    assert DraftModel(small, 6)._fitted(logits).softmax(dim=0)[4:].sum() == 0
    assert torch.equal(DraftModel(small, 3)._fitted(logits), logits[:3])


def test_says_why_where_the_text_is_too_long(
    tiny: Callable[[str], PreTrainedModel], prompt: Prompt, write: Write
) -> None:
    run = write(
        Backbone(tiny("llama")),
        DraftModel(Backbone(tiny("llama-short")), 40),
        prompt_ids=prompt(0),
        max_new_tokens=40,
    )
    assert len(run.output_ids) == 40
    insight = run.steps[-3].insight
    assert insight is not None
    assert insight["why"] == "The text is longer than the 24 tokens the draft model reads."


def words(count: int, prefix: str = "w") -> PreTrainedTokenizerFast:
    table = {f"{prefix}{token}": token for token in range(count)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(table, unk_token="w0")))


@pytest.fixture
def verifier(tiny: Callable[[str], PreTrainedModel]) -> Verifier:
    return Verifier("tiny", "", Backbone(tiny("llama")), Vocabulary(words(40)))


def test_a_folder_can_be_the_draft_model(
    verifier: Verifier,
    tiny: Callable[[str], PreTrainedModel],
    tmp_path: Path,
    prompt: Prompt,
    write: Write,
) -> None:
    tiny("qwen3").save_pretrained(tmp_path / "small")
    words(40).save_pretrained(tmp_path / "small")
    drafter = make_drafter(
        "draft-model", {"model": str(tmp_path / "small"), "length": 2}, verifier, SAMPLING
    )
    request = {"prompt_ids": prompt(0), "max_new_tokens": 12}
    run = write(verifier.backbone, drafter, **request)
    assert any(step.tree.token_ids for step in run.steps)
    union = make_drafter(
        "draft-model+pld", {"draft-model.model": str(tmp_path / "small")}, verifier, SAMPLING
    )
    assert write(verifier.backbone, union, **request).output_ids == run.output_ids
    (told,) = weights_of(union)
    file = tmp_path / "small" / "model.safetensors"
    assert (told.drafter, told.folder) == ("draft-model", "small")
    assert told.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_another_vocabulary_is_refused(
    verifier: Verifier, tiny: Callable[[str], PreTrainedModel], tmp_path: Path
) -> None:
    tiny("qwen3").save_pretrained(tmp_path / "other")
    words(40, "v").save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match="another vocabulary than the verifier: 0 of 40 tokens"):
        make_drafter("draft-model", {"model": str(tmp_path / "other")}, verifier, SAMPLING)
    with pytest.raises(ModelError):
        make_drafter("draft-model", {"model": str(tmp_path / "nothing")}, verifier, SAMPLING)
    with pytest.raises(InputError, match="needs option model"):
        make_drafter("draft-model", {}, verifier, SAMPLING)
