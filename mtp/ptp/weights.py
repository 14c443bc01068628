"""A PTP drafter on disk: an adapter in PEFT's layout, a noise embedding, and its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from mtp.errors import InputError, ModelError
from mtp.models.catalog import REPOSITORY
from mtp.models.lora import LowRankAdapter, load_adapter, save_adapter
from mtp.models.verifier import Verifier
from mtp.ptp.embedding import ANCHORS, EmbeddingName, NoiseEmbedding

Variant = Literal["o-ptp", "c-ptp", "independent"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
SHELF = REPOSITORY / "assets" / "weights" / "ptp"
CONFIG_FILE, NOISE_FILE = "ptp.json", "noise.safetensors"


@dataclass(frozen=True)
class PtpConfig:
    """Which drafter this is, and what it was trained for.

    temperature, top_k and top_p give its noise its meaning. `longest` is the longest window it was
    trained on. `gains` is H(b), b = 1, 2, …: how many drafts of a branch of b rows stood on
    held-out text. `stands` pairs a confidence with the share of drafts that stood, rising.
    """

    variant: Variant
    base_sha256: str
    hidden: int
    temperature: float
    embedding: EmbeddingName = "binary"
    anchors: int = ANCHORS
    top_k: int = 0
    top_p: float = 1.0
    longest: int = 16
    gains: tuple[float, ...] = ()
    stands: tuple[tuple[float, float], ...] = ()

    def expected(self) -> tuple[float, ...]:
        """H(b); before it has been measured, every row but a replaced first one counts whole."""
        if self.gains:
            return self.gains
        replaced = 0 if self.variant == "c-ptp" else 1
        return tuple(float(max(0, b - replaced)) for b in range(1, self.longest + 1))

    def chance(self, confidence: float) -> float:
        """The calibrated chance that a draft of this confidence stands."""
        if not self.stands:
            return confidence
        below = [pair for pair in self.stands if pair[0] <= confidence]
        above = [pair for pair in self.stands if pair[0] > confidence]
        if not below or not above:
            return below[-1][1] if below else above[0][1]
        (x0, y0), (x1, y1) = below[-1], above[0]
        return y0 + (y1 - y0) * (confidence - x0) / (x1 - x0)


@dataclass(frozen=True)
class PtpWeights:
    """A trained drafter, ready to run on its base."""

    config: PtpConfig
    adapter: LowRankAdapter
    noise: NoiseEmbedding


def build_noise(
    config: PtpConfig, model: PreTrainedModel, generator: torch.Generator | None = None
) -> NoiseEmbedding:
    """An untrained embedding, of the size of the base's token embeddings."""
    table = model.get_input_embeddings().weight
    assert isinstance(table, torch.Tensor)
    spread = float(table.detach().float().std())
    return NoiseEmbedding(config.embedding, config.hidden, spread, config.anchors, generator)


def save_ptp(
    weights: PtpWeights,
    folder: Path,
    base: str,
    card: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Writes adapter, embedding, settings and card to a folder."""
    save_adapter(weights.adapter, folder, base, dtype)
    tensors = {
        name: tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in weights.noise.state_dict().items()
    }
    save_file(tensors, folder / NOISE_FILE)
    words = json.dumps({"config": asdict(weights.config), "card": dict(card or {})}, indent=1)
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
    noise = build_noise(config, model)
    try:
        tensors = load_file(folder / NOISE_FILE)
        noise.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"The noise embedding in {folder} cannot be read: {error}.") from error
    adapter = load_adapter(folder, model)
    return PtpWeights(config, adapter, noise.to(model.device).eval())


def load_config(folder: Path) -> PtpConfig:
    """Reads which drafter a folder holds. Raises ModelError where that is missing or broken."""
    try:
        found = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))["config"]
        known = {field.name for field in fields(PtpConfig)}
        given = {name: value for name, value in found.items() if name in known}
        given["gains"] = tuple(given.get("gains", ()))
        given["stands"] = tuple((x, y) for x, y in given.get("stands", ()))
        config = PtpConfig(**given)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"No PTP drafter can be read from {folder}: {error}.") from error
    if config.variant not in VARIANTS:
        raise ModelError(f"{folder / CONFIG_FILE} names no known variant of PTP.")
    return config


def shelved(variant: str, verifier: Verifier, shelf: Path | None = None) -> Path:
    """The folder of the shipped drafter of a variant. Raises InputError where there is none."""
    place = SHELF if shelf is None else shelf
    there = []
    for file in sorted(place.glob(f"*/{CONFIG_FILE}")):
        config = load_config(file.parent)
        if config.base_sha256 == verifier.weights_sha256:
            if config.variant == variant:
                return file.parent
            there.append(config.variant)
    raise InputError(
        f"There is no {variant} trained for {verifier.name[:80]}; there are: "
        f"{', '.join(there) or 'none'}. `python -m mtp train ptp` makes one."
    )
