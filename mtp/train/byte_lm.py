"""`train byte-lm`: a small Llama-shaped causal LM over bytes, trained on sampled completions."""

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import LlamaForCausalLM

from mtp.train import byte_card
from mtp.train.byte_data import IGNORED, Documents, read_documents, windows
from mtp.train.byte_eval import held_out_bits
from mtp.train.byte_recipe import Recipe, Shape, build_model, build_optimizers
from mtp.train.run_folder import RunFolder, check_data, load_checkpoint, read_curve, read_settings

CLIP = 1.0
QUICK_BYTES = 20_000  # held-out text for the curve; the card takes all of it


@dataclass
class Progress:
    """Where a run stands: steps done, seconds of training, bytes seen."""

    step: int = 0
    seconds: float = 0.0
    bytes_seen: int = 0


def loss_bits(model: LlamaForCausalLM, inputs: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in bits of labels (B, T) that are not IGNORED, given inputs (B, T)."""
    logits = model(input_ids=inputs, use_cache=False).logits  # (B, T, V)
    nats = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)
    return nats / math.log(2)


def train(
    folder: Path,
    training: Documents,
    held_out: Documents,
    shape: Shape,
    recipe: Recipe,
    *,
    save_every: float = 180.0,
    data: Sequence[Path] = (),
    report: Callable[[str], None] = lambda line: None,
) -> LlamaForCausalLM:
    """Trains in `folder` until the budget is used and returns the model; goes on from the
    checkpoint that is there. `save_every` is in seconds; each save adds a line to the curve.

    Step s sees windows that depend on (seed, s) alone, so a run with a break equals one without.
    Raises InputError where the folder's run has another shape or recipe (the budget may change).
    """
    settings = dataclasses.asdict(shape) | dataclasses.asdict(recipe)
    run_folder = RunFolder(folder, settings, free=("minutes", "steps"), data=data)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_model(shape, recipe.seed)
    cast(nn.Module, model).to(device)
    optimizers = build_optimizers(model, recipe)
    progress = _resume(run_folder, model, optimizers)
    quick = _first_bytes(held_out, QUICK_BYTES)
    before, started = progress.seconds, time.monotonic()
    saved, losses = started, []
    while recipe.used(progress.step, progress.seconds) < 1:
        rate = recipe.rate(progress.step, progress.seconds)
        batch, length = recipe.window(shape.context, progress.step, progress.seconds)
        rng = np.random.default_rng([recipe.seed, progress.step])
        losses.append(_step(model, optimizers, windows(training, rng, batch, length), rate))
        progress.step += 1
        progress.bytes_seen += batch * length
        progress.seconds = before + time.monotonic() - started
        last = recipe.used(progress.step, progress.seconds) >= 1
        if last or time.monotonic() - saved > save_every:
            bits = held_out_bits(model, quick, shape.context)
            progress.seconds = before + time.monotonic() - started
            line = {
                **dataclasses.asdict(progress),
                "learning_rate": rate,
                "training_bits": sum(losses) / len(losses),
                "held_out_bits": bits.answers,
                "held_out_entropy": bits.entropy,
            }
            run_folder.save(_state(model, optimizers, progress), line)
            report(_sentence(line))
            saved, losses = time.monotonic(), []
    return model


def _step(
    model: LlamaForCausalLM,
    optimizers: list[Optimizer],
    window: tuple[NDArray[np.int64], NDArray[np.int64]],
    rate: float,
) -> float:
    """One update on inputs and labels (B, T) at a learning rate; returns its loss in bits."""
    inputs, labels = window
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
    model.train()
    bits = loss_bits(
        model,
        torch.from_numpy(inputs).to(model.device),
        torch.from_numpy(labels).to(model.device),
    )
    bits.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    for optimizer in optimizers:
        optimizer.step()
    return bits.item()


def _first_bytes(documents: Documents, limit: int) -> Documents:
    """The first documents of about `limit` bytes in all."""
    count = max(1, int(np.searchsorted(documents.starts, limit, side="right")) - 1)
    starts = documents.starts[: count + 1]
    return Documents(documents.tokens[: starts[-1]], starts)


def _sentence(line: dict[str, Any]) -> str:
    return (
        f"step {line['step']}, {line['seconds'] / 60:.1f} min, "
        f"{line['bytes_seen'] / 1e6:.2f}M bytes, rate {line['learning_rate']:.2e}: "
        f"{line['training_bits']:.4f} bits training, {line['held_out_bits']:.4f} held out"
    )


def _state(model: nn.Module, optimizers: list[Optimizer], progress: Progress) -> dict[str, Any]:
    return {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": dataclasses.asdict(progress),
    }


def _resume(folder: RunFolder, model: nn.Module, optimizers: list[Optimizer]) -> Progress:
    state = folder.load()
    if state is None:
        return Progress()
    model.load_state_dict(state["model"])
    for optimizer, old in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(old)
    return Progress(**state["progress"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `train byte-lm`."""
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="files of completions")
    parser.add_argument("--folder", type=Path, required=True, help="of the run; goes on if there")
    parser.add_argument("--minutes", type=float, help="training time in all, breaks not counted")
    parser.add_argument("--steps", type=int, help="steps in all")
    parser.add_argument("--batch", type=int, default=Recipe.batch, help="windows a step")
    parser.add_argument("--context", type=int, default=Shape.context, help="bytes a window")
    parser.add_argument("--hidden", type=int, default=Shape.hidden)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--heads", type=int, default=Shape.heads)
    parser.add_argument("--mlp", type=int, default=Shape.mlp)
    parser.add_argument("--learning-rate", type=float, default=Recipe.learning_rate)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--save-every", type=float, default=180.0, help="seconds")
    parser.add_argument(
        "--export", type=Path, help="only write the run's model and its card to this folder"
    )


def run(args: argparse.Namespace) -> int:
    """Trains, or exports what was trained; returns the exit status 0."""
    shape = Shape(args.hidden, args.layers, args.heads, args.mlp, args.context)
    training, held_out = read_documents(args.data)
    if args.export is not None:
        export(args.folder, args.export, args.data, training, held_out)
        return 0
    recipe = Recipe(
        batch=args.batch,
        learning_rate=args.learning_rate,
        seed=args.seed,
        minutes=args.minutes,
        steps=args.steps,
    )
    train(
        args.folder,
        training,
        held_out,
        shape,
        recipe,
        save_every=args.save_every,
        data=args.data,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    return 0


def export(
    run_folder: Path, out: Path, data: list[Path], training: Documents, held_out: Documents
) -> None:
    """Writes the model of a run's checkpoint, its tokenizer and its card to `out`.

    Raises InputError where the run has no checkpoint yet, or was trained on other completions than
    `data`.
    """
    state = load_checkpoint(run_folder)
    settings = read_settings(run_folder)
    names = {field.name for field in dataclasses.fields(Shape)}
    shape = Shape(**{name: settings[name] for name in names})
    model = build_model(shape, settings["seed"])
    model.load_state_dict(state["model"])
    byte_card.write_model(out, model.eval(), shape.context)
    byte_card.write_card(
        out,
        data=check_data(run_folder, data),
        training=training,
        held_out=held_out,
        settings=settings,
        progress=state["progress"],
        curve=read_curve(run_folder),
    )
