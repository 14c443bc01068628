"""A context's noise as the page shows it: what is asked, figures, what it is kept with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from mtp.drafters.options import OPTIONS, PTP
from mtp.errors import InputError, TraceError
from mtp.models.catalog import DEFAULT_MODEL
from mtp.ptp.allocate import allocate, chances_of_ending
from mtp.records.noise import PLAIN, NoiseRecord, NoiseView, Sweep
from mtp.records.scaling import Scaling
from viz import noise_tables, panel, recorded
from viz.figures import noise_branches, noise_strips, noise_sweep, scaling
from viz.figures.tokens import visible
from viz.runs import Kept
from viz.texts import table, text

FOLDER = panel.ASSETS / "noise"
STUDY = panel.ASSETS / "bench" / "scaling.json"
MOST_VIEWS = 16  # of a context, kept
_ROWS = next(option for option in OPTIONS["o-ptp"] if option.name == "budget")
BUDGET, LEAST_BUDGET, MOST_BUDGET = (
    int(value or 0) for value in (_ROWS.default, _ROWS.low, _ROWS.high)
)  # noise rows a call, as page Decode allows them


@dataclass
class Shown:
    """A record and where it comes from: a recorded one's name, or a file; the views met so far."""

    record: NoiseRecord
    recorded: str | None = None
    opened: bool = False
    views: dict[tuple[float, ...], NoiseView] = field(default_factory=dict, repr=False)

    def view(self, noise: tuple[float, ...]) -> NoiseView | None:
        """The view of this noise; None where it has not been met."""
        return self.record.view if noise == self.record.view.noise else self.views.get(noise)

    def keep(self, view: NoiseView) -> None:
        """Keeps a view; the oldest is dropped."""
        self.views[view.noise] = view
        while len(self.views) > MOST_VIEWS:
            del self.views[next(iter(self.views))]

    def sweep(self, asked: Asked) -> Sweep | None:
        """The recorded sweep that is asked for: all noise but the swept place's is the recorded;
        None where there is none.
        """
        recorded = self.record.view.noise
        others = range(len(recorded))
        if any(recorded[at] != asked.noise[at] for at in others if at != asked.place):
            return None
        return self.record.sweep(asked.drafter, asked.place)


@dataclass(frozen=True)
class Asked:
    """What a person asks: the noise of each place, one of them (0-based), a drafter, a budget."""

    noise: tuple[float, ...]
    place: int
    drafter: str
    budget: int = BUDGET


def recorded_names() -> list[str]:
    """The recorded contexts, the first view's first."""
    return recorded.names_in(FOLDER)


def keep_recorded(name: str, kept: Kept[Shown]) -> tuple[str, Shown]:
    """A recorded context and its key, read once. Raises TraceError for a name that is none."""
    key = f"recorded-{name}"

    def shown() -> Shown:
        content = recorded.content_of(FOLDER, name, "noise.error.recorded")
        return Shown(NoiseRecord.from_json(content), name)

    return key, kept.pinned(key, shown)


def opened_from(content: bytes) -> Shown:
    """A saved context. Raises TraceError for what is none, or has drafters unknown here."""
    record = NoiseRecord.from_json(content)
    strange = sorted(set(record.drafters) - set(PTP))
    if strange:
        raise TraceError(text("noise.error.strange", drafter=strange[0][:40]))
    return Shown(record, opened=True)


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
    if not _whole(budget) or not LEAST_BUDGET <= budget <= MOST_BUDGET:
        raise InputError(text("noise.error.budget", least=LEAST_BUDGET, most=MOST_BUDGET))
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
    label = text("noise.recorded" if shown.recorded else "noise.own")
    return {
        "label": text("player.opened") if shown.opened else label,
        "title": text(
            "noise.title" if record.seeded else "noise.title.moved", model=record.model,
            temperature=f"{question.temperature:g}", seed=question.seed,
        ),
        "context": record.context,
        "prompt": question.prompt,
        "noise": list(record.view.noise),
        "seeded": record.seeded,
        "budget": [BUDGET, LEAST_BUDGET, MOST_BUDGET],
        "names": [
            [PLAIN, text(f"noise.row.{PLAIN}"), text(f"noise.row.{PLAIN}.is")],
            *([name, text(f"noise.row.{name}"), _definition(record, name)]
              for name in record.drafters),
        ],
        "link": _link(shown),
        "tally": noise_tables.tally_of(record),
        "tally_said": text(
            "noise.tally.said", noises=record.noises, places=len(record.view.noise)
        ),
        "study": _study(STUDY, record.model),
        "none": "" if record.drafters else _none_for(record.model),
    }  # fmt: skip


def _definition(record: NoiseRecord, name: str) -> str:
    return noise_tables.definition_of(name, record.drafters[name], _told(record, name))


def _told(record: NoiseRecord, name: str) -> bool:
    """Whether a drafter is told its first token."""
    return record.view.foreseen[name][0].told


def file_of(record: NoiseRecord) -> dict[str, str]:
    """A context as a file that can be opened again."""
    name = f"draftscope-noise-{record.model.rpartition('/')[2]}.json"
    return {"name": name, "content": record.to_json()}


def look_at(record: NoiseRecord, view: NoiseView, asked: Asked) -> dict[str, Any]:
    """All that a slider changes at once: rows of tokens, strips, branches."""
    answer: dict[str, Any] = {
        "noise": list(view.noise),
        "rows": noise_tables.cells_of(view),
        "drafts": noise_tables.drafts_of(view),
        "figures": {"strips": noise_strips.figure(view, table())},
        "tables": {
            "strips": noise_tables.strips_table(view),
            "drafts": noise_tables.drafts_table(view),
        },
        "said": noise_tables.said_of(view),
        "shared": "",
    }
    if asked.drafter:
        rows_of, ending = branches(record, view, asked)
        if not record.drafters[asked.drafter].rank:
            answer["shared"] = text("noise.branches.none")
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
    A drafter without an adapter places no rows.
    """
    facts = record.drafters[asked.drafter]
    drafts = view.foreseen[asked.drafter][1:]
    ending = chances_of_ending([one.chance for one in drafts])
    if not facts.rank:
        return [0] * len(ending), ending
    longest = [len(view.noise) - 1 + facts.replaced] * len(ending)
    return allocate(ending, asked.budget, longest, facts.gains), ending


def sweep_at(record: NoiseRecord, sweep: Sweep, asked: Asked) -> dict[str, Any]:
    """A sweep's figure and table."""
    now, told = asked.noise[sweep.place], _told(record, asked.drafter)
    heads = [text("noise.table.noise")]
    heads += [
        text("noise.table.place", place=sweep.place + 1 + j) for j in range(len(sweep.texts[0]))
    ]
    return {
        "figure": panel.plain_figure(noise_sweep.figure(sweep, now, table(), told)),
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
    heads = ("size", "parameters", "row_count", "minutes", "accepted", "unread")
    return {
        "said": text("noise.scaling.said", prompts=study.prompts, length=study.length,
                     temperature=f"{study.temperature:g}"),
        "figure": panel.plain_figure(scaling.figure(study, table())),
        "table": {
            "heads": [text(f"noise.table.{name}") for name in heads],
            "rows": [
                [one.label, f"{one.parameters:,}", f"{point.rows:,}", f"{point.minutes:.1f}",
                 f"{point.accepted:.2f}", f"{point.unread:.2f}"]
                for one in study.sizes
                for point in one.curve
            ],
        },
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
            "places": str(question.places), "behind": question.prompt, "answer": question.answer,
        }
    )  # fmt: skip
    return query if len(query) <= panel.LINK_LENGTH else None
