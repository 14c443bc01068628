"""A drafter for one run, by name; a union by its members' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from mtp.circuits import head_files
from mtp.circuits.shelf import choose, heads_for, load
from mtp.drafters.ar import Autoregressive
from mtp.drafters.base import Drafter
from mtp.drafters.draft_model import DraftModel, load_draft_model
from mtp.drafters.esp import EmbeddingProbing
from mtp.drafters.lookahead import Lookahead
from mtp.drafters.mtpc import CircuitDrafter
from mtp.drafters.options import CIRCUITS, PTP, by_members, settle_options
from mtp.drafters.pld import PromptLookup
from mtp.drafters.ptp import ParallelTokens
from mtp.drafters.rows import most_nodes, probe_rows
from mtp.drafters.stand import AdaptiveNgrams
from mtp.drafters.union import Union
from mtp.errors import InputError
from mtp.models.backbone import Backbone
from mtp.models.load import files_sha256
from mtp.models.verifier import Verifier
from mtp.ptp.files import load_config, load_ptp, shipped_folder
from mtp.records.trace import DrafterWeights
from mtp.sampling import Sampling

Maker = Callable[[Verifier, dict[str, Any], Sampling], Drafter]


def _circuit(
    name: str, verifier: Verifier, options: dict[str, Any], sampling: Sampling
) -> CircuitDrafter:
    """A circuit's drafter with the shipped head, or one in a folder of the person's own."""
    circuit = name.removeprefix("mtpc-")
    if options["head"]:
        folder = Path(options["head"]).expanduser()
        trained = head_files.load_config(folder).circuit
        if trained != circuit:
            raise InputError(f"The head in {folder} is a {trained} circuit; use mtpc-{trained}.")
    else:
        window = options["window"] or None
        heads = heads_for(verifier.weights_sha256)
        lora, rank = options["lora"], options["rank"]
        folder = choose(heads, circuit, window, lora, verifier.name, rank).folder
    loaded = load(folder, verifier)
    return CircuitDrafter(
        verifier.backbone,
        loaded.head,
        loaded.adapter,
        options["tree"],
        options["budget"],
        options.get("longest"),
        DrafterWeights(name, _name_of(folder), _head_sha256(folder, verifier.backbone)),
    )


def _parallel(
    name: str, verifier: Verifier, options: dict[str, Any], sampling: Sampling
) -> ParallelTokens:
    """A PTP drafter with the weights that ship for the temperature, or those in a folder of the
    person's own.
    """
    given = str(options["weights"]).strip()
    folder = Path(given).expanduser() if given else shipped_folder(name, verifier, sampling)
    variant = load_config(folder).variant
    if variant != name:
        raise InputError(f"The drafter in {folder} is {variant}, not {name}.")
    weights = load_ptp(folder, verifier)
    return ParallelTokens(
        weights,
        verifier.backbone,
        options["most"],
        options["budget"],
        options["branches"],
        verifier.vocabulary.text_of,
        DrafterWeights(name, _name_of(folder), weights.sha256()),
    )


def _draft_model(verifier: Verifier, options: dict[str, Any], sampling: Sampling) -> DraftModel:
    small = load_draft_model(options["model"], verifier)
    trained = DrafterWeights(
        DraftModel.name, _name_of(Path(options["model"])), small.weights_sha256
    )
    return DraftModel(small.backbone, verifier.backbone.vocabulary_size, options["length"], trained)


def _name_of(folder: Path) -> str:
    """A folder's own name, without where it lies on this machine."""
    return folder.resolve().name


_hashes: WeakKeyDictionary[Backbone, dict[Path, str]] = WeakKeyDictionary()


def _head_sha256(folder: Path, backbone: Backbone) -> str:
    """SHA-256 over the safetensors files of a circuit's head, sorted by name; taken once, as the
    head itself is loaded once for a backbone.
    """
    known = _hashes.setdefault(backbone, {})
    if folder not in known:
        known[folder] = files_sha256(sorted(folder.glob("*.safetensors")))
    return known[folder]


MAKERS: dict[str, Maker] = {
    "ar": lambda verifier, options, sampling: Autoregressive(),
    "pld": lambda verifier, options, sampling: PromptLookup(**options),
    "lookahead": lambda verifier, options, sampling: Lookahead(verifier.backbone, **options),
    "stand": lambda verifier, options, sampling: AdaptiveNgrams(**options),
    "draft-model": _draft_model,
    "esp": lambda verifier, options, sampling: EmbeddingProbing(verifier.backbone, **options),
    **{name: partial(_circuit, name) for name in CIRCUITS},
    **{name: partial(_parallel, name) for name in PTP},
}


def make_drafter(
    name: str, given: Mapping[str, object], verifier: Verifier, sampling: Sampling
) -> Drafter:
    """A drafter or union with these options, for a run with this sampling.

    Raises InputError as `settle_options` does, and what making a member raises.
    """
    settled = settle_options(name, given)
    apart = by_members(name, settled)
    if len(apart) == 1:
        return MAKERS[name](verifier, settled, sampling)
    budget = int(settled["budget"])
    nodes = most_nodes(apart, budget)
    members = []
    for member, options in apart.items():
        options |= _share(member, options, nodes)
        members.append(MAKERS[member](verifier, options, sampling))
    return Union(members, budget, nodes)


def weights_of(drafter: Drafter) -> tuple[DrafterWeights, ...]:
    """The trained weights that a drafter, or a union's members, draft with."""
    members = drafter.members if isinstance(drafter, Union) else (drafter,)
    return tuple(
        member.trained
        for member in members
        if isinstance(member, ParallelTokens | CircuitDrafter | DraftModel)
        and member.trained is not None
    )


def _share(member: str, options: Mapping[str, Any], nodes: int) -> dict[str, int]:
    """What lets a member propose as many nodes as the union has room for."""
    if member == "pld":
        return {"budget": nodes}
    if member in ("stand", "esp"):
        return {"budget": 1 + nodes + probe_rows(member, options, nodes)}
    if member in CIRCUITS:
        return {"budget": 1 + nodes, "longest": nodes}
    if member == "draft-model":
        return {"length": min(int(options["length"]), nodes)}
    return {}
