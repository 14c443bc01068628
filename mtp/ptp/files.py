"""A PTP drafter on disk: an adapter in PEFT's layout, a noise embedding, and its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from mtp.errors import InputError, ModelError
from mtp.models.catalog import REPOSITORY
from mtp.models.draft_vocabulary import DraftVocabulary
from mtp.models.lora import load_adapter, save_adapter
from mtp.models.verifier import Verifier
from mtp.ptp.weights import VARIANTS, DraftRows, PtpConfig, PtpWeights, build_head, build_noise
from mtp.sampling import Sampling

SHELF = REPOSITORY / "assets" / "weights" / "ptp"
CONFIG_FILE, NOISE_FILE, HEAD_FILE = "ptp.json", "noise.safetensors", "head.safetensors"
VOCABULARY_FILE, DRAFT_IDS = "vocabulary.safetensors", "draft_vocabulary_ids"


def save_ptp(
    weights: PtpWeights,
    folder: Path,
    base: str,
    card: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Writes adapter, embedding, settings and card to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if weights.adapter is not None:
        save_adapter(weights.adapter, folder, base, dtype)
        _save(weights.noise, folder / NOISE_FILE, dtype)
    if weights.head is not None:
        _save(weights.head, folder / HEAD_FILE, dtype)
    if weights.drafted is not None:
        ids = weights.drafted.ids.to("cpu", torch.int32)
        save_file({DRAFT_IDS: ids}, folder / VOCABULARY_FILE)
    words = json.dumps({"config": asdict(weights.config), "card": dict(card or {})})
    (folder / CONFIG_FILE).write_text(words + "\n", encoding="utf-8")


def load_ptp(folder: Path, verifier: Verifier) -> PtpWeights:
    """Reads a drafter for this verifier, float32.

    Raises ModelError for files that are missing or broken, or made for other weights.
    """
    config = load_config(folder)
    if config.base_sha256 != verifier.weights_sha256:
        raise ModelError(
            f"The drafter in {folder} was trained on weights {config.base_sha256[:12]}…; this "
            f"model's are {verifier.weights_sha256[:12]}…."
        )
    model = verifier.backbone.model
    noise, head = build_noise(config, model), build_head(config)
    adapter = None
    if config.rank:
        _load(noise, folder / NOISE_FILE)
        adapter = load_adapter(folder, model)
    if head is not None:
        _load(head, folder / HEAD_FILE)
        head.to(model.device).eval()
    drafted = None
    if config.draft_vocabulary:
        vocabulary = _vocabulary(folder / VOCABULARY_FILE, verifier.backbone.vocabulary_size)
        if len(vocabulary) != config.draft_vocabulary:
            raise ModelError(
                f"The drafter in {folder} drafts of {config.draft_vocabulary} tokens; its "
                f"{VOCABULARY_FILE} has {len(vocabulary)}."
            )
        drafted = DraftRows.of(vocabulary, verifier.backbone)
    return PtpWeights(config, adapter, noise.to(model.device).eval(), head, drafted)


def _vocabulary(file: Path, size: int) -> DraftVocabulary:
    try:
        return DraftVocabulary(load_file(file)[DRAFT_IDS].long().numpy(), size)
    except (OSError, KeyError, SafetensorError, InputError) as error:
        raise ModelError(f"{file} cannot be read: {error}.") from error


def _save(module: nn.Module, file: Path, dtype: torch.dtype) -> None:
    tensors = {
        name: tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in module.state_dict().items()
    }
    save_file(tensors, file)


def _load(module: nn.Module, file: Path) -> None:
    try:
        tensors = load_file(file)
        module.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read: {error}.") from error


def load_config(folder: Path) -> PtpConfig:
    """Reads which drafter a folder holds. Raises ModelError where that is missing or broken."""
    found = _part(folder, "config")
    try:
        known = {field.name for field in fields(PtpConfig)}
        given = {name: value for name, value in found.items() if name in known}
        given["gains"] = tuple(given.get("gains", ()))
        given["stands"] = tuple((x, y) for x, y in given.get("stands", ()))
        config = PtpConfig(**given)
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"No PTP drafter can be read from {folder}: {error}.") from error
    if config.variant not in VARIANTS:
        raise ModelError(f"{folder / CONFIG_FILE} names no known variant of PTP.")
    return config


def load_card(folder: Path) -> dict[str, Any]:
    """Reads what is told of a drafter's training. Raises ModelError as `load_config` does."""
    return dict(_part(folder, "card"))


def _part(folder: Path, name: str) -> Any:
    try:
        return json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))[name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"No PTP drafter can be read from {folder}: {error}.") from error


def shelved(
    variant: str, verifier: Verifier, sampling: Sampling, shelf: Path | None = None
) -> Path | None:
    """The folder of the shipped drafter of a variant; None where there is none. Of several it is
    the one trained for the nearest temperature, and then for the same top-k and top-p.
    """

    def distance(one: tuple[Path, PtpConfig]) -> tuple[float, bool, bool]:
        trained = one[1]
        return (
            abs(trained.temperature - sampling.temperature),
            trained.top_k != sampling.top_k,
            trained.top_p != sampling.top_p,
        )

    found = [(folder, c) for folder, c in _shelf(verifier, shelf) if c.variant == variant]
    return min(found, key=distance)[0] if found else None


def shipped_folder(
    variant: str, verifier: Verifier, sampling: Sampling, shelf: Path | None = None
) -> Path:
    """As `shelved`. Raises InputError where there is none."""
    folder = shelved(variant, verifier, sampling, shelf)
    if folder is None:
        there = [config.variant for _, config in _shelf(verifier, shelf)]
        raise InputError(
            f"There is no {variant} trained for {verifier.name[:80]}; there are: "
            f"{', '.join(there) or 'none'}. `python -m mtp train ptp` makes one."
        )
    return folder


def _shelf(verifier: Verifier, shelf: Path | None) -> list[tuple[Path, PtpConfig]]:
    """The drafters that ship for these weights."""
    files = sorted((SHELF if shelf is None else shelf).glob(f"*/{CONFIG_FILE}"))
    found = [(file.parent, load_config(file.parent)) for file in files]
    return [(folder, c) for folder, c in found if c.base_sha256 == verifier.weights_sha256]
