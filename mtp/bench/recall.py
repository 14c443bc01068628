"""ESP's tokens per call beside what its mask foresees: 1 + top-K recall over the same texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from mtp.bench.decoders import parse_decoder
from mtp.bench.measure import read_plan, read_rows
from mtp.drafters.esp import EmbeddingProbing
from mtp.drafters.options import settle_options
from mtp.errors import InputError
from mtp.models.verifier import Verifier
from mtp.probing.masks import Init, initial_masks
from mtp.probing.recall import foreseen_ranks
from mtp.records.bench import BenchRow
from mtp.records.trace import Mode

_NEEDED = {"model", "weights_sha256", "dtype", "decoders", "options", "prompts", "mode", "seed"}


@dataclass(frozen=True)
class Recall:
    """A decoder of one frozen mask that drafts `candidates` tokens a step.

    recall: of the tokens it wrote, over all places, the share among the mask's first candidates.
    A step stands where its token is among them, so tokens per call should be 1 + recall, but for
    which places come to be roots.
    """

    decoder: str
    candidates: int
    places: int
    tokens_per_call: float
    recall: float

    @property
    def gap(self) -> float:
        """Tokens per call less 1 + recall."""
        return self.tokens_per_call - 1 - self.recall


def whole_plan(folder: Path) -> dict[str, Any]:
    """`read_plan`, with all that is needed here. Raises InputError where there is less."""
    plan = read_plan(folder)
    missing = _NEEDED - plan.keys()
    if missing:
        raise InputError(f"The plan in {folder} lacks {', '.join(sorted(missing))}.")
    return plan


def recalls(
    verifier: Verifier, folder: Path, tell: Callable[[str], None] = lambda line: None
) -> list[Recall]:
    """One for each decoder of the measurement that is ESP with one mask that never moves.

    Raises InputError where there is none, or where it was measured on other weights.
    """
    plan, rows = whole_plan(folder), read_rows(folder)
    if plan["weights_sha256"] != verifier.weights_sha256:
        raise InputError(f"{folder} was measured on other weights than {verifier.name} has here.")
    found = []
    for label in plan["decoders"]:
        decoder = parse_decoder(label)
        if decoder.name != "esp":
            continue
        given = {**plan["options"].get(label, {}), **decoder.options}
        options = settle_options("esp", given)
        if options["masks"] != 1 or options["update"]:
            continue
        tell(label)
        mine = [row for row in rows if row.decoder == label and row.repeat == 0]
        found.append(_recall_of(verifier, plan, label, options, mine))
    if not found:
        raise InputError(f"{folder} has no esp of one mask that never moves (masks=1, update=0).")
    return found


def _recall_of(
    verifier: Verifier,
    plan: dict[str, Any],
    label: str,
    options: dict[str, Any],
    rows: list[BenchRow],
) -> Recall:
    backbone = verifier.backbone
    candidates = EmbeddingProbing(backbone, **options).nodes
    mode, init = cast(Mode, plan["mode"]), cast(Init, options["init"])
    hits: list[np.ndarray] = []
    for row in rows:
        ids = verifier.vocabulary.encode(plan["prompts"][row.prompt_index], mode)
        if len(row.ids) < 2:
            continue
        masks = initial_masks(backbone, ids, 1, init, plan["seed"])
        ranks = foreseen_ranks(backbone, ids, row.ids, masks)[:, 0]
        hits.append((ranks >= 0) & (ranks < candidates))
    calls = sum(row.verifier_calls or 0 for row in rows)
    whole = np.concatenate(hits) if hits else np.zeros(0, dtype=bool)
    return Recall(
        decoder=label,
        candidates=candidates,
        places=len(whole),
        tokens_per_call=sum(row.new_tokens for row in rows) / max(1, calls),
        recall=float(whole.mean()) if len(whole) else 0.0,
    )


def as_text(found: list[Recall]) -> str:
    """A table of plain text."""
    lines = [f"{'decoder':18} {'K':>4} {'places':>7} {'τ':>6} {'1 + recall':>11} {'gap':>7}"]
    lines += [
        f"{one.decoder:18} {one.candidates:4} {one.places:7} {one.tokens_per_call:6.3f} "
        f"{1 + one.recall:11.3f} {one.gap:+7.3f}"
        for one in found
    ]
    return "\n".join(lines)


def as_json(found: list[Recall]) -> str:
    """The same as JSON text."""
    return json.dumps([{**asdict(one), "gap": one.gap} for one in found], indent=1) + "\n"
