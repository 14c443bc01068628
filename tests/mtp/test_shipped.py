"""What ships: models, circuits and noise readers fit each other and leave the text as it is."""

import json
from statistics import mean

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mtp.circuits.head_files import load_card, load_head
from mtp.circuits.shelf import choose, heads_for, shelved
from mtp.drafters.options import shipped
from mtp.models import catalog
from mtp.models.verifier import load_verifier
from mtp.ptp.explore import PLAIN
from mtp.ptp.question import explorer_of
from mtp.records.noise import Question
from mtp.records.settings import Settings
from mtp.run import start
from mtp.train.byte_data import pack
from mtp.train.circuit_heads import Trainee, evaluate, windows_of
from mtp.train.inverse_quality import perplexities, unread_perplexity
from mtp.train.inverse_recipe import Pair, Recipe, build
from mtp.train.run_folder import recipe_from
from mtp.train.texts import Text

WEIGHTS = catalog.REPOSITORY / "assets" / "weights"
FOLDER = catalog.entry_folder(catalog.BYTE)
PROMPT = "Write a short story about the sea."


@pytest.fixture(scope="module")
def byte():
    return load_verifier("byte", "float64", "cpu")


def test_sizes_stay_within_the_repositorys_limits():
    sizes = [path.stat().st_size for path in WEIGHTS.rglob("*") if path.is_file()]
    assert sum(sizes) < 60e6 and max(sizes) < 20e6


def test_the_byte_model_loads_through_the_auto_classes():
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    card = json.loads((FOLDER / "card.json").read_text())
    assert sum(parameter.numel() for parameter in model.parameters()) == card["parameters"]
    assert tokenizer("é")["input_ids"] == list("é".encode())
    assert card["held_out"]["answer_bits_per_byte"] < 1.225  # the floor it had to beat


def test_the_heads_belong_to_the_model_and_their_cards_say_how_good_they_are(byte):
    heads = heads_for(byte.weights_sha256)
    for window in (8, 16):
        joint = {
            name: load_card(choose(heads, name, window, 0, "byte").folder)["held_out"]["joint"]
            for name in ("ff", "cp", "hmm", "btree")
        }
        assert joint["ff"] < joint["cp"] < min(joint["hmm"], joint["btree"])


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_a_union_with_a_circuits_chain_keeps_to_its_rows(verification, byte):
    settings = Settings(
        PROMPT, "esp+mtpc-btree", {"budget": 10}, verification=verification, max_new_tokens=24
    )
    decoding, _ = start(byte, settings)
    drafted = [(step.rows, len(step.tree.token_ids)) for step in decoding]
    assert max(rows for rows, _ in drafted) <= 10
    assert max(nodes for _, nodes in drafted) > 1


def run(verifier, drafter, temperature, tokens=40, **options):
    """A whole run with seed 3."""
    settings = Settings(
        PROMPT, drafter, options, temperature=temperature, seed=3, max_new_tokens=tokens
    )
    decoding, _ = start(verifier, settings)
    for _ in decoding:
        pass
    return decoding


@pytest.fixture(scope="module")
def fresh(byte):
    """Texts that the byte model has just written, with their prompts."""
    texts = []
    for seed, prompt in enumerate((PROMPT, "What is a lighthouse for?", "Why is the sky blue?")):
        decoding, _ = start(byte, Settings(prompt, "ar", seed=seed, max_new_tokens=220))
        for _ in decoding:
            pass
        before = len(decoding.request.prompt_ids)
        texts.append(Text(prompt, np.array(decoding.token_ids), before))
    return texts


@pytest.mark.parametrize("temperature", [0, 0.5, 0.7, 1.0, 1.2])
def test_every_shipped_drafter_leaves_the_text_as_it_is(temperature, byte):
    """With those of the nearest temperature, where several ship."""
    plain = run(byte, "ar", temperature)
    trained = [name for name in shipped() if name.startswith(("mtpc", "o-", "c-", "independent"))]
    assert len(trained) >= 4
    for name in trained:
        drafted = run(byte, name, temperature)
        assert drafted.output_ids == plain.output_ids, name
        assert len(drafted.steps) < len(plain.steps), name  # and something stood


