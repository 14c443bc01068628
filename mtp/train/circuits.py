"""`train circuits`: heads for multi-token prediction circuits on a frozen model (MTPC §4)."""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from mtp.circuits.loss import loss_of_windows
from mtp.errors import InputError
from mtp.models.backbone import Backbone
from mtp.models.verifier import Verifier, load_verifier
from mtp.train import circuit_card
from mtp.train.circuit_heads import (
    Recipe,
    Spec,
    Trainee,
    Windows,
    build,
    drafted_in,
    evaluate,
    parse_spec,
    windows_of,
)
from mtp.train.run_folder import (
    RunFolder,
    begun_from,
    check_weights,
    load_checkpoint,
    read_settings,
)
from mtp.train.texts import Text, batches, draft_vocabulary, read_texts

CLIP = 1.0
QUICK_TEXTS = 24  # held-out texts for the curve; the card takes all


def train(
    folder: Path,
    verifier: Verifier,
    training: Sequence[Text],
    held_out: Sequence[Text],
    specs: Sequence[Spec],
    recipe: Recipe,
    *,
    begin: Path | None = None,
    save_every: float = 120.0,
    data: Sequence[Path] = (),
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Trainee]:
    """Trains all heads at once, each on the same windows; returns them by name. `begin` is the
    folder of another run, whose heads these start as, with its draft vocabulary.

    Goes on from the checkpoint in `folder`, with another order of the texts. Raises InputError
    where the folder's run was begun otherwise (the budget may change), or the run to begin from has
    no such heads.
    """
    begun = _begun(begin, specs, recipe, verifier) if begin is not None else None
    settings = dataclasses.asdict(recipe) | {
        "model": verifier.name,
        "weights_sha256": verifier.weights_sha256,
        "heads": [dataclasses.asdict(spec) for spec in specs],
        "begin": begun_from(folder, begin),
    }
    run_folder = RunFolder(folder, settings, free=("minutes", "steps"), data=data)
    earlier = run_folder.load() or begun
    if earlier is None:
        size = verifier.backbone.vocabulary_size
        vocabulary = draft_vocabulary(training, size, recipe.draft_vocabulary)
    else:
        vocabulary = drafted_in(earlier, verifier)
    trainees = {spec.name: build(spec, recipe, verifier, vocabulary) for spec in specs}
    optimizers = {
        name: AdamW(
            trainee.parameters(),
            recipe.learning_rate,
            (0.9, 0.95),
            weight_decay=recipe.weight_decay,
        )
        for name, trainee in trainees.items()
    }
    if begun is not None:
        for name, trainee in trainees.items():
            trainee.begin_as(begun["trainees"][name])
    step, seconds, seen = _resume(run_folder, trainees, optimizers)
    longest = max(spec.window for spec in specs)

    def look(texts: Sequence[Text]) -> Windows:
        return windows_of(verifier, texts, vocabulary, longest, recipe.lora)

    quick = look([text.cut(recipe.context) for text in held_out[:QUICK_TEXTS]])
    rng = np.random.default_rng([recipe.seed, step])
    texts = [text.cut(recipe.context) for text in training]
    source = batches(texts, rng, recipe.texts)
    before, started = seconds, time.monotonic()
    saved, losses = started, []
    while recipe.used(step, seconds) < 1:
        rate = recipe.rate(step, seconds)
        windows = look(next(source))
        chosen = torch.from_numpy(rng.permutation(len(windows.targets))[: recipe.windows])
        losses.append(
            {
                name: _step(trainee, optimizers[name], verifier.backbone, windows, chosen, rate)
                for name, trainee in trainees.items()
            }
        )
        step, seen = step + 1, seen + len(chosen)
        seconds = before + time.monotonic() - started
        last = recipe.used(step, seconds) >= 1
        if last or time.monotonic() - saved > save_every:
            line: dict[str, Any] = {
                "step": step,
                "seconds": seconds,
                "windows": seen,
                "learning_rate": rate,
                "loss": {name: float(np.mean([one[name] for one in losses])) for name in trainees},
                "held_out": {
                    name: evaluate(trainee, verifier.backbone, [quick])["joint"]
                    for name, trainee in trainees.items()
                },
            }
            state = {
                "trainees": {name: trainee.state() for name, trainee in trainees.items()},
                "optimizers": {name: one.state_dict() for name, one in optimizers.items()},
                "progress": [step, seconds, seen],
                "draft_vocabulary": torch.from_numpy(vocabulary.ids),
            }
            run_folder.save(state, line)
            report(_sentence(line))
            saved, losses = time.monotonic(), []
    return trainees


