"""A trained PTP drafter as it ships, with its gate, calibration, curve and acceptance held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mtp.decode import software
from mtp.errors import InputError, ModelError
from mtp.models.verifier import Verifier
from mtp.ptp.explore import IMPOSSIBLE, MOST_PLACES, NOISES, PLAIN, NoiseExplorer
from mtp.ptp.files import load_card, save_ptp
from mtp.ptp.weights import PtpConfig, PtpWeights
from mtp.train.held_out import NEW_TOKENS, acceptance
from mtp.train.loop import restore, round_as_stored
from mtp.train.ptp_quality import Quality, measure
from mtp.train.run_folder import (
    as_options,
    check_weights,
    load_checkpoint,
    read_curve,
    read_settings,
    thinned,
)
from mtp.train.texts import Text

CURVE_LINES = 14
CONTEXTS = 20  # held-out texts behind which whole windows are foreseen


@dataclass(frozen=True)
class Made:
    """How a drafter was trained: the run's settings, completions (as `source_of` tells; none for
    a card that does not say), steps, minutes, noise rows and curve.
    """

    settings: dict[str, Any]
    data: Sequence[Mapping[str, Any]]
    steps: int
    minutes: float
    rows: int
    curve: list[dict[str, Any]]


def of_run(
    run_folder: Path,
    verifier: Verifier,
    weights: PtpWeights,
    data: Sequence[Mapping[str, Any]],
) -> Made:
    """Puts the weights of the run's checkpoint, as a file stores them, into `weights`. Raises
    InputError where the run has no checkpoint yet or is of another model.
    """
    check_weights(run_folder, verifier.weights_sha256)
    state = load_checkpoint(run_folder)
    restore(weights.modules, state)
    round_as_stored(_parameters(weights), torch.bfloat16)
    progress = state["progress"]
    return Made(
        read_settings(run_folder),
        data,
        progress["step"],
        round(progress["seconds"] / 60, 1),
        int(progress["counts"]["rows"]),
        read_curve(run_folder),
    )


def of_stored(folder: Path) -> Made:
    """What the card of a stored drafter tells. Raises ModelError where it cannot be read."""
    card = load_card(folder)
    try:
        given = {field.name: card[field.name] for field in fields(Made) if field.name != "data"}
    except KeyError as error:
        raise ModelError(f"The drafter in {folder} has no card: it lacks {error}.") from error
    return Made(data=card.get("data", ()), **given)


def _parameters(weights: PtpWeights) -> list[nn.Parameter]:
    return [p for module in weights.modules.values() for p in module.parameters()]


def export(
    weights: PtpWeights,
    made: Made,
    out: Path,
    verifier: Verifier,
    held_out: Sequence[Text],
    prompts: int,
) -> None:
    """Writes a drafter, in bfloat16, with its card, to a folder in `out`.

    Gains and calibration are measured on the first half of the held-out texts, accuracy on the
    second. Raises InputError without prompts or with too few texts.
    """
    if len(held_out) < 2:
        raise InputError(
            "There are too few held-out completions to measure on; a hundred lines do."
        )
    if prompts < 1:
        raise InputError(f"{prompts} held-out prompts say nothing; 1 or more do.")
    config = weights.config
    half = max(1, len(held_out) // 2)
    backbone = verifier.backbone
    fitted = measure(backbone, weights, held_out[:half], config.sampling, config.longest)
    quality = measure(backbone, weights, held_out[half:], config.sampling, config.longest, seed=1)
    weights = replace(weights, config=replace(config, gains=fitted.gains, stands=fitted.stands))
    base = Path(verifier.name).name
    folder = out / f"{base}-{config.variant}-{_at(config)}"
    gate = made.settings["gate"]
    card: dict[str, Any] = {
        **asdict(made),
        "parameters": sum(p.numel() for p in _parameters(weights)),
        "held_out": vars(quality),
        "gate": {"wanted": gate, "passed": quality.passes(gate)},
        "software": software(),
    }
    save_ptp(weights, folder, base, card)
    card["acceptance"] = acceptance(
        verifier,
        config.variant,
        {"weights": str(folder)},
        [text.prompt for text in held_out[half : half + prompts]],
        config.sampling,
    )
    card["pairs"] = pairs_of(verifier, weights, held_out[half : half + CONTEXTS])
    save_ptp(weights, folder, base, card)
    (folder / "card.md").write_text(_markdown(base, weights, quality, card), encoding="utf-8")


def pairs_of(verifier: Verifier, weights: PtpWeights, texts: Sequence[Text]) -> dict[str, Any]:
    """Whole windows foreseen with fresh noise behind a place in each text: the mean number of
    drafted tokens right in a row, and the share of adjacent pairs whose second token the verifier
    finds impossible (below `IMPOSSIBLE`) behind the first; for plain sampling as well.
    """
    rng = np.random.default_rng(0)
    config, name = weights.config, weights.config.variant
    places = min(config.longest, MOST_PLACES)
    right, impossible, plain = [], [], []
    whole = [text for text in texts if len(text.ids) > text.answer]  # not cut before its answer
    for text in whole:
        ids = text.ids[: rng.integers(text.answer, len(text.ids)) + 1].tolist()
        explorer = NoiseExplorer(
            verifier.backbone, verifier.vocabulary, {name: weights}, ids, config.sampling
        )
        found = explorer.tallies(places, NOISES)
        assert found is not None
        right.append(found[name].right)
        impossible.append(found[name].impossible)
        plain.append(found[PLAIN].impossible)
    return {
        "contexts": len(whole),
        "noises": NOISES,
        "places": places,
        "right": round(float(np.mean(right)), 3),
        "impossible": round(float(np.mean(impossible)), 4),
        "plain_impossible": round(float(np.mean(plain)), 4),
    }


def _at(config: PtpConfig) -> str:
    """The sampling a drafter was trained for, as part of a folder's name: t0.7, or t0.7-p0.9."""
    parts = [f"t{config.temperature:g}"]
    if config.top_k:
        parts.append(f"k{config.top_k}")
    if config.top_p < 1:
        parts.append(f"p{config.top_p:g}")
    return "-".join(parts)


