"""A context's noise as the page shows it: rows of tokens, figures, tables, sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from mtp.errors import InputError, TraceError
from mtp.models.catalog import DEFAULT_MODEL
from mtp.ptp.allocate import allocate, chances_of_ending
from mtp.records.noise import Foreseen, NoiseRecord, NoiseView, Sweep
from mtp.records.scaling import Scaling
from viz import panel
from viz.figures import noise_branches, noise_strips, noise_sweep, scaling
from viz.figures.tokens import visible
from viz.runs import Kept
from viz.texts import table, text

if TYPE_CHECKING:
    from mtp.ptp.explore import NoiseExplorer

FOLDER = panel.ASSETS / "noise"
STUDY = panel.ASSETS / "bench" / "scaling.json"
PLAIN = "plain"
BUDGET, MOST_BUDGET = 24, 256  # noise rows a call


@dataclass
class Shown:
    """A record and where it comes from; the explorer that answers for other noise, once made."""

    record: NoiseRecord
    recorded: str | None = None
    explorer: NoiseExplorer | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Asked:
    """What a person asks: the noise of each place, one of them (0-based), a drafter, a budget."""

    noise: tuple[float, ...]
    place: int
    drafter: str
    budget: int = BUDGET


def recorded_names() -> list[str]:
    """The recorded contexts."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def keep_recorded(name: str, kept: Kept[Shown]) -> str:
    """The key of a recorded context, read once. Raises TraceError for a name that is none."""
    if name not in recorded_names():
        raise TraceError(text("noise.error.recorded", name=name[:40]))
    key = f"recorded-{name}"
    if kept.get(key) is None:
        content = (FOLDER / f"{name}.json").read_bytes()
        kept.pin(key, Shown(NoiseRecord.from_json(content), name))
    return key


def asked_from(plain: object, record: NoiseRecord) -> Asked:
    """What the page asks, {"noise", "place", "drafter", "budget"}, checked. Raises InputError."""
    places = len(record.view.noise)
    if not isinstance(plain, dict):
        raise InputError(text("noise.error.asked"))
    noise = plain.get("noise") or list(record.view.noise)
    place, budget = plain.get("place", 0), plain.get("budget", BUDGET)
    drafter = plain.get("drafter") or next(iter(record.drafters), "")
    if not record.drafters:
        drafter = ""  # nothing is drafted, whatever is asked
    whole = isinstance(noise, list) and len(noise) == places
    if not whole or not all(_real(u) and 0 <= u < 1 for u in noise):
        raise InputError(text("noise.error.noise", places=places))
    if not _whole(place) or not 0 <= place < places:
        raise InputError(text("noise.error.place", places=places))
    if not _whole(budget) or not 1 <= budget <= MOST_BUDGET:
        raise InputError(text("noise.error.budget", most=MOST_BUDGET))
    if drafter and (not isinstance(drafter, str) or drafter not in record.drafters):
        raise InputError(text("noise.error.drafter", given=str(drafter)[:40]))
    return Asked(tuple(float(u) for u in noise), place, str(drafter), budget)


def _real(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)  # type: ignore[arg-type]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def head_of(shown: Shown) -> dict[str, Any]:
    """All that no slider changes."""
    record = shown.record
    question = record.question
    return {
        "label": text("noise.recorded" if shown.recorded else "noise.own"),
        "title": text(
            "noise.title", model=record.model, temperature=f"{question.temperature:g}",
            seed=question.seed,
        ),
        "context": record.context,
        "prompt": question.prompt,
        "noise": list(record.view.noise),
        "names": [[name, text(f"noise.row.{name}")] for name in [PLAIN, *record.drafters]],
        "link": _link(shown),
        "file": record.to_json(),
        "name": f"draftscope-noise-{record.model.rpartition('/')[2]}.json",
        "tally": _tally(record),
        "tally_said": text(
            "noise.tally.said", noises=record.noises, places=len(record.view.noise)
        ),
        "study": _study(STUDY, record.model),
        "none": "" if record.drafters else _none_for(record.model),
    }  # fmt: skip


def look_at(record: NoiseRecord, view: NoiseView, asked: Asked) -> dict[str, Any]:
    """All that a slider changes at once: rows of tokens, strips, branches."""
    rows = {PLAIN: [_plain_cell(one) for one in view.plain]}
    for name, foreseen in view.foreseen.items():
        rows[name] = _cells(foreseen)
    answer: dict[str, Any] = {
        "noise": list(view.noise),
        "rows": rows,
        "figures": {"strips": noise_strips.figure(view, table())},
        "tables": {"strips": _strips_table(view)},
        "said": _said(view),
    }
    if asked.drafter:
        rows_of, ending = branches(record, view, asked)
        answer["figures"]["branches"] = noise_branches.figure(rows_of, ending, table())
        answer["tables"]["branches"] = {
            "heads": [text(f"noise.table.{name}") for name in ("behind", "chance", "rows")],
            "rows": [[d, f"{chance:.3g}", count]
                     for d, (count, chance) in enumerate(zip(rows_of, ending, strict=True))],
        }  # fmt: skip
    return answer


