"""Unions: every member's needs on every node, rows within the budget, origins kept."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from mtp.decode import Decoding
from mtp.drafters.base import Draft
from mtp.drafters.build import make_drafter
from mtp.drafters.esp import EmbeddingProbing
from mtp.drafters.lookahead import Lookahead
from mtp.drafters.pld import PromptLookup
from mtp.drafters.stand import AdaptiveNgrams
from mtp.drafters.union import Union, joined
from mtp.models.backbone import Backbone
from mtp.models.verifier import Verifier
from mtp.models.vocabulary import Vocabulary
from mtp.sampling import Sampling
from mtp.tree import ROOT, Probes

SAMPLING = Sampling(0.7)

Prompt = Callable[[int], tuple[int, ...]]
Write = Callable[..., Decoding]


def recorded(union: Union) -> list[Draft]:
    """The drafts a union makes from now on."""
    drafts: list[Draft] = []
    propose = union.propose

    def keep(context):  # type: ignore[no-untyped-def]
        drafts.append(propose(context))
        return drafts[-1]

    union.propose = keep  # type: ignore[method-assign]
    return drafts


def test_every_node_carries_every_members_probes(
    tiny: Callable[[str], PreTrainedModel], prompt: Prompt, write: Write
) -> None:
    backbone = Backbone(tiny("gemma2"))
    esp = EmbeddingProbing(backbone, masks=2, budget=60)
    union = Union([esp, PromptLookup(14), Lookahead(backbone, 3, 4, 1)], 60, 14)
    drafts = recorded(union)
    run = write(backbone, union, prompt_ids=prompt(0), sampling=Sampling(0.7), max_new_tokens=48)
    origins: set[tuple[str, ...]] = set()
    for draft, step in zip(drafts[:-4], run.steps, strict=False):
        assert draft.probes is not None
        owners = draft.probes.owner
        masks = 2 * (1 + len(draft.tree))
        assert owners[:masks] == tuple(n for n in range(-1, len(draft.tree)) for _ in range(2))
        assert owners[masks:] == (ROOT,) * 7  # the window: 2 levels of 4, less the root
        assert not draft.probes.sees[:masks, masks:].any()
        assert not draft.probes.sees[masks:, :masks].any()
        assert step.rows == 1 + len(draft.tree) + len(owners) <= 60
        origins |= set(step.tree.origins)
    names = {name for one in origins for name in one}
    assert names == {"esp", "pld", "lookahead"}
    assert any(len(one) > 1 for one in origins)


def test_esp_goes_on_from_a_node_that_another_member_drafted(
    tiny: Callable[[str], PreTrainedModel], prompt: Prompt, write: Write
) -> None:
    backbone = Backbone(tiny("gpt2"))
    esp = EmbeddingProbing(backbone, masks=1, budget=30)
    run = write(
        backbone,
        Union([esp, PromptLookup(14)], 30, 14),
        prompt_ids=prompt(0),
        sampling=Sampling(0.7),
        max_new_tokens=48,
    )
    after = 0
    for step, following in zip(run.steps, run.steps[1:-3], strict=False):
        stood = [n for n, status in enumerate(step.tree.status) if status == "accepted"]
        if stood and step.tree.origins[stood[-1]] == ("pld",):
            after += 1
            assert any("esp" in origins for origins in following.tree.origins)
    assert after


def test_members_probes_do_not_see_each_other() -> None:
    def probes(rows: int) -> Probes:
        sees = np.tril(np.ones((rows, rows), dtype=bool))
        return Probes((ROOT,) * rows, tuple(range(1, rows + 1)), torch.ones(rows, 4), sees)

    both = joined([probes(2), probes(3)])
    assert both is not None and both.slot == (1, 2, 1, 2, 3)
    expected = np.zeros((5, 5), dtype=bool)
    expected[:2, :2], expected[2:, 2:] = np.tril(np.ones((2, 2))), np.tril(np.ones((3, 3)))
    assert (both.sees == expected).all()
    assert joined([]) is None


def test_rows_go_to_the_member_whose_drafts_stand(
    tiny: Callable[[str], PreTrainedModel], prompt: Prompt, write: Write
) -> None:
    """Greedy text of a tiny model repeats itself: n-grams stand, and their nodes come to lead."""
    backbone = Backbone(tiny("llama"))
    esp = EmbeddingProbing(backbone, masks=1, budget=20)
    run = write(
        backbone,
        Union([esp, AdaptiveNgrams(10)], 20, 9),
        prompt_ids=prompt(0),
        sampling=Sampling(0),
        max_new_tokens=64,
    )
    last = run.steps[-4].insight
    assert last is not None and last["kind"] == "union"
    members = last["members"]
    assert members["stand"]["lately"] > members["esp"]["lately"]
    assert members["stand"]["drafted"] >= members["esp"]["drafted"]
    assert run.steps[-4].budget.expected is not None and run.steps[-4].budget.expected > 2
    assert len(json.dumps(last)) < 500


def test_an_empty_union_gives_every_members_reason(
    tiny: Callable[[str], PreTrainedModel], write: Write
) -> None:
    backbone = Backbone(tiny("llama"))
    verifier = Verifier("tiny", "", backbone, Vocabulary.__new__(Vocabulary))
    union = make_drafter("esp+pld", {}, verifier, SAMPLING)
    run = write(backbone, union, prompt_ids=(1, 2, 3), max_new_tokens=2)
    insight = run.steps[0].insight
    assert insight is not None
    assert insight["why"].startswith("esp: The first forward only places masks")
    assert "pld: The last token has not stood" in insight["why"]


@pytest.mark.parametrize(
    ("name", "options", "nodes"),
    [
        ("esp+pld", {"budget": 60}, 29),
        ("esp+pld", {"budget": 30, "esp.masks": 2}, 9),
        ("stand+pld", {"budget": 30}, 29),
        ("esp+lookahead", {"budget": 60}, 22),  # 1 + 14 window + 1 mask; 2 a node
    ],
)
def test_the_whole_budget_is_shared(
    name: str, options: dict[str, object], nodes: int, tiny: Callable[[str], PreTrainedModel]
) -> None:
    verifier = Verifier("tiny", "", Backbone(tiny("llama")), Vocabulary.__new__(Vocabulary))
    union = make_drafter(name, options, verifier, SAMPLING)
    assert isinstance(union, Union)
    assert union.name == name and union.nodes == nodes
    for member in union.members:
        if isinstance(member, EmbeddingProbing):
            assert member.nodes == nodes
        if isinstance(member, PromptLookup):
            assert member.budget == nodes