def _begun(
    begin: Path, specs: Sequence[Spec], recipe: Recipe, verifier: Verifier
) -> dict[str, Any]:
    """The checkpoint of the run to begin from. Raises InputError where its heads don't fit."""
    state, settings = load_checkpoint(begin), read_settings(begin)
    check_weights(begin, verifier.weights_sha256)
    for name in ("code", "basis", "inputs"):
        there = settings.get(name, getattr(Recipe, name))
        if there != getattr(recipe, name):
            raise InputError(
                f"The run in {begin} has {name} {there}, this one {vars(recipe)[name]}."
            )
    if settings["lora"] not in (0, recipe.lora):
        raise InputError(
            f"The run in {begin} adapts {settings['lora']} layers, this one {recipe.lora}; begin "
            "from heads without an adapter, or with the same layers."
        )
    missing = [spec.name for spec in specs if spec.name not in state["trainees"]]
    if missing:
        raise InputError(f"The run in {begin} has no {', '.join(missing)} to begin from.")
    return state


def _step(
    trainee: Trainee,
    optimizer: AdamW,
    backbone: Backbone,
    windows: Windows,
    chosen: Tensor,
    rate: float,
) -> float:
    """One update on the chosen windows; returns its loss in nats."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    states = windows.states(trainee, backbone)[chosen]
    targets = windows.targets[chosen, : trainee.head.config.window]
    loss = loss_of_windows(trainee.head, states, targets).loss
    loss.backward()
    nn.utils.clip_grad_norm_(trainee.parameters(), CLIP)
    optimizer.step()
    return loss.item()


def _resume(
    folder: RunFolder, trainees: dict[str, Trainee], optimizers: dict[str, AdamW]
) -> tuple[int, float, int]:
    state = folder.load()
    if state is None:
        return 0, 0.0, 0
    for name, trainee in trainees.items():
        trainee.load(state["trainees"][name])
        optimizers[name].load_state_dict(state["optimizers"][name])
    step, seconds, seen = state["progress"]
    return step, seconds, seen


def _sentence(line: dict[str, Any]) -> str:
    each = ", ".join(
        f"{name} {line['loss'][name]:.3f} / {line['held_out'][name]:.2f}" for name in line["loss"]
    )
    return f"step {line['step']}, {line['seconds'] / 60:.1f} min, loss / held-out joint: {each}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `train circuits`."""
    parser.add_argument("--model", default="byte", help="the frozen base model")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="files of completions")
    parser.add_argument("--folder", type=Path, required=True, help="of the run; goes on if there")
    parser.add_argument(
        "--heads", help="CIRCUIT:WINDOW:RANK, by commas; trained on the same windows"
    )
    parser.add_argument("--minutes", type=float, help="training time in all, breaks not counted")
    parser.add_argument("--steps", type=int, help="steps in all")
    for field in dataclasses.fields(Recipe):
        if field.name not in ("minutes", "steps"):
            parser.add_argument(
                f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default
            )
    parser.add_argument("--begin", type=Path, help="folder of a run whose heads these start as")
    parser.add_argument("--dtype", help="of the base model; chosen for the processor")
    parser.add_argument("--save-every", type=float, default=120.0, help="seconds")
    parser.add_argument("--export", type=Path, help="only write what the run trained, with cards")
    parser.add_argument(
        "--prompts", type=int, default=40, help="held-out prompts decoded for the cards"
    )


def run(args: argparse.Namespace) -> int:
    """Trains, or exports what was trained; returns the exit status 0."""
    if args.export is not None:
        load_checkpoint(args.folder)  # says so before a model is loaded, if there is none
        verifier = load_verifier(args.model, args.dtype)
        _, held_out = read_texts(args.data, verifier.vocabulary)
        circuit_card.export(args.folder, args.export, verifier, args.data, held_out, args.prompts)
        return 0
    specs = [parse_spec(text) for text in (args.heads or "").split(",")]
    names = {field.name for field in dataclasses.fields(Recipe)}
    recipe = Recipe(**{name: getattr(args, name) for name in names})
    verifier = load_verifier(args.model, args.dtype)
    training, held_out = read_texts(args.data, verifier.vocabulary)

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    train(
        args.folder,
        verifier,
        training,
        held_out,
        specs,
        recipe,
        begin=args.begin,
        save_every=args.save_every,
        data=args.data,
        report=report,
    )
    return 0
