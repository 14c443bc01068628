"""The losslessness check: the same prompt and noise by plain sampling, compared token by token."""

from __future__ import annotations

import copy
from collections.abc import Callable

from mtp.decode import Decoding
from mtp.models.backbone import Backbone
from mtp.models.verifier import Verifier
from mtp.records.equality import NEAR_EDGE, NEAR_GAP, Comparison, Parting
from mtp.records.settings import Settings
from mtp.records.trace import Committed, Step, TokenText
from mtp.run import start

FLOAT64_LIMIT = 400_000_000  # parameters; above, a float64 copy (8 bytes each) is too large

Progress = Callable[[str, int], None]
"""Told which run is under way ("plain", "drafted") and how many tokens it has."""


def compare(drafted: list[Step], plainly: list[Step], dtype: str, greedy: bool) -> Comparison:
    """Compares two runs' tokens up to the shorter one's end."""
    first = [token for step in drafted for token in step.committed]
    second = [token for step in plainly for token in step.committed]
    return Comparison(
        dtype=dtype,
        tokens=min(len(first), len(second)),
        parting=_parting(first, second, greedy),
    )


def _parting(first: list[Committed], second: list[Committed], greedy: bool) -> Parting | None:
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one.id != other.id:
            margin = min(one.margin, other.margin)
            return Parting(
                index=index,
                drafted=TokenText(one.id, one.text),
                plain=TokenText(other.id, other.text),
                margin=margin,
                near_tie=margin <= (NEAR_GAP if greedy else NEAR_EDGE),
            )
    return None


def fits_float64(verifier: Verifier) -> bool:
    """Whether a float64 copy of the model is small enough to make."""
    return verifier.backbone.model.num_parameters() <= FLOAT64_LIMIT


def in_float64(verifier: Verifier) -> Verifier:
    """A copy of the verifier that computes in float64, on the same device."""
    model = copy.deepcopy(verifier.backbone.model).double()
    return Verifier(verifier.name, verifier.weights_sha256, Backbone(model), verifier.vocabulary)


def run_plain(
    verifier: Verifier,
    settings: Settings,
    progress: Progress = lambda which, tokens: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Step]:
    """The steps of plain sampling under the settings' noise."""
    return _run(start(verifier, settings.plain(), stop)[0], "plain", progress)


def check_float64(
    verifier: Verifier,
    settings: Settings,
    progress: Progress = lambda which, tokens: None,
    stop: Callable[[], bool] = lambda: False,
) -> Comparison | None:
    """Both runs again in float64, where they must agree; None if stopped on the way."""
    precise = in_float64(verifier)
    plainly = _run(start(precise, settings.plain(), stop)[0], "plain", progress)
    drafted = _run(start(precise, settings, stop)[0], "drafted", progress)
    if stop():
        return None
    return compare(drafted, plainly, "float64", settings.temperature == 0)


def _run(decoding: Decoding, which: str, progress: Progress) -> list[Step]:
    for _ in decoding:
        progress(which, len(decoding.output_ids))
    return decoding.steps
