"""A circuit's view as the page shows it: figures, tables and sentences; opening saved views."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from mtp.circuits.structure import build
from mtp.errors import DraftscopeError, InputError, TraceError
from mtp.records.circuit import CircuitView, Mark, Sample
from viz import circuit_tables as tables
from viz import measured, panel, recorded
from viz.circuit_asked import Answer, Asked, answer
from viz.figures import circuit_beliefs, circuit_graph, circuit_samples
from viz.figures.circuit_graph import Lit
from viz.figures.tokens import visible
from viz.runs import Kept
from viz.texts import table, text

VIEWS = panel.ASSETS / "circuits"
FIRST = "btree-8"  # the recorded view that is shown first
MARKS: tuple[Mark, ...] = ("broken", "word", "unlikely")


@dataclass(frozen=True)
class Shown:
    """A view and where it comes from: a recorded one has a name; else from a model or a file."""

    view: CircuitView
    recorded: str | None = None
    opened: bool = False


def recorded_names() -> list[str]:
    """The recorded views, the first view's first."""
    return recorded.names_in(VIEWS, FIRST)


def keep_recorded(name: str, views: Kept[Shown]) -> tuple[str, Shown]:
    """A recorded view and its key, read once. Raises TraceError for a name that is none."""
    key = f"recorded-{name}"

    def shown() -> Shown:
        content = recorded.content_of(VIEWS, name, "circuit.error.recorded")
        return Shown(CircuitView.from_json(content), name)

    return key, views.pinned(key, shown)


def opened_from(content: bytes) -> CircuitView:
    """A saved view. Raises TraceError for what is none."""
    view = CircuitView.from_json(content)
    try:
        structure = build(view.circuit, view.window, view.rank)
    except InputError as error:
        raise TraceError(text("circuit.error.structure", why=str(error))) from error
    latents = tuple((one.parent, one.start, one.stop) for one in view.beliefs.latents)
    owners = tuple(one.owner for one in view.beliefs.positions)
    wanted = tuple((one.parent, one.start, one.stop) for one in structure.latents)
    if (latents, owners) != (wanted, structure.owners):
        raise TraceError(text("circuit.error.structure", why=text("circuit.error.latents")))
    return view


def label_of(view: CircuitView) -> str:
    """A view in a few words."""
    return text(
        "circuit.label.adapted" if view.lora else "circuit.label",
        circuit=text(f"circuit.name.{view.circuit}"),
        window=view.window,
        rank=view.rank,
        lora=view.lora,
        model=view.model,
        temperature=view.temperature,
    )


def view_of(shown: Shown) -> dict[str, Any]:
    """All of a view that no question changes."""
    view = shown.view
    figures = {"verdicts": panel.plain_figure(circuit_samples.verdicts(view, table()))}
    numbers = {"verdicts": tables.verdicts(view)}
    said = ""
    compared = measured.read(measured.CIRCUITS)
    if compared is not None and compared.plan["model"] == view.model:
        said = measured.said(compared)
        figures["acceptance"] = measured.figure(compared)
        numbers["acceptance"] = measured.numbers(compared)
    return {
        "label": text(f"circuit.{_origin(shown)}"),
        "title": label_of(view),
        "link": _link(shown),
        "name": f"draftscope-circuit-{view.circuit}-{view.window}.json",
        "latents": len(view.beliefs.latents),
        "window": view.window,
        "context": view.context,
        "prompt": view.prompt,
        "counts": {
            "joint": _counts(view, view.joint),
            "independent": _counts(view, view.independent),
        },
        "compared": _compared(view),
        "samples": {
            "joint": [tables.listed(one) for one in view.joint],
            "independent": [tables.listed(one) for one in view.independent],
        },
        "words": text("circuit.words.none")
        if view.known_words is None
        else text("circuit.words", words=f"{view.known_words:,}"),
        "bound": "" if view.kept is None else text("circuit.bound", kept=view.kept),
        "measured": said,
        "figures": figures,
        "tables": numbers,
    }


def _origin(shown: Shown) -> str:
    return "recorded" if shown.recorded else "opened" if shown.opened else "own"


def _counts(view: CircuitView, samples: tuple[Sample, ...]) -> list[str]:
    """How many samples have each kind of mark, each count in words."""
    counts = []
    for kind in MARKS:
        marked = sum(any(mark.kind == kind for mark in one.marks) for one in samples)
        unknown = kind == "word" and view.known_words is None
        key = f"circuit.count.{kind}" + (".unknown" if unknown else "")
        counts.append(text(key, count=marked, all=len(samples)))
    return counts


