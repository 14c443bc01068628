"""What ships of an inverse autoregressive pair: both models, the embedding, and a card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mtp.decode import software
from mtp.train import byte_card
from mtp.train.byte_data import Documents
from mtp.train.inverse_quality import perplexities, unread_perplexity
from mtp.train.inverse_recipe import Recipe, build
from mtp.train.loop import restore, round_as_stored
from mtp.train.run_folder import (
    as_options,
    load_checkpoint,
    read_curve,
    read_settings,
    recipe_of,
    thinned,
)

CURVE_LINES = 12


def export(
    run_folder: Path,
    out: Path,
    data: Sequence[Mapping[str, Any]],
    training: Documents,
    held_out: Documents,
) -> None:
    """Writes both models for the Auto classes, the noise embedding and a card. data: where the
    documents come from, as `source_of` tells.

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
        "data": list(data),
        "training_documents": len(training),
        "training_bytes": len(training.tokens),
        "held_out_documents": len(held_out),
        "minutes": round(state["progress"]["seconds"] / 60, 1),
        "parameters": sum(p.numel() for p in pair.model.parameters()),
        "held_out": {
            **perplexities(pair, held_out, recipe),
            "unread_perplexity": unread_perplexity(pair, held_out, recipe),
        },
        "software": software(),
        "curve": read_curve(run_folder),
    }
    for name, model in (("model", pair.model), ("twin", pair.twin)):
        byte_card.write_model(out / name, model, recipe.context)
    noise = {name: one.to(torch.bfloat16) for name, one in pair.noise.state_dict().items()}
    save_file(noise, out / "noise.safetensors")
    (out / "card.json").write_text(json.dumps(card) + "\n", encoding="utf-8")
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
        f"| {offset} | {mine:.3f} | {blind:.3f} | {theirs:.3f} | "
        f"{100 * (mine / theirs - 1):+.1f}% |"
        for offset, (mine, blind, theirs) in enumerate(
            zip(
                held["perplexity"], held["unread_perplexity"], held["twin_perplexity"], strict=True
            ),
            1,
        )
    )
    options = as_options(card["settings"])
    files = ", ".join(f"`{one['file']}`" for one in card["data"])
    documents, size = card["training_documents"], card["training_bytes"] / 1e6
    return f"""# Inverse autoregressive pair

Two byte models of {card["parameters"] / 1e6:.2f}M parameters each, of the same shape, from the same
first weights, trained on the same text for the same steps. `model` learns, without a teacher, to
foresee tokens behind noise that picks the tokens before them (C-PTP); `twin` is plain and
autoregressive. Stored as bfloat16.

## Held out

Perplexity at temperature 1 by offset: the model is given the text and the noise of the tokens
since, drawn inside its own intervals at temperature {recipe.temperature}, each at the position of
the token that it picks; its twin is given the tokens themselves. A column beside it has the same
model read noise of another draw: what it loses there it owes to its noise.

| offset | reads noise | another draw's | twin | difference to the twin |
|---|---|---|---|---|
{offsets}

Mean perplexity over offsets 2 to {recipe.longest}, against the twin's: {100 * held["gap"]:+.1f}%.

## Training

{card["steps"]:,} steps of each, {card["minutes"]:.0f} minutes for both, on {documents:,} documents
({size:.1f} MB) of {files}; {card["held_out_documents"]} more are held out. A step reads
{recipe.batch} texts of {recipe.context} bytes and, once there are windows, about {recipe.rows}
noise rows in each. Made with

```
python -m mtp train inverse --data CORPUS --folder RUN {options}
```

Bits a byte in training: the model's text and its windows, the twin's text; and the difference held
out.

| step | text | windows | twin | held out |
|---|---|---|---|---|
{curve}
"""
