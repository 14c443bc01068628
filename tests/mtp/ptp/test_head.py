"""Picking in a head: soft edges against Pick, and rows given the picks before them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mtp.ptp.head import PickHead, behind, picks, settle
from mtp.sampling import Sampling, final_probabilities, pick

SAMPLINGS = [Sampling(0.7), Sampling(1.2, top_k=3), Sampling(1.0, top_p=0.6), Sampling(0.0)]


@given(seed=st.integers(0, 10**6), which=st.sampled_from(range(4)))
def test_picks_are_pick(seed: int, which: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, 3, 7, generator=generator)
    u = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    found = picks(logits, u, SAMPLINGS[which])
    for row, noise, token in zip(logits.flatten(0, 1), u.flatten(), found.flatten(), strict=True):
        assert pick(float(noise), final_probabilities(row, SAMPLINGS[which])) == int(token)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_soft_picks_near_hard_ones_and_sum_to_one(sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(0)
    head = PickHead(64, 1)
    logits = 2 * torch.randn(50, 4, 9, generator=generator)
    u = torch.rand(50, 4, generator=generator, dtype=torch.float64)
    soft = head.softly_picked(logits, u, sampling).exp()
    torch.testing.assert_close(soft.sum(-1), torch.ones(50, 4), atol=1e-5, rtol=0)
    with torch.no_grad():
        head.log_width.fill_(-12.0)
    sharp = head.softly_picked(logits, u, sampling).exp()
    hard = picks(logits, u, sampling)
    assert (sharp.argmax(-1) == hard).float().mean() > 0.99  # but for noise at an edge
    p = final_probabilities(logits, sampling).float()
    raised = soft.gather(-1, hard[..., None]) - p.gather(-1, hard[..., None])
    assert raised.mean() > 0 or sampling.greedy
    with torch.no_grad():
        head.log_width.fill_(4.0)
    wide = head.softly_picked(logits, u, sampling).exp()
    torch.testing.assert_close(wide, p, atol=0.01, rtol=0)  # the noise decides nothing


def test_soft_picks_teach_the_distribution() -> None:
    """The gradient moves an edge towards where the noise says that it should be."""
    head = PickHead(64, 1)
    logits = torch.zeros(1, 1, 2, requires_grad=True)
    told = head.softly_picked(logits, torch.tensor([[0.52]]), Sampling(1.0))
    told[0, 0, 0].backward()  # the token was 0: its interval should reach beyond 0.52
    assert logits.grad is not None and logits.grad[0, 0, 0] > 0 > logits.grad[0, 0, 1]


@pytest.mark.parametrize("first", [0, 1])
def test_settled_rows_are_those_of_one_after_another(first: int) -> None:
    """Picking all rows at once until nothing changes equals going through them in order."""
    generator = torch.Generator().manual_seed(1)
    size, length, branches = 6, 7, 20
    table = 2 * torch.randn(length, size + 1, size, generator=generator)
    u = torch.rand(branches, length, generator=generator, dtype=torch.float64)
    sampling = Sampling(1.0)
    calls = 0

    def step(given: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return table[torch.arange(length)[None], given]

    def hard_picks(logits: Tensor) -> Tensor:
        return picks(logits, u, sampling)

    known = torch.full((branches, length), -1)
    known[:, first] = torch.randint(size, (branches,), generator=generator)
    found = settle(step, known, first, hard_picks)
    assert calls <= length - first + 1
    for branch in range(branches):
        token = int(known[branch, first])
        for row in range(first, length):
            torch.testing.assert_close(found[branch, row], table[row, token])
            p = final_probabilities(table[row, token], sampling)
            token = pick(float(u[branch, row]), p)
    guess = known.clone()
    guess[:, first + 1 :] = torch.randint(size, (branches, length - first - 1), generator=generator)
    assert torch.equal(settle(step, guess, first, hard_picks), found)  # whatever was guessed


@pytest.mark.parametrize(("width", "narrow"), [(0, 0), (4, 0), (4, 64)])
def test_layers_run_as_transformers_runs_them(width: int, narrow: int) -> None:
    """Read behind and rows apart, against one line through the whole body."""
    torch.manual_seed(0)
    head = PickHead(128, 2, narrow)
    assert head.body.config.hidden_size == (narrow or 128)
    for parameter in head.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    text, following = torch.randn(3, width + 1, 128), torch.randn(3, width, 128)
    states, given = torch.randn(3, 6, 128), torch.randn(3, 6, 128)
    before = head.root(text)
    before[:, :width] += head.given(following)
    line = torch.cat([before, head.row(states) + head.given(given)], dim=1)
    theirs = head.out(head.body(inputs_embeds=line).last_hidden_state[:, width + 1 :])
    mine = head.over(head.read(text, following), states)(given)
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


def test_a_head_learns_after_it_has_drafted() -> None:
    """What passes share is made once, in drafting as well; training goes through it too."""
    head = PickHead(128, 1)
    head.out.weight.data.normal_()
    text, following = torch.randn(1, 5, 128), torch.randn(1, 4, 128)
    states, given = torch.randn(1, 3, 128), torch.randn(1, 3, 128)
    with torch.inference_mode():
        drafted = head.over(head.read(text, following), states)(given)
    learning = head.over(head.read(text, following), states)(given)
    assert torch.equal(learning, drafted)
    learning.square().mean().backward()
    layer = head.body.layers[0].self_attn
    for part in (layer.q_proj, layer.k_proj, layer.v_proj):
        assert part.weight.grad is not None and part.weight.grad.abs().max() > 0


def test_what_is_behind_a_branch() -> None:
    """States and tokens of the rows before each root; nothing before the text's start."""
    states = torch.arange(1.0, 13).view(2, 6, 1)
    ids = torch.arange(20, 32).view(2, 6)
    found = behind(states, ids, torch.tensor([[5, 1], [0, 3]]), 2)
    assert found.states[:, :, 0].tolist() == [[4, 5, 6], [0, 1, 2], [0, 0, 7], [8, 9, 10]]
    assert found.following.tolist() == [[24, 25], [-1, 21], [-1, -1], [28, 29]]
    assert found.root[:, 0].tolist() == [6, 2, 7, 10]


@pytest.mark.parametrize("length", [1, 2])
def test_short_branches_settle_at_once(length: int) -> None:
    known = torch.zeros(3, length, dtype=torch.long)
    logits = torch.randn(3, length, 5)
    u = torch.rand(3, length, dtype=torch.float64)

    def pick(logits: Tensor) -> Tensor:
        return picks(logits, u, Sampling(1.0))

    assert torch.equal(settle(lambda given: logits, known, 1, pick), logits)
