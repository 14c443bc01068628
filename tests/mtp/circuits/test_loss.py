"""The training loss equals its definition window by window, in any chunks."""

import math
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mtp.circuits.circuit import UNKNOWN
from mtp.circuits.heads import CircuitHead, HeadConfig
from mtp.circuits.loss import window_loss, window_targets
from mtp.circuits.prefix import prefix_marginals
from mtp.errors import InputError
from mtp.models.draft_vocabulary import whole

BASE = HeadConfig("btree", 4, 3, 8, 6, 6, "base", code=5, basis=4, own=3, gate=4)


def make(name="btree", inputs="low-rank"):
    config = replace(BASE, circuit=name, rank=1 if name == "ff" else 3, inputs=inputs)
    generator = torch.Generator().manual_seed(0)
    head = CircuitHead(config, torch.randn(6, 8, generator=generator), whole(6), generator).double()
    for parameter in head.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return head


def batch():
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, 7, 8, generator=generator, dtype=torch.float64)
    return hidden, torch.randint(6, (2, 9), generator=generator)


def test_windows_end_with_their_document_and_at_tokens_that_cannot_be_drafted():
    tokens = torch.tensor([[0, 1, 2, 3, UNKNOWN, 5, 6]])
    documents = torch.tensor([[4, 4, 4, 4, 4, 4, -1]])
    x = UNKNOWN
    assert window_targets(tokens, 6, 3, documents)[0].tolist() == [
        [1, 2, 3], [2, 3, x], [3, x, x], [x, x, x], [5, x, x], [x, x, x]
    ]  # fmt: skip
    two = torch.tensor([[1, 1, 1, 2, 2, 2, 2]])
    assert window_targets(torch.arange(7)[None], 7, 2, two)[0].tolist() == [
        [1, 2], [2, x], [x, x], [4, 5], [5, 6], [6, x], [x, x]
    ]  # fmt: skip
    assert window_targets(torch.arange(7)[None], 2, 3, None)[0].tolist() == [[1, 2, 3], [2, 3, 4]]


@pytest.mark.parametrize("inputs", ["low-rank", "full"])
@pytest.mark.parametrize("name", ["ff", "cp", "hmm", "btree"])
def test_the_loss_equals_its_definition(name, inputs):
    head = make(name, inputs)
    hidden, tokens = batch()
    found = window_loss(head, hidden, tokens, discount=0.8)
    gains = [[] for _ in range(4)]
    for row in range(2):
        for t in range(7):
            window = tokens[row, t + 1 : t + 5]
            marginals = prefix_marginals(head(hidden[row, t][None]), window[None])[0]
            for k in range(len(window)):
                gains[k].append((marginals[k + 1] - marginals[k]).item())
    wanted = [-sum(gain) / len(gain) for gain in gains]
    weights = [0.8**k for k in range(4)]
    loss = sum(w * c for w, c in zip(weights, wanted, strict=True)) / sum(weights)
    assert found.cross_entropy.tolist() == pytest.approx(wanted, abs=1e-9)
    assert found.loss.item() == pytest.approx(loss, abs=1e-9)
    assert found.counts.tolist() == [len(gain) for gain in gains] == [14, 14, 12, 10]


@pytest.mark.parametrize("name", ["ff", "cp", "hmm", "btree"])
def test_chunks_change_neither_loss_nor_gradients(name):
    results = []
    for chunk_numbers in (1, 10**9):
        head = make(name)
        hidden, tokens = batch()
        hidden.requires_grad_()
        found = window_loss(head, hidden, tokens, chunk_numbers=chunk_numbers)
        found.loss.backward()
        gradients = [p.grad for p in head.parameters() if p.grad is not None]
        results.append([found.loss.detach(), hidden.grad, *gradients])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("inputs", ["low-rank", "full"])
def test_gradients_reach_every_parameter(inputs):
    head = make("hmm", inputs)
    hidden, tokens = batch()
    window_loss(head, hidden.requires_grad_(), tokens).loss.backward()
    for label, parameter in head.named_parameters():
        assert (parameter.grad != 0).any(), label
    assert (hidden.grad[:, :-1] != 0).any(-1).all()


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor made while it is entered holds."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // 4)
        return made


@pytest.mark.parametrize("name", ["ff", "cp", "hmm", "btree"])
def test_logits_of_all_windows_are_never_held_at_once(name):
    config = replace(
        BASE, circuit=name, rank=1 if name == "ff" else 3, vocabulary=100, draft_vocabulary=100
    )
    head = CircuitHead(config, torch.randn(100, 8), whole(100))
    hidden = torch.randn(2, 200, 8, requires_grad=True)
    tokens = torch.randint(100, (2, 204))
    chunk_numbers, all_logits = 8_000, 400 * 4 * config.rank * 100
    with Largest() as largest:
        window_loss(head, hidden, tokens, chunk_numbers=chunk_numbers).loss.backward()
    assert largest.numbers <= chunk_numbers < all_logits / 15


def test_positions_that_no_window_reaches_are_left_out():
    head = make()
    hidden, tokens = batch()
    documents = torch.arange(9).div(2, rounding_mode="floor").expand(2, -1)  # pairs of tokens
    found = window_loss(head, hidden, tokens, documents)
    assert found.counts.tolist() == [8, 0, 0, 0]
    assert found.loss.item() == pytest.approx(found.cross_entropy[0].item())
    assert all(math.isnan(ce) for ce in found.cross_entropy[1:].tolist())
    with pytest.raises(InputError, match="too short"):
        window_loss(head, hidden, tokens, torch.arange(9).expand(2, -1))
    with pytest.raises(InputError, match="too few"):
        window_loss(head, hidden, tokens[:, :6])


def test_a_few_steps_learn_what_independent_positions_cannot():
    """Two windows, all-zero and all-one: one bit in all when joint, one a position for FF."""
    tokens = torch.tensor([[0] * 5, [1] * 5])
    hidden = torch.ones(2, 1, 8)
    reached = {}
    for name in ("ff", "cp", "hmm", "btree"):
        config = replace(BASE, circuit=name, rank=1 if name == "ff" else 3)
        generator = torch.Generator().manual_seed(0)
        head = CircuitHead(config, torch.randn(6, 8, generator=generator), whole(6), generator)
        optimizer = torch.optim.AdamW(head.parameters(), lr=0.1)
        for _ in range(40):
            optimizer.zero_grad()
            found = window_loss(head, hidden, tokens)
            found.loss.backward()
            optimizer.step()
        reached[name] = found.cross_entropy.sum().item() / math.log(2)
    assert reached.pop("ff") == pytest.approx(4.0, abs=0.1)
    assert all(bits == pytest.approx(1.0, abs=0.2) for bits in reached.values()), reached
