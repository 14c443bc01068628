"""`train inverse`: C-PTP from scratch without a teacher, beside an equal autoregressive model."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtp.ptp.embedding import EMBEDDINGS
from mtp.ptp.intervals import training_shares
from mtp.sampling import Sampling
from mtp.train import inverse_card
from mtp.train.byte_data import Documents, read_documents, windows
from mtp.train.byte_lm import loss_bits
from mtp.train.inverse_quality import perplexities
from mtp.train.inverse_recipe import Pair, Recipe, build
from mtp.train.inverse_rows import losses, own_noise, split
from mtp.train.loop import PRODUCTS, Loop, in_products
from mtp.train.run_folder import RunFolder, check_data
from mtp.train.schedule import parse_lengths

LOSSES = ("text", "windows", "twin")


def train(
    folder: Path,
    training: Documents,
    held_out: Documents,
    recipe: Recipe,
    *,
    save_every: float = 120.0,
    data: Sequence[Path] = (),
    report: Callable[[str], None] = lambda line: None,
) -> Pair:
    """Trains in `folder` until the budget is used; goes on from the checkpoint that is there."""
    pair = build(recipe)
    loop = Loop(
        RunFolder(folder, dataclasses.asdict(recipe), free=("minutes", "steps"), data=data),
        recipe,
        pair.modules,
        pair.optimizers(recipe),
        save_every,
    )
    mine = [*pair.model.parameters(), *pair.noise.parameters()]
    theirs = [*pair.twin.parameters()]
    seen = []
    for step in loop:
        rng = np.random.default_rng([recipe.seed, step])
        inputs, labels = map(torch.from_numpy, windows(training, rng, recipe.batch, recipe.context))
        length = recipe.length(loop.used)
        text, later, twin = _losses(pair, recipe, length, inputs, labels, rng)
        loop.update(text + later + twin, mine, theirs)
        seen.append([loss.item() / math.log(2) for loss in (text, later, twin)])
        if length == 1:
            seen[-1][1] = math.nan  # no windows yet
        if loop.due:
            columns = zip(LOSSES, zip(*seen, strict=True), strict=True)
            bits = {name: _mean(column) for name, column in columns}
            line = {"length": length, "training_bits": bits, **perplexities(pair, held_out, recipe)}
            report(_sentence(loop.save(line)))
            seen = []
    return pair


def _mean(bits: Sequence[float]) -> float | None:
    """Of the steps that had any; None where none had."""
    there = [one for one in bits if not math.isnan(one)]
    return round(sum(there) / len(there), 4) if there else None


def _losses(
    pair: Pair,
    recipe: Recipe,
    length: int,
    inputs: Tensor,
    labels: Tensor,
    rng: np.random.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """In nats: the model's text and its windows of this length, and the twin's text."""
    own = None
    if length > 1:
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        found = split(inputs, labels, recipe.windows(length), length, generator)
        shares = partial(training_shares, generator=generator)
        sampling = Sampling(recipe.temperature)
        own = own_noise(pair.model, pair.noise, found, sampling, shares, last=False)
    with in_products(recipe.products, inputs.device):
        twin = math.log(2) * loss_bits(pair.twin, inputs, labels)
        if own is None:
            return math.log(2) * loss_bits(pair.model, inputs, labels), torch.zeros(()), twin
        return *losses(pair.model, pair.noise, found, labels, own), twin


def _sentence(line: dict[str, Any]) -> str:
    return (
        f"step {line['step']}, {line['seconds'] / 60:.1f} min, windows of {line['length']}: "
        "perplexity by offset "
        + " ".join(f"{value:.2f}" for value in line["perplexity"])
        + "; twin "
        + " ".join(f"{value:.2f}" for value in line["twin_perplexity"])
        + f"; offsets 2 on {100 * line['gap']:+.1f}%"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `train inverse`."""
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="files of completions")
    parser.add_argument("--folder", type=Path, required=True, help="of the run; goes on if there")
    parser.add_argument("--minutes", type=float, help="training time in all, breaks not counted")
    parser.add_argument("--steps", type=int, help="steps in all")
    parser.add_argument("--lengths", default="1,2,4,8", help="of windows, one after another")
    parser.add_argument("--products", choices=tuple(PRODUCTS), default=Recipe.products)
    parser.add_argument("--embedding", choices=EMBEDDINGS, default=Recipe.embedding)
    for field in dataclasses.fields(Recipe):
        if isinstance(field.default, (int, float)):
            name = f"--{field.name.replace('_', '-')}"
            parser.add_argument(name, type=type(field.default), default=field.default)
    parser.add_argument("--save-every", type=float, default=120.0, help="seconds")
    parser.add_argument("--export", type=Path, help="only write the run's pair and its card")


def run(args: argparse.Namespace) -> int:
    """Trains, or exports what was trained; returns the exit status 0."""
    training, held_out = read_documents(args.data)
    if args.export is not None:
        sources = check_data(args.folder, args.data)
        inverse_card.export(args.folder, args.export, sources, training, held_out)
        return 0
    names = {field.name for field in dataclasses.fields(Recipe)} - {"lengths"}
    given = {name: getattr(args, name) for name in names}
    recipe = Recipe(**given, lengths=parse_lengths(args.lengths))
    train(
        args.folder,
        training,
        held_out,
        recipe,
        save_every=args.save_every,
        data=args.data,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    return 0