def branches(record: NoiseRecord, view: NoiseView, asked: Asked) -> tuple[list[int], list[float]]:
    """Noise rows behind 0, 1, … drafts, and the chance that exactly so many stand.

    The drafts are what a step would hold after this call: all but the first token, the verifier's.
    """
    facts = record.drafters[asked.drafter]
    drafts = view.foreseen[asked.drafter][1:]
    ending = chances_of_ending([one.chance for one in drafts])
    longest = [len(view.noise) - 1 + facts.replaced] * len(ending)
    return allocate(ending, asked.budget, longest, facts.gains), ending


def sweep_at(sweep: Sweep, now: float) -> dict[str, Any]:
    """A sweep's figure and table."""
    heads = [text("noise.table.noise")]
    heads += [
        text("noise.table.place", place=sweep.place + 1 + j) for j in range(len(sweep.texts[0]))
    ]
    return {
        "figure": panel.plain_figure(noise_sweep.figure(sweep, now, table())),
        "table": {
            "heads": heads,
            "rows": [
                [
                    f"{u:.3f}",
                    *(f"{visible(word)} {p:.2f}" for word, p in zip(line, ps, strict=True)),
                ]
                for u, line, ps in zip(sweep.noise, sweep.texts, sweep.probabilities, strict=True)
            ],
        },
    }


def _none_for(model: str) -> str:
    said = text("noise.none", model=model)
    return said if model == DEFAULT_MODEL else f"{said} {text('noise.none.choose')}"


@cache
def _study(path: Path, model: str) -> dict[str, Any] | None:
    """The scaling study that ships for a model; None where there is none."""
    if not path.is_file():
        return None
    study = Scaling.from_json(path.read_bytes())
    if study.model != model:
        return None
    heads = ("size", "parameters", "row_count", "minutes", "percall")
    return {
        "said": text("noise.scaling.said", prompts=study.prompts, length=study.length,
                     temperature=f"{study.temperature:g}"),
        "figure": panel.plain_figure(scaling.figure(study, table())),
        "table": {
            "heads": [text(f"noise.table.{name}") for name in heads],
            "rows": [
                [one.label, f"{one.parameters:,}", f"{point.rows:,}", f"{point.minutes:.1f}",
                 f"{point.tokens_per_call:.2f}"]
                for one in study.sizes
                for point in one.curve
            ],
        },
    }  # fmt: skip


def _plain_cell(one: Any) -> dict[str, Any]:
    low, high = one.interval
    about = text("noise.cell.plain", u=f"{one.u:.3f}", low=f"{low:.3f}", high=f"{high:.3f}")
    return {"text": visible(one.text), "state": "verifier", "about": about}


def _cells(foreseen: tuple[Foreseen, ...]) -> list[dict[str, Any]]:
    """A drafter's row: a token stands while all before it stand; after that it is unreached."""
    cells = []
    reached = True
    for place, one in enumerate(foreseen):
        state = "accepted" if reached and one.picked else "rejected" if reached else "unreached"
        about = text(
            "noise.cell.foreseen", p=f"{one.probability:.3g}", verifier=f"{one.verifier:.3g}"
        )
        impossible = place > 0 and one.impossible
        if impossible:
            about += " " + text("noise.cell.impossible")
        cells.append({"text": visible(one.text), "state": state, "about": about,
                      "impossible": impossible})  # fmt: skip
        reached = reached and one.picked
    return cells


def _said(view: NoiseView) -> str:
    written = "".join(one.text for one in view.plain)
    said = text("noise.said.plain", written=visible(written))
    if view.foreseen:
        places = len(view.noise)
        parts = [
            text("noise.said.right", drafter=text(f"noise.row.{name}"), right=view.right(name))
            for name in view.foreseen
        ]
        said += " " + text("noise.said.row", parts=", ".join(parts), places=places)
    return said


def _tally(record: NoiseRecord) -> dict[str, Any]:
    heads = ("drafter", "right", "impossible", "trained")
    facts = record.drafters
    return {
        "heads": [text(f"noise.table.{name}") for name in heads],
        "rows": [
            [
                text(f"noise.row.{name}"),
                f"{one.right:.2f}",
                f"{100 * one.impossible:.2g}%",
                f"{facts[name].temperature:g}" if name in facts else "–",
            ]
            for name, one in record.tallies.items()
        ],
    }


def _strips_table(view: NoiseView) -> dict[str, Any]:
    heads = ("position", "noise", "token", "from", "to", "picked")
    return {
        "heads": [text(f"noise.table.{name}") for name in heads],
        "rows": [
            [place + 1, f"{picked.u:.3f}", visible(word), f"{low:.4f}", f"{high:.4f}",
             "●" if (low, high) == picked.interval else ""]
            for place, picked in enumerate(view.plain)
            for word, low, high in picked.strip
        ],
    }  # fmt: skip


def _link(shown: Shown) -> str | None:
    """The query that shows this context again; None where it would be too long."""
    if shown.recorded is not None:
        return urlencode({"tab": "noise", "noises": shown.recorded})
    record, question = shown.record, shown.record.question
    query = urlencode(
        {
            "tab": "noise", "model": record.model, "dtype": record.dtype, "mode": question.mode,
            "seed": str(question.seed), "temperature": f"{question.temperature:g}",
            "top_k": str(question.top_k), "top_p": f"{question.top_p:g}",
            "behind": question.prompt, "answer": question.answer,
        }
    )  # fmt: skip
    return query if len(query) <= panel.LINK_LENGTH else None
