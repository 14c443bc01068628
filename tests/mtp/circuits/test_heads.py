"""Heads: how they start, what they learn, and that every fast path agrees with the plain one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from mtp.circuits.conditioning import token_marginals
from mtp.circuits.drafting import from_circuit
from mtp.circuits.folded import FoldedHead
from mtp.circuits.heads import HMM_STAY, CircuitHead, HeadConfig
from mtp.circuits.inference import log_prob
from mtp.circuits.prefix import prefix_marginals
from mtp.errors import InputError
from mtp.models.draft_vocabulary import DraftVocabulary, whole

BASE = HeadConfig("cp", 4, 3, 12, 6, 6, "base", code=5, basis=4, own=3, gate=4)
CIRCUITS = [("ff", 1), ("cp", 3), ("hmm", 3), ("btree", 3)]
HEADS = [(name, rank, inputs) for name, rank in CIRCUITS for inputs in ("low-rank", "full")]


def make(trained=False, **changes):
    """A small float64 head; `trained` moves every parameter away from where it starts."""
    config = replace(BASE, **changes)
    generator = torch.Generator().manual_seed(0)
    unembedding = torch.randn(config.vocabulary, config.hidden, generator=generator)
    head = CircuitHead(config, unembedding, whole(config.vocabulary), generator).double()
    if trained:
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data += 0.3 * noise
    return head


def states(count=3):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, BASE.hidden, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("name", "rank", "inputs"), HEADS)
def test_at_the_start_every_circuit_is_the_models_own_head_at_each_position(
    small, name, rank, inputs
):
    head = make(circuit=name, rank=rank, inputs=inputs)
    hidden = states()
    circuit = head(hidden)
    unembedding = make().inputs.unembedding
    own = torch.log_softmax(hidden @ unembedding.T, dim=-1)  # (3, 6)
    torch.testing.assert_close(token_marginals(circuit), own[:, None].expand(-1, 4, -1))
    windows = small.windows(4, 6)[::97]
    independent = own[:, windows].sum(-1)  # (3, windows)
    for row in range(3):
        torch.testing.assert_close(log_prob(circuit.at(row), windows), independent[row])


def test_components_part_with_the_first_step():
    head = make()
    assert (head(states()).inputs.diff(dim=2) == 0).all()
    loss = -log_prob(head(states()), torch.tensor([[0, 1, 2, 3]] * 3)).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    assert head(states()).inputs.diff(dim=2).abs().amax(dim=(0, 1, 3)).min() > 1e-4


def test_hmm_starts_near_identity_and_depends_on_the_context():
    transitions = make(circuit="hmm", gate=32)(states()).transitions.exp()
    diagonal = transitions.diagonal(dim1=2, dim2=3)
    assert (diagonal - HMM_STAY).abs().max() < 0.1
    assert (transitions[0] - transitions[1]).abs().max() > 1e-4


@pytest.mark.parametrize(("name", "rank", "inputs"), HEADS)
def test_gradients_reach_every_parameter_and_the_hidden_state(name, rank, inputs):
    head = make(trained=True, circuit=name, rank=rank, inputs=inputs)
    hidden = states().requires_grad_()
    windows = torch.randint(6, (3, 4), generator=torch.Generator().manual_seed(0))
    log_prob(head(hidden), windows).sum().backward()
    assert (hidden.grad != 0).all()
    for label, parameter in head.named_parameters():
        if not parameter.numel():  # FF has no sum to weigh
            assert name == "ff" and label.startswith("sums")
            continue
        assert (parameter.grad != 0).any(), label
    untouched = [label for label, _ in head.named_parameters() if "unembedding" in label]
    assert untouched == []


@pytest.mark.parametrize(("name", "rank", "inputs"), HEADS)
def test_prefix_marginals_without_tables_equal_those_of_the_whole_circuit(name, rank, inputs):
    head = make(trained=True, circuit=name, rank=rank, inputs=inputs)
    windows = torch.tensor([[0, 5, 1, 2], [3, 3, -1, -1], [4, -1, 2, 0]])
    emitted = head.emissions(states(), head.inputs.tables(), windows)
    torch.testing.assert_close(
        head.prefix_marginals(states(), emitted), prefix_marginals(head(states()), windows)
    )


@pytest.mark.parametrize(("name", "rank", "inputs"), HEADS)
def test_a_folded_head_gives_the_same_circuit(name, rank, inputs):
    head = make(trained=True, circuit=name, rank=rank, inputs=inputs).float()
    hidden = states()[0].float()
    found, wanted = FoldedHead(head).circuit(hidden), from_circuit(head(hidden[None]))
    for field in ("inputs", "root", "transitions"):
        np.testing.assert_allclose(getattr(found, field), getattr(wanted, field), atol=1e-6)


@pytest.mark.parametrize(("name", "rank", "inputs"), HEADS)
def test_sampling_latents_first_passes_a_chi_square(small, name, rank, inputs):
    head = make(trained=True, circuit=name, rank=rank, inputs=inputs, window=2, vocabulary=3,
                draft_vocabulary=3)  # fmt: skip
    hidden = states(1)
    drawn = head.sample(hidden.expand(5_000, -1), torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn.tokens[:, 0] * 3 + drawn.tokens[:, 1], minlength=9)
    wanted = log_prob(head(hidden), small.windows(2, 3)).exp() * len(drawn.tokens)
    assert drawn.states.shape == (5_000, len(head.structure.latents))
    assert stats.chisquare(counts.numpy(), wanted.detach().numpy()).pvalue > 1e-3


def test_a_draft_vocabulary_takes_its_rows_of_the_unembedding():
    unembedding = torch.randn(6, 12, generator=torch.Generator().manual_seed(0))
    vocabulary = DraftVocabulary(np.array([1, 4]), 6)
    head = CircuitHead(replace(BASE, draft_vocabulary=2), unembedding, vocabulary)
    hidden = states().float()
    wanted = torch.log_softmax(hidden @ unembedding[[1, 4]].T, dim=-1)
    torch.testing.assert_close(head(hidden).inputs[:, 0, 0], wanted)


def test_sizes_that_dont_match_are_refused_with_a_reason():
    with pytest.raises(InputError, match="6 × 12, not 6 × 11"):
        CircuitHead(BASE, torch.zeros(6, 11), whole(6))
    with pytest.raises(InputError, match="drafts 6 of 6 tokens"):
        CircuitHead(BASE, torch.zeros(6, 12), DraftVocabulary(np.array([1, 4]), 6))