def _markdown(base: str, weights: PtpWeights, quality: Quality, card: dict[str, Any]) -> str:
    curve = "\n".join(
        f"| {line['step']} | {line['rows'] / 1e6:.2f} | {line['length']} | {line['loss']:.3f} "
        f"| {line['accuracy'][quality.gated]:.3f} | {line['shuffled']:.3f} "
        f"| {line['leading']:.2f} |"
        for line in thinned(card["curve"], CURVE_LINES)
    )
    accepted, pairs = card["acceptance"], card["pairs"]
    rows = "\n".join(
        f"| {kind} | {accepted[kind]['tokens_per_call']:.2f} |" for kind in ("coupled", "rejection")
    )
    options = as_options(card["settings"], ("weights_sha256", "drafted_sha256", "begin_rows"))
    trained = f"{card['rows'] / 1e6:.2f}M noise rows"
    if before := card["settings"].get("begin_rows"):
        trained += f"\nbehind {before / 1e6:.2f}M of the run it began as"
    if files := ", ".join(f"`{one['file']}`" for one in card["data"]):
        trained += f",\non {files}"
    config = weights.config
    parts = []
    if weights.adapter is not None:
        parts.append(f"a gated adapter of rank {config.rank} on every layer")
    if weights.head is not None:
        layers = "one layer" if config.head_layers == 1 else f"{config.head_layers} layers"
        width = f" of width {config.head_width}" if config.head_width else ""
        parts.append(f"a pick head of {layers}{width} on the verifier's final state")
    few = ""
    if config.draft_vocabulary:
        few = f" It drafts of the {config.draft_vocabulary:,} most frequent tokens."
    gated, start, told = config.offset(quality.gated), config.offset(0), ""
    drafted = quality.accuracy
    if quality.gated:
        told = " (at offset 1 stands the verifier's own pick, which the head is told)"
        start, drafted = 2, drafted[config.replaced :]
    by_offset = ", ".join(f"{value:.2f}" for value in drafted)
    return f"""# {base} {config.variant}, temperature {config.temperature:g}

Drafts for the frozen model `{base}` (weights `{config.base_sha256[:16]}…`):
{" and ".join(parts)}, {config.embedding} noise embedding;
{card["parameters"]:,} parameters, stored as bfloat16. Trained for temperature
{config.temperature}, top-k {config.top_k}, top-p {config.top_p}; the text is as exact at any
other.{few}

## How much is right

On {quality.windows:,} held-out windows with known noise, offset {gated}{told}
is right in {quality.accuracy[quality.gated]:.3f}. From offset {start} on: {by_offset}. Right in a
row from there: {quality.leading:.2f} of {len(drafted)}.
{_gate(config, quality, card)}
## Decoding

{accepted["prompts"]} held-out prompts at temperature {accepted["temperature"]}, at most
{NEW_TOKENS} new tokens each:

| verification | tokens per call |
|---|---|
{rows}

Behind a place in each of {pairs["contexts"]} held-out texts, with {pairs["noises"]} draws of noise
each, {100 * pairs["impossible"]:.1f}% of the adjacent pairs it foresees are impossible for the
verifier (below {IMPOSSIBLE}); of plain sampling's {100 * pairs["plain_impossible"]:.1f}% are.

## Training

{card["steps"]:,} steps, {card["minutes"]:.0f} minutes, {trained}.
Made with

```
python -m mtp train ptp --data CORPUS --folder RUN {options}
```

| step | M rows | window | loss | offset {gated} | shuffled | right in a row |
|---|---|---|---|---|---|---|
{curve}
"""


def _gate(config: PtpConfig, quality: Quality, card: dict[str, Any]) -> str:
    """Whether the noise is read, of drafters that have noise to read."""
    if config.variant == "independent":
        return ""
    wanted, passed = card["gate"]["wanted"], card["gate"]["passed"]
    blind, clearly = "", "clearly more often than with another draw's noise"
    if quality.ceiling is not None:
        blind = f"; a drafter blind to its noise can reach {quality.ceiling:.3f}"
        clearly = (
            "clearly more often than blind, and no better than blind\nwith another draw's noise"
        )
    held = "each length of windows was held back until it passed or its share of the steps was over"
    if len(card["settings"]["lengths"]) == 1:
        held = f"windows had {config.longest} tokens from the start, so that it held nothing back"
    return f"""
## Does it read its noise?

With another draw's noise that offset is right in {quality.shuffled:.3f}{blind}. The gate (right in
{wanted:g}, {clearly}): {"passed" if passed else "not passed"}. In training {held}.
"""
