"""`train ptp`: noise rows on a frozen model by distillation on its own samples (PTP §4)."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtp.errors import InputError
from mtp.models.verifier import Verifier, load_verifier
from mtp.ptp.embedding import EMBEDDINGS
from mtp.ptp.files import CONFIG_FILE, load_ptp
from mtp.ptp.weights import VARIANTS, PtpWeights
from mtp.train import ptp_card
from mtp.train.completions import source_of
from mtp.train.loop import PRODUCTS, Loop, restore
from mtp.train.ptp_quality import Quality, measure
from mtp.train.ptp_read import Survey, read
from mtp.train.ptp_recipe import Recipe, build, check_corpus, optimizers_of, vocabulary_of
from mtp.train.ptp_rows import draw_windows, loss_of, predict_forced
from mtp.train.run_folder import (
    RunFolder,
    begun_from,
    check_data,
    check_weights,
    load_checkpoint,
    read_settings,
    recipe_from,
    rows_before,
    same_data,
)
from mtp.train.schedule import parse_lengths, share_of_stage
from mtp.train.texts import Text, batches, cut_all, read_texts

QUICK_TEXTS = 24
MEMORY = 6.0  # GiB
OF_ROWS = ("variant", "embedding", "anchors")  # what noise rows in the base are; a head has no part
SHAPE = (  # settings in which a drafter and the one it begins as are the same
    *OF_ROWS,
    "rank",
    "head_layers",
    "head_width",
    "drafted_sha256",
)


def train(
    folder: Path,
    verifier: Verifier,
    training: Sequence[Text],
    held_out: Sequence[Text],
    recipe: Recipe,
    *,
    begin: Path | None = None,
    save_every: float = 120.0,
    memory: float = MEMORY,
    data: Sequence[Path] = (),
    report: Callable[[str], None] = lambda line: None,
) -> PtpWeights:
    """Trains in `folder` until the budget is used; goes on from the checkpoint that is there.

    begin: the folder of another run whose drafter it starts as, such as one for another
    temperature, or of another variant where both are heads alone. Raises InputError where that has
    another shape.

    memory: GiB that may hold what the base reads in all texts (states; keys and values for an
    adapter), so that it reads each once; where they need more, or for 0, it reads those of every
    step.
    """
    settings = dataclasses.asdict(recipe) | {
        "model": verifier.name,
        "weights_sha256": verifier.weights_sha256,
        "begin": begun_from(folder, begin),
        "begin_rows": rows_before(folder, begin),
    }
    backbone = verifier.backbone
    vocabulary = vocabulary_of(recipe, verifier, training)
    if vocabulary is not None:
        settings["drafted_sha256"] = vocabulary.sha256
    weights = build(recipe, verifier, vocabulary)
    if begin is not None:
        _begin_as(weights, begin, settings)
    run_folder = RunFolder(folder, settings, free=("minutes", "steps"), data=data)
    texts = cut_all(training, recipe.context)
    caches = weights.adapter is not None
    survey = None
    if memory and Survey.size(backbone, texts, caches) <= memory * 2**30:
        survey = Survey(backbone, texts, recipe.sampling, caches)
    loop = Loop(
        run_folder,
        recipe,
        weights.modules,
        optimizers_of(weights, recipe),
        save_every,
        rows=0,
        stage=0,
        stage_began=0.0,
    )
    counts = loop.progress.counts
    quick = cut_all(held_out, recipe.context)[:QUICK_TEXTS]
    rng = np.random.default_rng([recipe.seed, loop.progress.step])
    source = batches(texts, rng, recipe.texts)
    for _ in loop:
        length = recipe.lengths[int(counts["stage"])]
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        chosen = next(source)
        found = survey.read(chosen) if survey else read(backbone, chosen, recipe.sampling)
        windows, noise = draw_windows(found, recipe.rows, length, generator, recipe.easy)
        foreseen = predict_forced(backbone, weights, found, windows, noise, recipe.products)
        loss = loss_of(weights, found, windows, foreseen, recipe.discount, recipe.below)
        loop.update(loss, rows=int(windows.counted.sum()))
        if loop.due:
            quality = measure(backbone, weights, quick, recipe.sampling, recipe.lengths[-1])
            _lengthen(recipe, counts, quality, loop.used)
            passed = quality.passes(recipe.gate)
            line = {"length": length, "passed": passed, **_told(quality)}
            report(_sentence(loop.save(line), weights.config.offset(quality.gated)))
    return weights


def _begin_as(weights: PtpWeights, begin: Path, settings: Mapping[str, Any]) -> None:
    """Raises InputError where the run to begin from is none, or of another base or shape."""
    check_weights(begin, settings["weights_sha256"])
    there = read_settings(begin)
    for name in SHAPE:
        if name in OF_ROWS and not settings["rank"]:
            continue  # a head alone is the same for all
        if name == "embedding" and settings["variant"] == "independent":
            continue  # which has none
        if (there.get(name) or None) != (settings.get(name) or None):
            raise InputError(
                f"The drafter of the run in {begin} has another shape: {name.replace('_', ' ')} "
                f"{there.get(name)}, this one {settings.get(name)}."
            )
    restore(weights.modules, load_checkpoint(begin))


def _lengthen(recipe: Recipe, counts: dict[str, float], quality: Quality, used: float) -> None:
    """Goes on to the next length of windows where it is time."""
    stage = int(counts["stage"])
    share = share_of_stage(stage, len(recipe.lengths))
    passed = quality.passes(recipe.gate)
    if stage + 1 < len(recipe.lengths) and (passed or used - counts["stage_began"] >= share):
        counts.update(stage=stage + 1, stage_began=used)


def _told(quality: Quality) -> dict[str, Any]:
    return {
        "accuracy": list(quality.accuracy),
        "gated": quality.gated,
        "shuffled": quality.shuffled,
        "ceiling": quality.ceiling,
        "leading": quality.leading,
    }


def _sentence(line: dict[str, Any], offset: int) -> str:
    blind = "" if line["ceiling"] is None else f", blind at most {line['ceiling']:.3f}"
    return (
        f"step {line['step']}, {line['seconds'] / 60:.1f} min, {line['rows'] / 1e6:.2f}M rows, "
        f"windows of {line['length']}: loss {line['loss']:.3f}; held out: offset "
        f"{offset} {line['accuracy'][line['gated']]:.3f} (shuffled "
        f"{line['shuffled']:.3f}{blind}), {line['leading']:.2f} right in a row"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `train ptp`."""
    parser.add_argument("--model", default="byte", help="the frozen base model")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="its own completions")
    parser.add_argument("--folder", type=Path, required=True, help="of the run; goes on if there")
    parser.add_argument("--minutes", type=float, help="training time in all, breaks not counted")
    parser.add_argument("--steps", type=int, help="steps in all")
    parser.add_argument("--begin", type=Path, help="folder of a run whose drafter it starts as")
    parser.add_argument("--variant", choices=VARIANTS, default=Recipe.variant)
    parser.add_argument("--embedding", choices=EMBEDDINGS, default=Recipe.embedding)
    parser.add_argument("--lengths", default="1,2,4,8,16", help="of windows, one after another")
    for name in (
        "anchors",
        "rank",
        "head_layers",
        "head_width",
        "head_context",
        "draft_vocabulary",
        "texts",
        "context",
        "rows",
        "top_k",
        "seed",
    ):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Recipe, name))
    for name in ("below", "easy", "gate", "discount", "learning_rate", "temperature", "top_p"):
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=float, default=getattr(Recipe, name)
        )
    parser.add_argument("--products", choices=tuple(PRODUCTS), default=Recipe.products)
    parser.add_argument("--dtype", help="of the base model; chosen for the processor")
    parser.add_argument("--save-every", type=float, default=120.0, help="seconds")
    parser.add_argument(
        "--memory",
        type=float,
        default=MEMORY,
        help="GiB for what the base reads in the texts; 0: it reads them in every step",
    )
    parser.add_argument(
        "--export",
        type=Path,
        help="only write the drafter of --folder and its card here; where that is a stored one it "
        "is measured again: on what training left of --data if it was trained on that, else on all "
        "of it",
    )
    parser.add_argument(
        "--prompts", type=int, default=40, help="held-out prompts decoded for the card"
    )


