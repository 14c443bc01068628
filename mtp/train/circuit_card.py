"""Trained heads as they ship, each with a card: data, steps, likelihood and acceptance held out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mtp.circuits.head_files import save_head
from mtp.circuits.heads import CircuitHead
from mtp.circuits.shelf import label_of
from mtp.decode import software
from mtp.models.catalog import bits_per_byte
from mtp.models.lora import save_adapter
from mtp.models.verifier import Verifier
from mtp.sampling import Sampling
from mtp.train.circuit_heads import Recipe, Spec, build, drafted_in, evaluate, windows_of
from mtp.train.held_out import acceptance
from mtp.train.loop import round_as_stored
from mtp.train.run_folder import (
    as_options,
    check_data,
    check_weights,
    load_checkpoint,
    read_curve,
    read_settings,
    recipe_of,
    thinned,
)
from mtp.train.texts import Text
from mtp.verify import VERIFICATIONS

ROWS = 8  # held-out texts a forward
TEMPERATURE = 0.7
CURVE_LINES = 10
EXPORT = "python -m mtp train circuits … --export assets/weights/circuits"


def export(
    run_folder: Path,
    out: Path,
    verifier: Verifier,
    data: Sequence[Path],
    held_out: Sequence[Text],
    prompts: int,
) -> None:
    """Writes each head of the run's checkpoint, in bfloat16, with its card, to a folder in `out`.

    Raises InputError where the run has no checkpoint yet, is of another model, or was trained on
    other completions than `data`.
    """
    state, settings = load_checkpoint(run_folder), read_settings(run_folder)
    sources = check_data(run_folder, data)
    check_weights(run_folder, verifier.weights_sha256)
    recipe = recipe_of(run_folder, Recipe)
    specs = [Spec(**spec) for spec in settings["heads"]]
    begin = settings["begin"]
    curve = read_curve(run_folder)
    backbone = verifier.backbone
    vocabulary = drafted_in(state, verifier)
    longest = max(spec.window for spec in specs)
    ordered = sorted((text.cut(recipe.context) for text in held_out), key=lambda t: len(t.ids))
    windows = [
        windows_of(verifier, ordered[first : first + ROWS], vocabulary, longest, recipe.lora)
        for first in range(0, len(ordered), ROWS)
    ]
    for spec in specs:
        trainee = build(spec, recipe, verifier, vocabulary)
        trainee.load(state["trainees"][spec.name])
        round_as_stored(trainee.parameters(), torch.bfloat16)
        head = trainee.head
        label = label_of(spec.circuit, spec.window, spec.rank, recipe.lora)
        folder = out / f"{Path(verifier.name).name}-{label}"
        card: dict[str, Any] = {
            "model": verifier.name,
            "data": sources,
            "model_bits_per_byte": bits_per_byte(verifier.name),
            "steps": state["progress"][0],
            "minutes": round(state["progress"][1] / 60, 1),
            "windows": state["progress"][2],
            "parameters": sum(parameter.numel() for parameter in trainee.parameters()),
            "held_out": evaluate(trainee, backbone, windows)
            | {"whole": _whole_windows(ordered, spec.window)},
            "command": _command(verifier, data, specs, recipe, begin),
            "export": f"{EXPORT} --prompts {prompts}",
            "software": software(),
            "curve": [_line(line, spec.name) for line in curve],
        }
        if trainee.adapter is not None:
            save_adapter(trainee.adapter, folder, verifier.name)
        save_head(head, folder, card, torch.bfloat16)
        card["acceptance"] = acceptance(
            verifier,
            f"mtpc-{spec.circuit}",
            {"head": str(folder)},
            [text.prompt for text in held_out[:prompts]],
            Sampling(TEMPERATURE),
        )
        save_head(head, folder, card, torch.bfloat16)
        (folder / "card.md").write_text(_markdown(spec, head, card), encoding="utf-8")


def _whole_windows(texts: Sequence[Text], window: int) -> int:
    """Windows that no text's end cuts short, whatever their tokens."""
    return sum(max(0, len(text.ids) - text.answer - window + 1) for text in texts)


def _command(
    verifier: Verifier,
    data: Sequence[Path],
    specs: Sequence[Spec],
    recipe: Recipe,
    begin: str | None,
) -> str:
    heads = ",".join(f"{spec.circuit}:{spec.window}:{spec.rank}" for spec in specs)
    options = as_options(vars(recipe))
    if begin is not None:
        options = f"--begin {begin} {options}"
    files = " ".join(path.name for path in data)
    return (
        f"python -m mtp train circuits --model {verifier.name} --data {files} --folder RUN "
        f"--heads {heads} {options}"
    )


def _line(line: dict[str, Any], name: str) -> dict[str, Any]:
    return {
        "step": line["step"],
        "windows": line["windows"],
        "loss": round(line["loss"][name], 4),
        "held_out_joint": round(line["held_out"][name], 4),
    }


def _markdown(spec: Spec, head: CircuitHead, card: dict[str, Any]) -> str:
    curve = "\n".join(
        f"| {line['step']} | {line['windows']:,} | {line['loss']:.3f} "
        f"| {line['held_out_joint']:.2f} |"
        for line in thinned(card["curve"], CURVE_LINES)
    )
    held, accepted = card["held_out"], card["acceptance"]
    files = ", ".join(f"`{one['file']}`" for one in card["data"])
    by_position = ", ".join(f"{value:.2f}" for value in held["cross_entropy"])
    rows = "\n".join(
        f"| {verification} | {accepted[verification]['tokens_per_call']:.2f} | "
        + " / ".join(f"{q:.2f}" for q in accepted[verification]["accepted_per_call_quartiles"])
        + " |"
        for verification in VERIFICATIONS
    )
    label = label_of(spec.circuit, spec.window, spec.rank, head.config.lora)
    bits = card["model_bits_per_byte"]
    known = "" if bits is None else f" The model itself needs {bits:.3f} bits a byte of such text."
    left = held["whole"] - held["windows"]
    return f"""# {card["model"]} {label}

A head that turns a hidden state of the frozen model `{card["model"]}` (weights
`{head.config.base_sha256[:16]}…`) into a {spec.circuit} circuit over the next {spec.window} tokens,
rank {spec.rank}, {head.config.draft_vocabulary:,} tokens that can be drafted;
{card["parameters"]:,} parameters, stored as bfloat16. Trained on texts of temperature
{head.config.temperature:g}.{_adapted(head.config.lora)}

## Held out

Over {held["windows"]:,} windows of answers not trained on, the mean log-likelihood of a window is
{held["joint"]:.3f} nats; {left:,} windows ({left / held["whole"]:.1%}) with a token that cannot be
drafted are left out. Cross-entropy by position, in nats: {by_position}.

Decoding {accepted["prompts"]} held-out prompts at temperature {accepted["temperature"]}, at most
{accepted["new_tokens"]} new tokens each.{known}

| verification | tokens per call | accepted per call, quartiles over prompts |
|---|---|---|
{rows}

## Training

{card["steps"]:,} steps, {card["minutes"]:.0f} minutes together with the other heads of the same
run, {card["windows"]:,} windows of {files}. Held out are the last 2%
of each file, without prompts that are trained on. Made with

```
{card["command"]}
{card["export"]}
```

| step | windows | loss | held-out joint, nats a window |
|---|---|---|---|
{curve}
"""


def _adapted(layers: int) -> str:
    if not layers:
        return ""
    return (
        f"\nDrafts run the model's last {'layer' if layers == 1 else f'{layers} layers'} once "
        "more, with an adapter trained together with the head."
    )
