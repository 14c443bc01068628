"""A circuit's view as the page shows it: figures, tables and sentences, with and without evidence.

Without evidence everything is in the record; with some, the circuit is conditioned anew, which
takes torch but no model.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from mtp.errors import DraftscopeError, InputError, TraceError
from mtp.records.circuit import Beliefs, CircuitView, Sample
from viz import circuit_tables as tables
from viz import measured, panel
from viz.figures import circuit_beliefs, circuit_graph, circuit_samples
from viz.figures.circuit_graph import Lit
from viz.figures.tokens import visible
from viz.runs import Kept, imported
from viz.texts import table, text

if TYPE_CHECKING:
    from mtp.circuits.circuit import Circuit

VIEWS = panel.ASSETS / "circuits"
FIRST = "btree-8"  # the recorded view that is shown first
MOST_GIVEN = 400  # characters of a window that a person types
MOST_DRAWN = 100_000  # samples in a row


@dataclass(frozen=True)
class Shown:
    """A view and where it comes from: a recorded one has a name."""

    view: CircuitView
    recorded: str | None = None


@dataclass(frozen=True)
class Asked:
    """What a person asks of a circuit: a window's beginning, a latent's state, a sample.

    sample: (joint | independent | drawn, number).
    """

    given: str = ""
    clamped: tuple[int, int] | None = None
    sample: tuple[str, int] | None = None


@dataclass(frozen=True)
class Answer:
    """The circuit under what was asked. `latents`: its beliefs, or with a sample chosen the
    posterior given that sample (and the held state). `before`: of the held state, without evidence.
    """

    tokens: tuple[int, ...]
    now: Beliefs
    latents: Beliefs
    sample: Sample | None
    before: float


def recorded_names() -> list[str]:
    """The recorded views, the first view's first."""
    return sorted((path.stem for path in VIEWS.glob("*.json")), key=lambda n: (n != FIRST, n))


def keep_recorded(name: str, views: Kept[Shown]) -> str:
    """The key of a recorded view, which is read once. Raises TraceError for a name that is none."""
    if name not in recorded_names():
        raise TraceError(text("circuit.error.recorded", name=name[:40]))
    key = f"recorded-{name}"
    if views.get(key) is None:
        content = (VIEWS / f"{name}.json").read_bytes()
        views.pin(key, Shown(CircuitView.from_json(content), name))
    return key


def label_of(view: CircuitView) -> str:
    """A view in a few words."""
    circuit = text(f"circuit.name.{view.circuit}")
    return text(
        "circuit.label",
        circuit=circuit,
        window=view.window,
        model=view.model,
        temperature=view.temperature,
    )


def asked_from(plain: object) -> Asked:
    """What the page asks, {"given", "clamp": [latent, state], "sample": [kind, number]}, checked
    for its form. Raises InputError.
    """
    if not isinstance(plain, dict):
        raise InputError(text("circuit.error.asked"))
    words, clamp, sample = plain.get("given") or "", plain.get("clamp"), plain.get("sample")
    if not isinstance(words, str) or not _pair(clamp, int) or not _pair(sample, str):
        raise InputError(text("circuit.error.asked"))
    if len(words) > MOST_GIVEN:
        raise InputError(text("circuit.error.long", most=MOST_GIVEN))
    clamped = None if clamp is None else (clamp[0], clamp[1])
    return Asked(words, clamped, None if sample is None else (sample[0], sample[1]))


def _pair(value: object, first: type) -> bool:
    if value is None:
        return True
    whole = isinstance(value, list) and len(value) == 2 and isinstance(value[0], first)
    return whole and isinstance(value[1], int) and not isinstance(value[1], bool)  # type: ignore[index]


def answer(view: CircuitView, asked: Asked) -> Answer:
    """Conditions the circuit on what was asked. Raises InputError for what is not there, or for
    evidence that the circuit finds impossible.
    """
    tokens = view.read(asked.given)
    if not tokens and asked.clamped is None and asked.sample is None:
        return Answer((), view.beliefs, view.beliefs, None, 0.0)
    imported("mtp.circuits.view")
    from mtp.circuits.view import beliefs, circuit_of, given

    circuit = circuit_of(view.circuit, view.numbers)
    held, log_evidence = given(circuit, tokens, asked.clamped)
    plain = not tokens and asked.clamped is None
    now = view.beliefs if plain else beliefs(held, log_evidence, circuit)
    sample = _sample(view, asked.sample, held)
    latents = now
    if sample is not None:
        latents = beliefs(given(circuit, view.cut(sample.tokens), asked.clamped)[0])
    before = 0.0
    if asked.clamped is not None:
        latent, state = asked.clamped
        before = view.beliefs.latents[latent].marginal[state]
    return Answer(tokens, now, latents, sample, before)


def _sample(view: CircuitView, asked: tuple[str, int] | None, held: Circuit) -> Sample | None:
    if asked is None:
        return None
    kind, number = asked
    if kind == "drawn" and 0 < number <= MOST_DRAWN:
        from mtp.circuits.view import draw_one

        tokens, states, log_q = draw_one(held, view.seed, number)
        return Sample(tokens, states, view.shown(tokens), log_q, float("nan"), ())
    samples = {"joint": view.joint, "independent": view.independent}.get(kind, ())
    if not 0 <= number < len(samples):
        raise InputError(text("circuit.error.sample"))
    return samples[number]


def view_of(shown: Shown) -> dict[str, Any]:
    """All of a view that no question changes."""
    view = shown.view
    figures = {
        "information": panel.plain_figure(circuit_samples.information(view, table())),
        "verdicts": panel.plain_figure(circuit_samples.verdicts(view, table())),
    }
    numbers = {"information": tables.information(view), "verdicts": tables.verdicts(view)}
    said = ""
    compared = measured.read(measured.CIRCUITS)
    if compared is not None and compared.plan["model"] == view.model:
        said = measured.said(compared)
        figures["acceptance"] = measured.figure(compared)
        numbers["acceptance"] = measured.numbers(compared)
    return {
        "label": text("circuit.recorded" if shown.recorded else "circuit.own"),
        "title": label_of(view),
        "link": _link(shown),
        "name": f"draftscope-circuit-{view.circuit}-{view.window}.json",
        "latents": len(view.beliefs.latents),
        "context": view.context,
        "prompt": view.prompt,
        "counts": {
            kind: text(
                f"circuit.count.{kind}",
                bad=sum(bool(s.marks) for s in samples),
                all=len(samples),
                median=tables.signed(statistics.median(s.log_p for s in samples)),
            )
            for kind, samples in (("joint", view.joint), ("independent", view.independent))
        },
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
    return {
        "figures": {
            "graph": panel.plain_figure(graph),
            "latents": panel.plain_figure(latents),
            "marginals": panel.plain_figure(circuit_beliefs.marginals(view, found.now, texts)),
        },
        "tables": {
            "graph": tables.weights(found.now),
            "latents": tables.states(view, found.latents),
            "marginals": tables.tokens(view, found.now),
        },
        "read": len(found.tokens),
        "bars": [view.text_of(share.token) for one in found.now.positions for share in one.top],
        "said": _said(view, asked, found),
        "posterior": text("circuit.posterior.sample" if sample else "circuit.posterior.evidence")
        if sample or found.tokens or asked.clamped
        else text("circuit.posterior.prior"),
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
            "context": view.prompt, "answer": view.answer,
        }
    )  # fmt: skip
    return query if len(query) <= panel.LINK_LENGTH else None
