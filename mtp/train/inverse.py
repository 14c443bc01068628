"""`train inverse`: C-PTP from scratch without a teacher, beside an equal autoregressive model."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import LlamaForCausalLM

from mtp.decode import software
from mtp.errors import InputError
from mtp.ptp.embedding import EMBEDDINGS, NoiseEmbedding
from mtp.ptp.intervals import training_shares
from mtp.sampling import Sampling
from mtp.train import byte_card
from mtp.train.byte_data import Documents, read_documents, windows
from mtp.train.byte_lm import loss_bits
from mtp.train.byte_recipe import Shape, build_model
from mtp.train.inverse_rows import losses, own_noise, split
from mtp.train.loop import PRODUCTS, Loop, in_products, restore, round_as_stored
from mtp.train.muon import optimizers_for
from mtp.train.run_folder import (
    RunFolder,
    as_options,
    load_checkpoint,
    read_curve,
    read_settings,
    recipe_of,
    thinned,
)
from mtp.train.schedule import Schedule, parse_lengths, share_of_stage

HELD_OUT_SEED = 2**31
HELD_OUT_BATCHES = 6
HELD_OUT_WINDOWS = 8  # a text
CURVE_LINES = 12
LOSSES = ("text", "windows", "twin", "picked")


@dataclass(frozen=True, kw_only=True)
class Recipe(Schedule):
    """How both models are trained: the same text in the same order, the same number of steps.

    In each of `batch` texts of `context` bytes, windows are split off, with about `rows` noise rows
    between them. Windows grow through `lengths`, tokens each: the i-th length's share of the budget
    is proportional to i, as short windows teach to read the noise. A window of 1 has no noise rows:
    both models learn the text alone, without which there is no distribution to pick from. With a
    weight `told`, noise rows are also asked, half way up, which token their noise picks. Matrix
    products of what is learnt are taken in float32 or bfloat16; the noise is always found in
    float32.
    """

    batch: int = 16
    context: int = 256
    rows: int = 96
    lengths: tuple[int, ...] = (1, 2, 4, 8)
    learning_rate: float = 5e-3
    temperature: float = 0.7
    embedding: str = "binary"
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    mlp: int = 384
    told: float = 0.0
    products: str = "float32"

    MAY_BE_ZERO = ("seed", "told")

    def __post_init__(self) -> None:
        """Raises InputError as `Schedule` does, and for lengths that make no windows."""
        super().__post_init__()
        if self.products not in PRODUCTS:
            raise InputError(f"Products are taken in {' or '.join(PRODUCTS)}.")
        rising = list(self.lengths) == sorted(set(self.lengths))
        most = max(self.lengths, default=0)
        if not rising or min(self.lengths, default=0) < 1 or not 2 <= most < self.context:
            raise InputError(
                "The window lengths rise, to 2 at least and less than the context, such as 1,2,4,8."
            )

    @property
    def longest(self) -> int:
        """The length of the last windows, at which the pair is measured."""
        return self.lengths[-1]

    def length(self, used: float) -> int:
        """The windows' length when this share of the budget is used."""
        for stage, length in enumerate(self.lengths):
            used -= share_of_stage(stage, len(self.lengths))
            if used < 0:
                return length
        return self.longest

    def windows(self, length: int) -> int:
        """Windows of this length in a text, 2 or more tokens each."""
        return max(1, self.rows // (length - 1))

    @property
    def shape(self) -> Shape:
        """Of both models: about a million parameters as it is."""
        return Shape(self.hidden, self.layers, self.heads, self.mlp, self.context)


@dataclass(frozen=True)
class Pair:
    """The model that reads noise, its embedding, and its autoregressive twin."""

    model: LlamaForCausalLM
    noise: NoiseEmbedding
    twin: LlamaForCausalLM

    def optimizers(self, recipe: Recipe) -> list[Optimizer]:
        """Muon for the layers' matrices of each, AdamW for the rest."""
        rate = recipe.learning_rate
        return [
            *optimizers_for(self.model, rate, 0.05, self.noise.parameters()),
            *optimizers_for(self.twin, rate, 0.05),
        ]

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All three, by name."""
        return {"model": self.model, "noise": self.noise, "twin": self.twin}


def build(recipe: Recipe) -> Pair:
    """Both models with the same first weights, functions of the seed."""
    model, twin = (build_model(recipe.shape, recipe.seed) for _ in range(2))
    generator = torch.Generator().manual_seed(recipe.seed)
    spread = float(model.get_input_embeddings().weight.detach().std())  # type: ignore[operator]
    noise = NoiseEmbedding(recipe.embedding, recipe.hidden, spread, generator=generator)  # type: ignore[arg-type]
    return Pair(model, noise, twin)


def train(
    folder: Path,
    training: Documents,
    held_out: Documents,
    recipe: Recipe,
    *,
    save_every: float = 120.0,
    report: Callable[[str], None] = lambda line: None,
) -> Pair:
    """Trains in `folder` until the budget is used; goes on from the checkpoint that is there."""
    pair = build(recipe)
    loop = Loop(
        RunFolder(folder, dataclasses.asdict(recipe), free=("minutes", "steps")),
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
        text, later, twin, picked = _losses(pair, recipe, length, inputs, labels, rng)
        loop.update(text + later + recipe.told * picked + twin, mine, theirs)
        seen.append([loss.item() / math.log(2) for loss in (text, later, twin, picked)])
        if length == 1:
            seen[-1][1] = seen[-1][3] = math.nan  # no windows yet
        if loop.due:
            columns = zip(
                ("text", "windows", "twin", "picked"), zip(*seen, strict=True), strict=True
            )
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """In nats: the model's text and its windows of this length, the twin's text, and which token
    the model's noise picks."""
    own = None
    if length > 1:
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        found = split(inputs, labels, recipe.windows(length), length, generator)
        shares = partial(training_shares, generator=generator)
        own = own_noise(pair.model, pair.noise, found, Sampling(recipe.temperature), shares)
    with in_products(recipe.products, inputs.device):
        twin = math.log(2) * loss_bits(pair.twin, inputs, labels)
        if own is None:
            text = math.log(2) * loss_bits(pair.model, inputs, labels)
            return text, torch.zeros(()), twin, torch.zeros(())
        mine = losses(pair.model, pair.noise, found, labels, own, (recipe.layers + 1) // 2)
        return mine.text, mine.windows, twin, mine.picked


@torch.no_grad()
def perplexities(pair: Pair, held_out: Documents, recipe: Recipe) -> dict[str, Any]:
    """Held-out perplexity by offset 1 … L of the noise-reading model, and of its twin at the same
    tokens; `gap` is the ratio of their means over offsets 2 … L, less 1. What follows a document's
    end does not count.
    """
    own, twin, counted = [], [], []
    sampling = Sampling(recipe.temperature)
    for number in range(HELD_OUT_BATCHES):
        rng = np.random.default_rng([HELD_OUT_SEED, number])
        generator = torch.Generator().manual_seed(number)
        given = windows(held_out, rng, recipe.batch, recipe.context)
        inputs, labels = map(torch.from_numpy, given)
        found = split(inputs, labels, HELD_OUT_WINDOWS, recipe.longest, generator)
        uniform = partial(torch.rand, generator=generator, dtype=torch.float64)
        noise = own_noise(pair.model, pair.noise, found, sampling, uniform)
        log_p = pair.twin(input_ids=found.ids, use_cache=False).logits.log_softmax(-1)
        place = found.roots[:, :, None] + torch.arange(recipe.longest)
        rows = log_p.gather(1, place.flatten(1)[:, :, None].expand(-1, -1, log_p.shape[2]))
        tokens = found.tokens.flatten(1)[:, :, None]
        own.append(noise.log_p.flatten(0, 1))
        twin.append(rows.gather(2, tokens)[:, :, 0].view(place.shape).flatten(0, 1))
        counted.append(noise.counted.flatten(0, 1))
    these = torch.cat(counted)

    def by_offset(parts: list[torch.Tensor]) -> list[float]:
        log_p = torch.cat(parts).double().masked_fill(~these, 0.0)
        found: list[float] = (log_p.sum(0) / these.sum(0).clamp(min=1)).neg().exp().tolist()
        return found

    mine, theirs = by_offset(own), by_offset(twin)
    later = sum(mine[1:]) / sum(theirs[1:]) - 1
    return {
        "perplexity": [round(value, 4) for value in mine],
        "twin_perplexity": [round(value, 4) for value in theirs],
        "gap": round(later, 4),
    }


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
        export(args.folder, args.export, held_out)
        return 0
    names = {field.name for field in dataclasses.fields(Recipe)} - {"lengths"}
    given = {name: getattr(args, name) for name in names}
    train(
        args.folder,
        training,
        held_out,
        Recipe(**given, lengths=parse_lengths(args.lengths)),
        save_every=args.save_every,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    return 0


def export(run_folder: Path, out: Path, held_out: Documents) -> None:
    """Writes both models for the Auto classes, the noise embedding and a card.

    Raises InputError where the run has no checkpoint yet.
    """
    recipe = recipe_of(run_folder, Recipe)
    state = load_checkpoint(run_folder)
    pair = build(recipe)
    restore(pair.modules, state)
    for module in pair.modules.values():
        round_as_stored(module.parameters(), torch.bfloat16)
    card = {
        "settings": read_settings(run_folder),
        "steps": state["progress"]["step"],
        "minutes": round(state["progress"]["seconds"] / 60, 1),
        "parameters": sum(p.numel() for p in pair.model.parameters()),
        "held_out": perplexities(pair, held_out, recipe),
        "software": software(),
        "curve": read_curve(run_folder),
    }
    for name, model in (("model", pair.model), ("twin", pair.twin)):
        byte_card.write_model(out / name, model, recipe.context)
    noise = {name: one.to(torch.bfloat16) for name, one in pair.noise.state_dict().items()}
    save_file(noise, out / "noise.safetensors")
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (out / "card.md").write_text(_markdown(card, recipe), encoding="utf-8")


def _markdown(card: dict[str, Any], recipe: Recipe) -> str:
    curve = "\n".join(
        f"| {line['step']} | "
        + " | ".join(
            "–" if bits is None else f"{bits:.3f}"
            for bits in (line["training_bits"][name] for name in ("text", "windows", "twin"))
        )
        + " "
        f"| {100 * line['gap']:+.1f}% |"
        for line in thinned(card["curve"], CURVE_LINES)
    )
    held = card["held_out"]
    offsets = "\n".join(
        f"| {offset} | {mine:.3f} | {theirs:.3f} | {100 * (mine / theirs - 1):+.1f}% |"
        for offset, (mine, theirs) in enumerate(
            zip(held["perplexity"], held["twin_perplexity"], strict=True), 1
        )
    )
    options = as_options(card["settings"])
    return f"""# Inverse autoregressive pair

Two byte models of {card["parameters"] / 1e6:.2f}M parameters each, of the same shape, from the same
first weights, trained on the same text for the same steps. `model` learns, without a teacher, to
foresee tokens behind noise that picks the tokens before them (C-PTP); `twin` is plain and
autoregressive. Stored as bfloat16.

## Held out

Perplexity at temperature 1 by offset: the model is given the text and the noise of the tokens
since, drawn inside its own intervals at temperature {recipe.temperature}, each at the position of
the token that it picks; its twin is given the tokens themselves.

| offset | reads noise | twin | difference |
|---|---|---|---|
{offsets}

Mean over offsets 2 to {recipe.longest}: {100 * held["gap"]:+.1f}%.

## Training

{card["steps"]:,} steps of each, {card["minutes"]:.0f} minutes for both. Made with

```
python -m mtp train inverse --data CORPUS --folder RUN {options}
```

Bits a byte in training: the model's text and its windows, the twin's text; and the difference held
out.

| step | text | windows | twin | held out |
|---|---|---|---|---|
{curve}
"""
