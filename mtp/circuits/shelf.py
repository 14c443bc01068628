"""Which trained heads there are for a model, and the one asked for, folded for drafting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from mtp.circuits.folded import FoldedHead
from mtp.circuits.head_files import CONFIG_FILE, load_config, load_head
from mtp.circuits.heads import HeadConfig
from mtp.errors import InputError
from mtp.models.backbone import Backbone
from mtp.models.catalog import REPOSITORY
from mtp.models.lora import LowRankAdapter, load_adapter
from mtp.models.verifier import Verifier

SHELF = REPOSITORY / "assets" / "weights" / "circuits"


@dataclass(frozen=True)
class Shelved:
    """A head on the shelf: its folder and what it is made of."""

    folder: Path
    config: HeadConfig

    @property
    def label(self) -> str:
        """Circuit, window, rank and K, such as ff-16 or btree-16-r8-k2."""
        config = self.config
        return label_of(config.circuit, config.window, config.rank, config.lora)


def shelved(shelf: Path | None = None) -> list[Shelved]:
    """All shipped heads, by circuit, window and name."""
    place = SHELF if shelf is None else shelf
    found = [
        Shelved(file.parent, load_config(file.parent)) for file in place.glob(f"*/{CONFIG_FILE}")
    ]
    return sorted(
        found, key=lambda head: (head.config.circuit, head.config.window, head.folder.name)
    )


def heads_for(base_sha256: str, shelf: Path | None = None) -> list[Shelved]:
    """The shipped heads of the model with these weights, by circuit, window and name."""
    return [head for head in shelved(shelf) if head.config.base_sha256 == base_sha256]


def choose(
    heads: Sequence[Shelved], circuit: str, window: int | None, lora: int, model: str, rank: int = 0
) -> Shelved:
    """The head for a circuit, a window (the longest for None), K = `lora` adapted layers and a rank
    (the highest for 0).

    Raises InputError with what there is instead.
    """
    fitting = [
        head
        for head in heads
        if (head.config.circuit, head.config.lora) == (circuit, lora)
        and window in (None, head.config.window)
        and rank in (0, head.config.rank)
    ]
    if not fitting:
        wanted = label_of(circuit, window, rank, lora)
        there = ", ".join(head.label for head in heads) or "none"
        raise InputError(
            f"There is no circuit head {wanted} for {model[:80]}; there are: {there}. "
            "`python -m mtp train circuits` makes one."
        )
    return max(fitting, key=lambda head: (head.config.window, head.config.rank))


@dataclass(frozen=True)
class Loaded:
    """A head ready to draft, and the adapter of the model's last layers it was trained with."""

    head: FoldedHead
    adapter: LowRankAdapter | None


_loaded: WeakKeyDictionary[Backbone, dict[Path, Loaded]] = WeakKeyDictionary()


def load(folder: Path, verifier: Verifier) -> Loaded:
    """The head in a folder for this verifier; kept as long as the verifier's backbone.

    Raises ModelError as `load_head` and `load_adapter` do.
    """
    backbone = verifier.backbone
    known = _loaded.setdefault(backbone, {})
    if folder not in known:
        head = load_head(folder, backbone.unembedding.float().cpu(), verifier.weights_sha256)
        adapter = load_adapter(folder, backbone.model) if head.config.lora else None
        known[folder] = Loaded(FoldedHead(head), adapter)
    return known[folder]


def label_of(circuit: str, window: int | None, rank: int, lora: int) -> str:
    """A head in short; what is 0 or None, and a rank of 1, goes without saying."""
    parts = [circuit, str(window or ""), f"r{rank}" if rank > 1 else "", f"k{lora}" if lora else ""]
    return "-".join(part for part in parts if part)
