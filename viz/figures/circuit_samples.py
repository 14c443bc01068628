"""What the positions say about each other, and how likely the verifier finds the samples."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from mtp.records.circuit import CircuitView, Sample
from viz import theme
from viz.figures import tokens
from viz.figures.circuit_beliefs import BRIGHT, DARK
from viz.figures.circuit_traces import CHOSEN

SQUARE = 330  # px, height of the map
LANES = ("independent", "joint", "verifier")  # from the bottom up
JITTER = 0.055  # of a lane, so that samples of one likelihood stay apart
HEIGHT = 250
MEDIAN = 0.34  # of a lane, from its middle to its median's number
MINUS = "\u2212"
FLOOR_BITS = 0.01  # a scale that ends below this would make rounding look like structure


def information(
    view: CircuitView,
    now: Sequence[Sequence[float]],
    texts: Mapping[str, str],
    pair: tuple[int, int] | None = None,
) -> go.Figure:
    """Position × position, mutual information in bits; the diagonal, entropy, is left out.

    `now`: the table under what is asked; `pair`: the chosen one, in a frame. customdata of a cell:
    its positions, or none on the diagonal.
    """
    window = view.window
    names = [f"+{place + 1}" for place in range(window)]
    cells = [[None if i == j else now[i][j] for j in range(window)] for i in range(window)]
    tables = (view.information, now)  # one scale, so that evidence does not recolour the rest
    most = max((t[i][j] for t in tables for i in range(window) for j in range(i)), default=0.0)
    figure = go.Figure()
    figure.add_heatmap(
        x=names,
        y=names,
        z=cells,
        customdata=[
            [None if i == j else [min(i, j), max(i, j)] for j in range(window)]
            for i in range(window)
        ],
        zmin=0,
        zmax=max(most, FLOOR_BITS),
        colorscale="Viridis",
        xgap=1,
        ygap=1,
        hoverongaps=False,
        hovertemplate=texts["circuit.information.hover"] + "<extra></extra>",
        colorbar={"title": {"text": texts["circuit.information.scale"], "side": "top"},
                  "thickness": 10, "outlinewidth": 0},
    )  # fmt: skip
    both = [pair, pair[::-1]] if pair else []
    for colour, width in ((DARK, 5), (BRIGHT, 2)):
        figure.add_scatter(
            x=[names[j] for _, j in both],
            y=[names[i] for i, _ in both],
            mode="markers",
            marker={"symbol": "square-open", "size": 15, "color": colour, "line": {"width": width}},
            hoverinfo="skip",
            name="chosen",
        )
    axis = {"showgrid": False, "fixedrange": True, "type": "category", "categoryarray": names}
    figure.update_layout(
        **theme.layout(
            SQUARE,
            margin={"l": 44, "b": 44, "t": 10},
            xaxis={**axis, "title": {"text": texts["circuit.information.x"]}},
            yaxis={**axis, "autorange": "reversed"},
            dragmode=False,
        )
    )
    return figure


def verdicts(view: CircuitView, texts: Mapping[str, str]) -> go.Figure:
    """The verifier's log p of its own samples, the joint and the independent ones, in lanes, each
    with its median.

    customdata of a sample: [kind, index, text]. Impossible ones are hollow with a cross.
    """
    figure = go.Figure()
    figure.add_scatter(
        x=list(view.verifier_log_p),
        y=[LANES.index("verifier")] * len(view.verifier_log_p),
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 16, "color": theme.VERIFIER, "opacity": 0.7},
        name="verifier",
        hovertemplate=texts["circuit.verdicts.own"] + "<extra></extra>",
    )
    for kind, samples in (("joint", view.joint), ("independent", view.independent)):
        for bad in (False, True):
            members = [n for n, one in enumerate(samples) if bool(one.marks) == bad]
            _add_lane(figure, kind, samples, members, bad, texts)
    _add_medians(figure, view, texts)
    figure.add_annotation(
        x=view.threshold, y=1, yref="paper", yanchor="bottom", showarrow=False,
        text=texts["circuit.verdicts.threshold"],
    )  # fmt: skip
    figure.update_layout(
        **theme.layout(
            HEIGHT,
            margin={"l": 100, "t": 22},
            xaxis={"title": {"text": texts["circuit.verdicts.x"]}, "fixedrange": True},
            yaxis={"tickvals": list(range(len(LANES))), "range": [-0.6, len(LANES) - 0.4],
                   "ticktext": [texts[f"circuit.lane.{lane}"] for lane in LANES],
                   "fixedrange": True, "showgrid": False},
            shapes=[
                {"type": "line", "x0": view.threshold, "x1": view.threshold, "y0": 0, "y1": 1,
                 "yref": "paper", "line": {"color": theme.NEUTRAL_TEXT, "dash": "dot", "width": 1}}
            ],
            dragmode=False,
            hovermode="closest",
        )
    )  # fmt: skip
    return figure


def medians(view: CircuitView) -> dict[str, float]:
    """The median log p of every lane, in nats."""
    said = {
        "verifier": view.verifier_log_p,
        "joint": [one.log_p for one in view.joint],
        "independent": [one.log_p for one in view.independent],
    }
    return {lane: statistics.median(values) for lane, values in said.items()}


def _add_medians(figure: go.Figure, view: CircuitView, texts: Mapping[str, str]) -> None:
    found = medians(view)
    figure.add_scatter(
        x=list(found.values()),
        y=[LANES.index(lane) for lane in found],
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 34, "color": CHOSEN, "line": {"width": 2}},
        name="medians",
        hovertemplate=texts["circuit.verdicts.median.hover"] + "<extra></extra>",
    )
    for lane, median in found.items():
        words = texts["circuit.verdicts.median"].format(median=f"{median:.1f}".replace("-", MINUS))
        figure.add_annotation(
            x=median, y=LANES.index(lane) + MEDIAN, text=words, showarrow=False, yanchor="bottom",
            font={"size": theme.SIZES["small"]},
        )  # fmt: skip


def _add_lane(
    figure: go.Figure,
    kind: str,
    samples: tuple[Sample, ...],
    members: list[int],
    bad: bool,
    texts: Mapping[str, str],
) -> None:
    marker: dict[str, Any] = {"symbol": "circle", "size": 10, "color": theme.UNREACHED}
    if bad:
        marker = {"symbol": "circle-x-open", "size": 11, "color": theme.REJECTED,
                  "line": {"width": 1.6}}  # fmt: skip
    figure.add_scatter(
        x=[samples[n].log_p for n in members],
        y=[LANES.index(kind) + JITTER * (n % 7 - 3) for n in members],
        customdata=[[kind, n, tokens.full(samples[n].text)] for n in members],
        mode="markers",
        marker=marker,
        name=f"{kind} {'impossible' if bad else 'possible'}",
        hovertemplate=texts["circuit.verdicts.hover"] + "<extra></extra>",
    )