@pytest.mark.smollm2
def test_drafters_for_smollm2_leave_the_text_as_it_is(smollm2_folder):
    verifier = load_verifier("smollm2", "float64", "cpu")
    plain = run(verifier, "ar", 0.7, tokens=20)
    names = ("mtpc-ff", "mtpc-btree", "o-ptp", "independent")
    drafted = {name: run(verifier, name, 0.7, tokens=20) for name in names}
    assert {name: one.output_ids == plain.output_ids for name, one in drafted.items()} == (
        dict.fromkeys(drafted, True)
    )
    assert all(len(one.steps) < len(plain.steps) for one in drafted.values())


@pytest.mark.smollm2
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_smollm2_runs_in_the_precisions_chosen_for_processors(smollm2_folder, dtype):
    decoding = run(load_verifier("smollm2", dtype, "cpu"), "pld", 0.7, tokens=4)
    assert len(decoding.output_ids) == 4


def test_the_inverse_pair_reads_its_noise_at_every_offset(fresh):
    """On fresh text: what noise says of the tokens before beats that of another draw."""
    card = json.loads((WEIGHTS / "inverse" / "card.json").read_text())
    recipe = recipe_from(card["settings"], Recipe)
    pair = build(recipe)
    model, twin = (
        AutoModelForCausalLM.from_pretrained(WEIGHTS / "inverse" / name, dtype=torch.float32)
        for name in ("model", "twin")
    )
    pair.noise.load_state_dict(load_file(WEIGHTS / "inverse" / "noise.safetensors"))
    documents = pack([text.ids.tolist() for text in fresh])
    shipped_pair = Pair(model, pair.noise, twin)
    found = perplexities(shipped_pair, documents, recipe)
    own, unread = found["perplexity"], unread_perplexity(shipped_pair, documents, recipe)
    assert own[0] == unread[0]  # the first offset has no noise before it
    assert all(mine < 0.8 * other for mine, other in zip(own[1:], unread[1:], strict=True))
    assert own[0] == pytest.approx(found["twin_perplexity"][0], rel=0.15)


BYTE_HEADS = [head for head in shelved() if head.folder.name.startswith("byte-")]


@pytest.mark.parametrize("head", BYTE_HEADS, ids=lambda head: head.label)
def test_every_head_on_the_shelf_drafts_what_stands(head, byte):
    config = head.config
    plain = run(byte, "ar", 0.7)
    for tree in ("chain", "best"):
        drafted = run(
            byte, f"mtpc-{config.circuit}", 0.7, window=config.window, rank=config.rank,
            lora=config.lora, tree=tree,
        )  # fmt: skip
        assert drafted.output_ids == plain.output_ids
        assert len(drafted.steps) < len(plain.steps)


@torch.no_grad()
def test_heads_price_the_models_own_text_as_their_cards_say(byte, fresh):
    """Windows of fresh samples: their mean log-likelihood is near the one on the card."""
    for head in (one for one in BYTE_HEADS if not one.config.lora):
        loaded = load_head(
            head.folder, byte.backbone.unembedding.float().cpu(), byte.weights_sha256
        )
        windows = windows_of(byte, fresh, loaded.vocabulary, head.config.window, 0)
        found = evaluate(Trainee(loaded, None), byte.backbone, [windows])
        wanted = load_card(head.folder)["held_out"]["joint"]
        assert found["windows"] > 300
        assert found["joint"] == pytest.approx(wanted, rel=0.2), head.label


@pytest.mark.parametrize(("variant", "rarer"), [("o-ptp", 0.5), ("c-ptp", 0.3)])
def test_drafters_that_read_noise_foresee_tokens_that_fit_each_other(variant, rarer, byte):
    """Live, against the verifier: clearly more right in a row than the one that is blind to its
    noise, and several times fewer pairs that the verifier finds impossible.
    """
    tallies = []
    for seed, answer in enumerate(("Once upon a time, there was a ", "The sea was ", "")):
        explorer = explorer_of(byte, Question(PROMPT, answer, "chat", seed, 0.7, 0, 1.0))
        assert set(explorer.drafters) == {"o-ptp", "c-ptp", "independent"}
        found = explorer.tallies(8, 60, seed)
        assert found is not None
        assert found[PLAIN].right == 8 and found[PLAIN].impossible < 0.01
        tallies.append(found)
    right = {name: mean(found[name].right for found in tallies) for name in tallies[0]}
    impossible = {name: mean(found[name].impossible for found in tallies) for name in tallies[0]}
    assert right[variant] > 1.1 * right["independent"]
    assert impossible[variant] < rarer * impossible["independent"]