def _compared(view: CircuitView) -> str:
    """How far the median of each kind of sample is from the verifier's own, in nats."""
    medians = circuit_samples.medians(view)
    own = medians["verifier"]
    return text(
        "circuit.compared",
        own=tables.signed(own),
        joint=_beside(medians["joint"] - own),
        independent=_beside(medians["independent"] - own),
    )


def _beside(nats: float) -> str:
    return text("circuit.below" if nats < 0 else "circuit.above", nats=f"{abs(nats):.1f}")


def look_at(shown: Shown, asked: Asked) -> dict[str, Any]:
    """All of a view that a question changes; {"error"} with a sentence for one that can't be."""
    view = shown.view
    try:
        found = answer(view, asked)
    except DraftscopeError as error:
        return {"error": str(error)}
    sample = found.sample
    lit = None
    if sample is not None and len(sample.states) == len(view.beliefs.latents):
        lit = Lit(sample.states, sample.tokens)
    texts = table()
    graph = circuit_graph.figure(view, found.now, texts, asked.clamped, lit)
    states = sample.states if sample is not None else ()
    latents = circuit_beliefs.latents(view, found.latents, texts, asked.clamped, states)
    known = circuit_samples.information(view, found.information, texts, asked.pair)
    evidence = bool(found.tokens or asked.clamped)
    return {
        "figures": {
            "graph": panel.plain_figure(graph),
            "latents": panel.plain_figure(latents),
            "marginals": panel.plain_figure(circuit_beliefs.marginals(view, found.now, texts)),
            "information": panel.plain_figure(known),
        },
        "tables": {
            "graph": tables.weights(found.now),
            "latents": tables.states(view, found.latents),
            "marginals": tables.tokens(view, found.now),
            "information": tables.information(view, found.information),
        },
        "tokens": list(found.tokens),
        "texts": [visible(view.text_of(token)) for token in found.tokens],
        "bars": [share.token for one in found.now.positions for share in one.top],
        "said": _said(view, asked, found),
        "posterior": text("circuit.posterior.sample" if sample else "circuit.posterior.evidence")
        if sample or evidence
        else text("circuit.posterior.prior"),
        "informed": text("circuit.informed.evidence" if evidence else "circuit.informed.prior"),
        "pair": _pair_said(view, asked.pair, found) if asked.pair else None,
    }


def _pair_said(view: CircuitView, pair: tuple[int, int], found: Answer) -> dict[str, Any]:
    """What two positions say of each other: a sentence, and a table of their likeliest pairs."""
    first, second = pair
    bits = found.information[first][second]
    return {
        "said": text(
            "circuit.pair",
            first=first + 1,
            second=second + 1,
            bits=tables.number(bits),
            one=tables.number(found.information[first][first]),
            other=tables.number(found.information[second][second]),
        ),
        **tables.pairs(view, pair, found.pairs),
    }


def _said(view: CircuitView, asked: Asked, found: Answer) -> str:
    """What the graph shows, in words."""
    parts = []
    if found.tokens:
        read = " ".join(visible(view.text_of(token)) for token in found.tokens)
        p = tables.number(math.exp(found.now.log_evidence))
        key = "circuit.said.given" if asked.clamped is None else "circuit.said.given_held"
        count = len(found.tokens)
        parts.append(text(key, tokens=read, count=count, window=view.window, p=p))
    if asked.clamped is not None:
        latent, state = asked.clamped
        before = f"{found.before:.3g}"
        parts.append(text("circuit.said.held", latent=latent + 1, state=state + 1, before=before))
    sample = found.sample
    if sample is not None:
        shown = visible(sample.text)
        if len(sample.states) == len(view.beliefs.latents):
            parts.append(text("circuit.said.lit", text=shown, log_q=tables.signed(sample.log_q, 2)))
        else:
            parts.append(text("circuit.said.unlit", text=shown))
    if not parts:
        key = "circuit.said.free" if view.beliefs.latents else "circuit.said.ff"
        parts.append(text(key))
    return " ".join(parts)


def _link(shown: Shown) -> str | None:
    """The query that shows this view again; None where it would be too long."""
    if shown.recorded is not None:
        return urlencode({"tab": "circuit", "view": shown.recorded})
    view = shown.view
    query = urlencode(
        {
            "tab": "circuit", "model": view.model, "dtype": view.dtype, "mode": view.mode,
            "seed": str(view.seed), "circuit": view.circuit, "window": str(view.window),
            "rank": str(view.rank), "lora": str(view.lora), "context": view.prompt,
            "answer": view.answer,
        }
    )  # fmt: skip
    return query if len(query) <= panel.LINK_LENGTH else None
