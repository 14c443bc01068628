"""Recorded runs that ship with Draftscope: real runs, made by `python -m mtp record`."""

from __future__ import annotations

from pathlib import Path

from mtp.errors import TraceError
from mtp.records.trace import Trace
from viz.panel import ASSETS
from viz.runs import LiveRun, Store
from viz.texts import text

TRACES = ASSETS / "traces"
FIRST = "first"  # the run that is drawn at the first view
LABEL_LENGTH = 90  # characters of a prompt


def names_in(folder: Path, first: str = FIRST) -> list[str]:
    """The records that ship in a folder, the first view's first."""
    return sorted((path.stem for path in folder.glob("*.json")), key=lambda n: (n != first, n))


def content_of(folder: Path, name: str, missing: str) -> bytes:
    """A record that ships in a folder. Raises TraceError, in the words named `missing`, for a name
    that is none.
    """
    if name not in names_in(folder):
        raise TraceError(text(missing, name=name[:40]))
    return (folder / f"{name}.json").read_bytes()


def names() -> list[str]:
    """The recorded runs, the first view's first."""
    return names_in(TRACES)


def choices(store: Store) -> list[tuple[str, str]]:
    """(label, name) of the recorded runs, which are read into the store."""
    return [(keep(name, store)[1].label, name) for name in names()]


def read(name: str) -> Trace:
    """A recorded run by name. Raises TraceError for a name that is none."""
    return Trace.from_json(content_of(TRACES, name, "error.recorded"))


def keep(name: str, store: Store) -> tuple[str, LiveRun]:
    """A recorded run in the store, read once. Raises TraceError for a name that is none."""
    key = f"recorded-{name}"

    def live() -> LiveRun:
        trace = read(name)
        return LiveRun(label_of(trace), "recorded", name, trace.run, list(trace.steps), trace)

    return key, store.pinned(key, live)


def label_of(trace: Trace) -> str:
    """A run in a few words: who drafted on what, and the prompt's beginning."""
    prompt = " ".join(trace.run.prompt.split())
    short = prompt if len(prompt) <= LABEL_LENGTH else prompt[: LABEL_LENGTH - 1] + "…"
    return text("run.recorded", drafter=trace.run.drafter, model=trace.run.model, prompt=short)


def best_step(live: LiveRun) -> int:
    """The step, counted from 1, that shows most: many tokens stood, and some fell."""

    def score(index: int) -> tuple[int, int]:
        step = live.steps[index]
        return len(step.committed), sum(status == "rejected" for status in step.tree.status)

    return 1 + max(range(len(live.steps)), key=score, default=0)
