"""Heads on disk: `head.safetensors` and a small `head.json` in one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mtp.circuits.heads import CircuitHead, HeadConfig
from mtp.errors import ModelError
from mtp.models.draft_vocabulary import DraftVocabulary

WEIGHTS_FILE = "head.safetensors"
CONFIG_FILE = "head.json"
DRAFT_IDS = "draft_vocabulary_ids"


def save_head(
    head: CircuitHead,
    folder: Path,
    card: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Writes the head (without the unembedding, which is the base model's) to `folder`.

    `card` is kept beside the config: how it was trained, what it reached. In bfloat16 a head takes
    half the space and is rounded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in head.state_dict().items()
    }
    tensors[DRAFT_IDS] = torch.as_tensor(head.vocabulary.ids, dtype=torch.int32)
    save_file(tensors, folder / WEIGHTS_FILE)
    text = json.dumps({"config": asdict(head.config), "card": dict(card or {})})
    (folder / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")


def load_head(folder: Path, unembedding: Tensor, base_sha256: str) -> CircuitHead:
    """Reads a head in float32 for the base model with this unembedding (V, D) and SHA-256.

    Raises ModelError when files are missing or broken, or the head was trained on other weights.
    """
    config = load_config(folder)
    if config.base_sha256 != base_sha256:
        raise ModelError(
            f"The head in {folder} was trained on a model with weights {config.base_sha256[:12]}…; "
            f"this model's weights are {base_sha256[:12]}…."
        )
    try:
        tensors = load_file(folder / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"The head in {folder} cannot be read: {error}.") from error
    ids = tensors.pop(DRAFT_IDS, None)
    if ids is None:
        raise ModelError(f"The head in {folder} names no draft vocabulary.")
    vocabulary = DraftVocabulary(ids.long().numpy(), config.vocabulary)
    head = CircuitHead(config, unembedding, vocabulary)
    try:
        head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except RuntimeError as error:
        raise ModelError(
            f"The weights of the head in {folder} don't fit its {CONFIG_FILE}."
        ) from error
    return head.eval()


def load_config(folder: Path) -> HeadConfig:
    """Reads what a saved head is made of. Raises ModelError when that is missing or broken."""
    config = _read(folder)["config"]
    known = {field.name for field in fields(HeadConfig)}
    try:
        return HeadConfig(**{name: value for name, value in config.items() if name in known})
    except (TypeError, AttributeError) as error:
        raise ModelError(f"{folder / CONFIG_FILE} doesn't describe a head: {error}.") from error


def load_card(folder: Path) -> dict[str, Any]:
    """Reads how a saved head was trained. Raises ModelError when that is missing or broken."""
    return dict(_read(folder).get("card", {}))


def _read(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"No head can be read from {folder}: {error}.") from error
    if not isinstance(found, dict) or not isinstance(found.get("config"), dict):
        raise ModelError(f"{folder / CONFIG_FILE} doesn't describe a head.")
    return found
