"""A circuit looked at: its record says what the queries say, with and without evidence."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from mtp.circuits import shelf, view
from mtp.circuits.circuit import UNKNOWN, Circuit
from mtp.circuits.conditioning import clamp, latent_marginals, token_marginals
from mtp.circuits.folded import FoldedHead
from mtp.circuits.head_files import save_head
from mtp.circuits.inference import log_prob
from mtp.circuits.information import coarsen, mutual_information
from mtp.circuits.view import (
    ROUNDING_BITS,
    beliefs,
    circuit_of,
    draw_one,
    explore,
    given,
    information,
    top_pairs,
)
from mtp.drafters.mtpc import CircuitDrafter
from mtp.errors import InputError
from mtp.models.backbone import Backbone
from mtp.models.cache import PathCache
from mtp.models.lora import save_adapter
from mtp.models.verifier import Verifier
from mtp.models.vocabulary import Vocabulary
from mtp.records.circuit import Beliefs, CircuitView, Question
from tests.circuit_views import numbers_of
from tests.mtp.circuits.test_conditioning import marginal, restrict
from tests.mtp.drafters.test_mtpc import adapter_for, head_for

RECORDED = Path(__file__).parents[3] / "assets" / "circuits"
Tiny = Callable[[str], PreTrainedModel]
CIRCUITS = ("ff", "cp", "hmm", "btree")


def states_of(found: Beliefs) -> np.ndarray:
    return np.array([latent.marginal for latent in found.latents])


@pytest.mark.parametrize("name", CIRCUITS)
def test_beliefs_are_the_joints_marginals(small: Any, name: str) -> None:
    circuit: Circuit = small.circuit(name, 4, 1 if name == "ff" else 3, 4)
    joint, latents = small.joint(circuit), len(circuit.structure.latents)
    found = beliefs(circuit)
    for index, latent in enumerate(found.latents):
        np.testing.assert_allclose(latent.marginal, marginal(joint, index), atol=1e-4)
        assert (latent.start, latent.stop) == dataclasses.astuple(circuit.structure.latents[index])[
            2:
        ]
        np.testing.assert_allclose(
            latent.weights, circuit.weights(index)[0].exp().numpy(), atol=1e-4
        )
    for place, position in enumerate(found.positions):
        wanted = marginal(joint, latents + place)
        assert [share.p for share in position.top] == pytest.approx(
            sorted(wanted, reverse=True), abs=1e-4
        )
        for share in position.top:
            assert share.p == pytest.approx(wanted[share.token], abs=1e-4)
            assert share.before is None


@pytest.mark.parametrize("name", ["cp", "hmm", "btree"])
def test_evidence_gives_the_posterior_and_its_probability(small: Any, name: str) -> None:
    circuit: Circuit = small.circuit(name, 4, 3, 4)
    latents = len(circuit.structure.latents)
    tokens, held = (2, 1), (latents - 1, 2)
    posterior, log_evidence = given(circuit, tokens, held)
    evidence = [UNKNOWN] * (latents - 1) + [2, 2, 1, UNKNOWN, UNKNOWN]
    joint = small.joint(circuit)
    wanted = restrict(joint, evidence)
    found = beliefs(posterior, log_evidence, circuit)
    for index, row in enumerate(states_of(found)):
        np.testing.assert_allclose(row, marginal(wanted, index), atol=1e-4)
    allowed = joint[(slice(None),) * (latents - 1) + (2, 2, 1)]
    assert log_evidence == pytest.approx(math.log(allowed.sum()), abs=1e-9)
    for place in (2, 3):
        for share in found.positions[place].top:
            assert share.p == pytest.approx(
                marginal(wanted, latents + place)[share.token], abs=1e-4
            )
            assert share.before == pytest.approx(
                marginal(joint, latents + place)[share.token], abs=1e-4
            )
    assert [share.token for share in found.positions[0].top] == [2]  # no token of probability 0


def test_a_held_state_moves_the_marginals_as_clamp_does(small: Any) -> None:
    circuit: Circuit = small.circuit("btree", 4, 3, 4)
    held, log_evidence = given(circuit, clamped=(1, 2))
    torch.testing.assert_close(token_marginals(held), token_marginals(clamp(circuit, 1, 2)))
    assert log_evidence == pytest.approx(float(latent_marginals(circuit)[0, 1, 2]))
    assert (token_marginals(held) - token_marginals(circuit)).abs().max() > 1e-2


@pytest.mark.parametrize("clamped", [(9, 0), (-1, 0), (0, 9), (0, UNKNOWN)])
def test_states_that_are_not_there_are_refused(small: Any, clamped: tuple[int, int]) -> None:
    circuit: Circuit = small.circuit("cp", 4, 3, 4)
    with pytest.raises(InputError):
        given(circuit, clamped=clamped)


@pytest.mark.parametrize("name", CIRCUITS)
def test_information_is_in_bits_and_zero_for_ff(small: Any, name: str) -> None:
    circuit: Circuit = small.circuit(name, 4, 1 if name == "ff" else 3, 4)
    table = np.array(information(circuit))
    wanted = mutual_information(circuit)[0].numpy() / math.log(2)
    np.testing.assert_allclose(table, wanted, atol=1e-4)
    off = table[~np.eye(4, dtype=bool)]
    assert (off == 0).all() if name == "ff" else off.max() > 0.01
    coarse = np.array(information(circuit, 2))
    assert (coarse <= table + 1e-6).all()


@pytest.mark.parametrize("kept", [None, 20])
def test_a_trained_ff_head_leaves_no_information_but_rounding(kept: int | None) -> None:
    recorded = CircuitView.from_json((RECORDED / "ff-8.json").read_bytes())
    circuit = circuit_of("ff", recorded.numbers)
    off = ~np.eye(recorded.window, dtype=bool)
    found = mutual_information(coarsen(circuit, kept).circuit if kept else circuit)[0].numpy()
    assert 0 <= found[off].max() / math.log(2) < ROUNDING_BITS
    assert (np.array(information(circuit, kept))[off] == 0).all()


def test_a_little_information_is_not_taken_for_rounding(small: Any) -> None:
    """One latent with two states whose first inputs are equal but for a hair."""
    circuit: Circuit = small.circuit("cp", 2, 2, 2)
    inputs = torch.full_like(circuit.inputs, 0.5)
    inputs[0, :, 0] += 1e-4 * torch.tensor([[1, -1], [1, -1]])
    inputs[0, :, 1] -= 1e-4 * torch.tensor([[1, -1], [1, -1]])
    root = torch.full_like(circuit.root, math.log(0.5))
    table = information(Circuit(circuit.structure, inputs.log(), root, circuit.transitions))
    # Correlation c = 4e-8 of two fair coins: c² / 2 nats.
    assert table[0][1] == pytest.approx(0, abs=1e-12)
    inputs[0, :, 0] += 1e-2 * torch.tensor([[1, -1], [1, -1]])
    inputs[0, :, 1] -= 1e-2 * torch.tensor([[1, -1], [1, -1]])
    table = information(Circuit(circuit.structure, inputs.log(), root, circuit.transitions))
    c = 4 * (1e-2 + 1e-4) ** 2
    assert table[0][1] == pytest.approx(c**2 / 2 / math.log(2), rel=1e-3)
    assert table[0][1] > 100 * ROUNDING_BITS


@pytest.mark.parametrize("name", CIRCUITS)
def test_pairs_are_the_joints_most_probable_ones(small: Any, name: str) -> None:
    circuit: Circuit = small.circuit(name, 4, 1 if name == "ff" else 3, 4)
    latents = len(circuit.structure.latents)
    joint = small.joint(circuit).sum(tuple(range(latents)))
    wanted = joint.sum((0, 2))  # of positions 2 and 4
    found = top_pairs(circuit, 1, 3)
    assert len(found) == view.TOP_PAIRS
    assert [one.p for one in found] == sorted((one.p for one in found), reverse=True)
    assert found[0].p == pytest.approx(wanted.max(), abs=1e-4)
    for one in found:
        assert one.p == pytest.approx(wanted[one.tokens], abs=1e-4)
        apart = wanted.sum(1)[one.tokens[0]] * wanted.sum(0)[one.tokens[1]]
        assert one.apart == pytest.approx(apart, abs=1e-4)
    few = top_pairs(circuit, 1, 3, kept=2)
    assert len(few) == 4
    for one in few:
        assert one.p == pytest.approx(wanted[one.tokens], abs=1e-4)
    for first, second in ((1, 1), (2, 1), (-1, 2), (0, 4)):
        with pytest.raises(InputError):
            top_pairs(circuit, first, second)


def test_samples_follow_seed_and_number(small: Any) -> None:
    circuit: Circuit = small.circuit("hmm", 4, 3, 4)
    drawn = [draw_one(circuit, 0, number) for number in range(1, 9)]
    assert drawn == [draw_one(circuit, 0, number) for number in range(1, 9)]
    assert len({tokens for tokens, _, _ in drawn}) > 1
    tokens, _, log_q = drawn[0]
    assert log_q == pytest.approx(float(log_prob(circuit, torch.tensor([tokens]))))


def test_kept_numbers_make_the_same_circuit(small: Any) -> None:
    circuit: Circuit = small.circuit("btree", 4, 3, 4)
    again = circuit_of("btree", numbers_of(circuit))
    torch.testing.assert_close(again.inputs, circuit.inputs, rtol=0, atol=1e-5)
    torch.testing.assert_close(again.transitions, circuit.transitions, rtol=0, atol=1e-5)
    torch.testing.assert_close(again.inputs.exp().sum(-1), torch.ones(1, 4, 3).double())


@pytest.fixture
def verifier(
    tiny: Tiny, tiny_vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Verifier:
    """A tiny model whose shelf has a head of each circuit over four tokens."""
    backbone = Backbone(tiny("llama"))
    for name in CIRCUITS:
        head = head_for(backbone, name)
        save_head(head, tmp_path / f"tiny-{name}-4", {"model": "tiny"})
    monkeypatch.setattr(shelf, "SHELF", tmp_path)
    ending = Vocabulary(tiny_vocabulary.tokenizer, stop_ids=(7,))
    return Verifier("tiny", "base", backbone, ending)


def question(circuit: str, **more: Any) -> Question:
    return Question(**{"circuit": circuit, "window": None, "prompt": "w1", "mode": "raw"} | more)


@pytest.mark.parametrize("name", CIRCUITS)
def test_a_view_holds_what_model_and_circuit_say(
    verifier: Verifier, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "VERIFIER_SAMPLES", 40)
    found = explore(verifier, question(name, answer="w4"))
    assert found is not None
    assert (found.circuit, found.window, len(found.verifier_log_p)) == (name, 4, 40)
    assert found.context.endswith("w4")
    circuit = circuit_of(name, found.numbers)
    assert found.threshold == pytest.approx(np.quantile(found.verifier_log_p, 0.01), abs=1e-3)
    context = verifier.vocabulary.encode("w1", "raw") + verifier.vocabulary.encode("w4", "raw")
    for kind, samples in (("joint", found.joint), ("independent", found.independent)):
        assert len(samples) == 20
        for sample in samples:
            tokens = list(found.cut(sample.tokens))
            ids = torch.tensor([[*context, *tokens]])  # draft index = id in this vocabulary
            with torch.inference_mode():
                logs = verifier.backbone.model(ids, use_cache=False).logits[0].log_softmax(-1)
            wanted = sum(
                float(logs[len(context) - 1 + place, token]) for place, token in enumerate(tokens)
            )
            assert sample.log_p == pytest.approx(wanted, abs=1e-3)
            padded = torch.tensor([tokens + [UNKNOWN] * (4 - len(tokens))])
            assert sample.log_q == pytest.approx(float(log_prob(circuit, padded)), abs=1e-3)
            unlikely = [mark.kind for mark in sample.marks] == ["unlikely"]
            assert unlikely == (sample.log_p < found.threshold)
            latents = len(circuit.structure.latents)
            assert len(sample.states) == (latents if kind == "joint" else 0)
            assert sample.text == found.shown(sample.tokens)


@pytest.mark.parametrize("name", ["ff", "btree"])
def test_a_head_with_adapted_layers_reads_their_state(
    verifier: Verifier, name: str, tmp_path: Path
) -> None:
    backbone = verifier.backbone
    head, adapter = head_for(backbone, name, lora=1), adapter_for(backbone, 1)
    assert adapter is not None
    save_head(head, tmp_path / f"tiny-{name}-4-k1", {"model": "tiny"})
    save_adapter(adapter, tmp_path / f"tiny-{name}-4-k1", "tiny", torch.float64)
    found = explore(verifier, question(name, lora=1, answer="w4"))
    plain = explore(verifier, question(name, answer="w4"))
    assert found is not None and plain is not None
    assert (found.lora, plain.lora) == (1, 0)
    ids = verifier.vocabulary.encode("w1", "raw") + verifier.vocabulary.encode("w4", "raw")
    states = backbone.prefill(ids, PathCache(), (1,))[1]  # they enter the second of two layers
    drafter = CircuitDrafter(backbone, FoldedHead(head), adapter)
    with torch.inference_mode():
        wanted = head(drafter._final(states).float()[None])
    np.testing.assert_allclose(found.numbers.inputs, wanted.inputs[0], atol=1e-5)
    np.testing.assert_allclose(found.numbers.root, wanted.root[0], atol=1e-5)
    assert np.abs(found.numbers.inputs - plain.numbers.inputs).max() > 0.01


def test_rank_and_window_choose_the_head(verifier: Verifier, tmp_path: Path) -> None:
    save_head(head_for(verifier.backbone, "hmm", window=3), tmp_path / "tiny-hmm-3", {})
    for asked, window in ((None, 4), (3, 3)):
        found = explore(verifier, question("hmm", window=asked, rank=3))
        assert found is not None and (found.window, found.rank) == (window, 3)
    with pytest.raises(InputError, match="no circuit head hmm-r9"):
        explore(verifier, question("hmm", rank=9))
    with pytest.raises(InputError, match="no circuit head hmm-k2"):
        explore(verifier, question("hmm", lora=2))
    ff = explore(verifier, question("ff", rank=9))  # which has one component a position
    assert ff is not None and ff.rank == 1


def test_the_same_question_has_the_same_view(verifier: Verifier) -> None:
    one, other = (explore(verifier, question("hmm", seed=3)) for _ in range(2))
    assert one is not None and other is not None
    assert one.to_json() == other.to_json()
    third = explore(verifier, question("hmm", seed=4))
    assert third is not None and third.joint != one.joint


def test_a_stopped_view_is_none(verifier: Verifier) -> None:
    assert explore(verifier, question("cp"), stop=lambda: True) is None
    told: list[float] = []
    assert explore(verifier, question("cp"), told.append, lambda: len(told) > 1) is None
    assert told == [0.25, 0.5]


def test_questions_that_cannot_be_answered_get_a_sentence(verifier: Verifier) -> None:
    check = view.check_question
    with pytest.raises(InputError, match="can be ff, cp, hmm, btree"):
        check(question("tree"), "tiny")
    with pytest.raises(InputError, match="empty"):
        check(question("cp", prompt="  "), "tiny")
    with pytest.raises(InputError, match="mode"):
        check(question("cp", mode="shout"), "tiny")
    with pytest.raises(InputError, match=r"no circuits for the model smollm2.*tiny: btree-4"):
        check(question("cp"), "smollm2")
    with pytest.raises(InputError, match="no circuit head cp-9"):
        explore(verifier, question("cp", window=9))
    stranger = dataclasses.replace(verifier, weights_sha256="other")
    with pytest.raises(InputError, match="no circuits for the model tiny"):
        explore(stranger, question("cp"))


def test_words_of_the_models_folder_mark_samples(
    verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "words.txt").write_text("w\n")
    here = dataclasses.replace(verifier, name=str(folder))
    found = explore(here, question("cp"))
    assert found is not None and found.known_words == 1
    assert json.loads(found.to_json())["known_words"] == 1
    unmarked = explore(verifier, question("cp"))
    assert unmarked is not None and unmarked.known_words is None
