"""The probing drafter: what it drafts, what rides along, and what it keeps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from mtp.decode import Decoding
from mtp.drafters.base import Context, Draft, Outcome, ProbeOutput
from mtp.drafters.esp import EmbeddingProbing
from mtp.models.backbone import Backbone
from mtp.probing.masks import initial_masks
from mtp.sampling import Noise, Sampling
from mtp.tree import ROOT

Prompt = Callable[[int], tuple[int, ...]]
Write = Callable[..., Decoding]


def context(ids: list[int], prompt_length: int, most_depth: int = 100) -> Context:
    return Context(
        token_ids=ids,
        prompt_length=prompt_length,
        hidden={},
        noise=Noise(0),
        sampling=Sampling(),
        verification="coupled",
        most_depth=most_depth,
        room=most_depth,
    )


def observe(drafter: EmbeddingProbing, draft: Draft, accepted: tuple[int, ...], committed, logits):  # type: ignore[no-untyped-def]
    outcome = Outcome(draft, accepted, committed, torch.zeros(1 + len(draft.tree), 40), {})
    drafter.observe(outcome, ProbeOutput(logits, {}))


@pytest.mark.parametrize(
    ("masks", "budget", "nodes"), [(1, 30, 14), (2, 30, 9), (1, 10, 4), (2, 60, 19), (4, 10, 1)]
)
def test_block_complexity_counts_the_masks(
    masks: int, budget: int, nodes: int, tiny_backbone: Callable[[str], Backbone]
) -> None:
    drafter = EmbeddingProbing(tiny_backbone("llama"), masks, budget=budget)
    assert drafter.nodes == nodes
    first = drafter.propose(context([1, 2, 3], 3))
    assert len(first.tree) == 0 and first.why_empty is not None
    assert first.probes is not None
    assert first.probes.owner == (ROOT,) * masks and first.probes.slot == tuple(range(1, masks + 1))
    observe(drafter, first, (), (4,), torch.randn(masks, 40))
    draft = drafter.propose(context([1, 2, 3, 4], 3))
    assert draft.probes is not None
    assert len(draft.tree) == nodes
    rows = 1 + nodes + len(draft.probes)
    assert rows == (masks + 1) * (nodes + 1) <= draft.budget_rows <= budget


@pytest.mark.parametrize(("masks", "tree", "rows"), [(1, "14", 30), (2, "15,4", 60), (1, "29", 60)])
def test_fixed_trees_are_those_of_the_paper(
    masks: int, tree: str, rows: int, tiny_backbone: Callable[[str], Backbone]
) -> None:
    drafter = EmbeddingProbing(tiny_backbone("llama"), masks, tree=tree)
    first = drafter.propose(context([1, 2, 3], 3))
    observe(drafter, first, (), (4,), torch.randn(masks, 40))
    draft = drafter.propose(context([1, 2, 3, 4], 3))
    assert draft.probes is not None
    assert 1 + len(draft.tree) + len(draft.probes) == rows == draft.budget_rows


def test_the_deepest_accepted_nodes_masks_give_the_next_tree(
    tiny_backbone: Callable[[str], Backbone],
) -> None:
    drafter = EmbeddingProbing(tiny_backbone("llama"), masks=2, budget=12)
    first = drafter.propose(context([1, 2, 3], 3))
    one = torch.full((2, 40), -9.0)
    one[0, 7], one[0, 8], one[1, 9] = 3.0, 2.0, 3.0
    observe(drafter, first, (), (4,), one)
    draft = drafter.propose(context([1, 2, 3, 4], 3))
    assert draft.tree.token_ids[:2] == (7, 8)
    node = next(n for n in range(3) if draft.tree.depths[n] == 1)
    assert draft.tree.token_ids[node] == 9 and draft.tree.parents[node] == 0
    assert draft.tree.log_q[0] == pytest.approx(float(one[0].log_softmax(0)[7]), abs=1e-5)
    # Node 1 stands: of all rows only its two matter.
    assert draft.probes is not None
    logits = torch.randn(len(draft.probes), 40)
    mine = [row for row, owner in enumerate(draft.probes.owner) if owner == 1]
    observe(drafter, draft, (1,), (8, 5), logits)
    following = drafter.propose(context([1, 2, 3, 4, 8, 5], 3))
    order = [t for t in logits[mine[0]].argsort(descending=True).tolist() if t != 5]
    roots = [
        token
        for token, parent in zip(following.tree.token_ids, following.tree.parents, strict=True)
        if parent == ROOT
    ]
    assert roots == order[: len(roots)]


def test_masks_move_with_every_committed_token(tiny_backbone: Callable[[str], Backbone]) -> None:
    backbone = tiny_backbone("llama")
    for update in (0.0, 0.1):
        drafter = EmbeddingProbing(backbone, masks=1, init="mean", update=update)
        draft = drafter.propose(context([1, 2, 3], 3))
        observe(drafter, draft, (), (4, 5), torch.zeros(1, 40))
        expected = initial_masks(backbone, (1, 2, 3), 1, "mean", 0)[0]
        for token in (4, 5):
            expected = expected + update * (backbone.embeddings[token] - expected)
        following = drafter.propose(context([1, 2, 3, 4, 5], 3))
        assert following.probes is not None
        torch.testing.assert_close(following.probes.embeds[0], expected)


def test_masks_that_cannot_matter_stay_out(tiny_backbone: Callable[[str], Backbone]) -> None:
    drafter = EmbeddingProbing(tiny_backbone("llama"), masks=2, budget=12)
    assert drafter.propose(context([1, 2], 2, most_depth=0)).probes is None
    assert drafter.propose(context([1, 2], 2, most_depth=1)).probes is None
    two = drafter.propose(context([1, 2], 2, most_depth=2)).probes
    assert two is not None and two.slot == (1,)


def test_a_step_is_small_in_the_trace(
    tiny: Callable[[str], PreTrainedModel], prompt: Prompt, write: Write
) -> None:
    backbone = Backbone(tiny("gemma2"))
    run = write(
        backbone,
        EmbeddingProbing(backbone, masks=4, budget=60),
        prompt_ids=prompt(0),
        max_new_tokens=24,
    )
    insights = [step.insight for step in run.steps if step.tree.token_ids]
    assert insights
    for insight in insights:
        assert insight is not None and insight["kind"] == "esp"
        assert len(json.dumps(insight)) < 1000
        for pairs in insight["candidates"]:
            assert all(0 >= log_p > -math.inf for _, log_p in pairs)