def run(args: argparse.Namespace) -> int:
    """Trains, or exports what was trained; returns the exit status 0."""
    if args.export is not None:
        return _export(args)
    recipe = _asked(args)
    verifier = load_verifier(args.model, args.dtype)
    check_corpus(args.data, verifier, recipe.sampling)
    training, held_out = read_texts(args.data, verifier.vocabulary)
    train(
        args.folder,
        verifier,
        training,
        held_out,
        recipe,
        begin=args.begin,
        save_every=args.save_every,
        data=args.data,
        memory=args.memory,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    return 0


def _export(args: argparse.Namespace) -> int:
    """Writes the drafter of a run, or one that is stored, measured again, with its card."""
    stored = ptp_card.of_stored(args.folder) if (args.folder / CONFIG_FILE).exists() else None
    settings = read_settings(args.folder) if stored is None else stored.settings
    recipe = recipe_from(settings, Recipe)
    verifier = load_verifier(args.model, args.dtype)
    check_corpus(args.data, verifier, recipe.sampling)
    training, held_out = read_texts(args.data, verifier.vocabulary)
    if stored is not None:
        weights, made = load_ptp(args.folder, verifier), stored
        if not same_data(made.data, [source_of(file) for file in args.data]):
            held_out = [*training, *held_out]
    else:
        vocabulary = vocabulary_of(recipe, verifier, training)
        drafted = None if vocabulary is None else vocabulary.sha256
        if settings.get("drafted_sha256") != drafted:
            raise InputError(
                f"The most frequent tokens of these completions are not those that the run in "
                f"{args.folder} drafts of; give the files it was trained on."
            )
        weights = build(recipe, verifier, vocabulary)
        made = ptp_card.of_run(args.folder, verifier, weights, check_data(args.folder, args.data))
    held_out = cut_all(held_out, recipe.context)
    ptp_card.export(weights, made, args.export, verifier, held_out, args.prompts)
    return 0


def _asked(args: argparse.Namespace) -> Recipe:
    """The recipe that the command line says. Raises InputError where it makes no sense."""
    names = {field.name for field in dataclasses.fields(Recipe)} - {"lengths"}
    lengths = parse_lengths(args.lengths)
    return Recipe(**{name: getattr(args, name) for name in names}, lengths=lengths)
