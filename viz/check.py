"""The losslessness check of a shown run: the work for the model, and what it says."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mtp.records.settings import settings_of
from viz.figures.tokens import visible
from viz.runs import Desk, Job, LiveRun, imported, leaving_a_processor
from viz.texts import text

if TYPE_CHECKING:
    from mtp.records.equality import Comparison


@dataclass
class Findings:
    """What the check has found so far."""

    here: Comparison | None = None
    precise: Comparison | None = None
    too_large: bool = False
    recorded: str | None = None
    """The model of a run that was not decoded here."""
    weights: tuple[str, str, str] | None = None
    """The model, and SHA-256 of the run's weights and of those here, where they differ."""


def check_into(found: Findings, live: LiveRun, desk: Desk, owner: str) -> Job:
    """Puts the check of a finished run in the line; `found` fills as it goes."""
    assert live.run is not None
    run = live.run
    tokens = sum(len(step.committed) for step in live.steps)
    settings = replace(settings_of(run), max_new_tokens=max(1, tokens))
    found.recorded = run.model if live.state in ("recorded", "opened") else None

    def work(job: Job) -> None:
        verifier = desk.verifier(run.model, run.dtype, job)
        if verifier.weights_sha256 != run.weights_sha256:
            found.weights = (run.model, run.weights_sha256, verifier.weights_sha256)
        imported("mtp.lossless")
        from mtp import lossless

        def progress(which: str, written: int) -> None:
            job.tell(text(f"check.running.{which}", tokens=written), written / max(1, tokens))

        def stop() -> bool:
            return job.stopped

        with leaving_a_processor():  # as the run had, so that both round alike
            plainly = lossless.run_plain(verifier, settings, progress, stop)
            if job.stopped:
                return
            greedy = settings.temperature == 0
            found.here = lossless.compare(live.steps, plainly, verifier.dtype, greedy)
            if verifier.dtype == "float64":
                return
            if not lossless.fits_float64(verifier):
                found.too_large = True
                return
            job.tell(text("check.copying"))
            found.precise = lossless.check_float64(verifier, settings, progress, stop)

    return desk.submit(work, owner)


def report(found: Findings, temperature: float) -> str:
    """The findings as HTML sentences."""
    lines: list[tuple[str, str]] = []
    if found.here is not None:
        lines += _about(found.here, temperature == 0)
        if found.recorded is not None:
            lines.append(("plain", text("check.recorded", model=found.recorded)))
        if found.weights is not None:
            model, theirs, mine = found.weights
            theirs, mine = theirs[:12], mine[:12]
            lines.append(("bad", text("check.weights", model=model, theirs=theirs, mine=mine)))
    if found.precise is not None:
        if found.precise.parting is None:
            lines.append(("good", text("check.equal.64", tokens=found.precise.tokens)))
        else:
            parting = found.precise.parting
            lines.append(
                (
                    "bad",
                    text("check.parts.64", index=parting.index + 1, margin=f"{parting.margin:.2g}"),
                )
            )
    if found.too_large:
        lines.append(("plain", text("check.large")))
    return "".join(sentence(words, kind) for kind, words in lines)


def sentence(words: str, kind: str = "plain") -> str:
    """One finding as HTML; kind is good, bad or plain."""
    return f'<p class="ds-finding ds-{kind}">{html.escape(words)}</p>'


def _about(one: Comparison, greedy: bool) -> list[tuple[str, str]]:
    if one.parting is None:
        return [("good", text("check.equal", tokens=one.tokens, dtype=one.dtype))]
    parting = one.parting
    parts = text(
        "check.parts",
        index=parting.index + 1,
        drafted=f"“{visible(parting.drafted.text)}”",
        plain=f"“{visible(parting.plain.text)}”",
        dtype=one.dtype,
    )
    key = "check.parts.far"
    if parting.near_tie:
        key = "check.parts.tie.greedy" if greedy else "check.parts.tie"
    elif one.dtype == "bfloat16":
        key = "check.parts.bf16"
    return [("bad", parts), ("plain", text(key, margin=f"{parting.margin:.1e}"))]
