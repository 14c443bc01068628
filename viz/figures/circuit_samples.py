"""What the positions say about each other, and how likely the verifier finds the samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from mtp.records.circuit import CircuitView, Sample
from viz import theme
from viz.figures import tokens

SQUARE = 330  # px, height of the map
LANES = ("independent", "joint", "verifier")  # from the bottom up
JITTER = 0.055  # of a lane, so that samples of one likelihood stay apart
HEIGHT = 230
FLOOR_BITS = 0.01  # a scale that ends below this would make rounding look like structure


def information(view: CircuitView, texts: Mapping[str, str]) -> go.Figure:
    """Position × position, mutual information in bits; the diagonal, entropy, is left out."""
    window = view.window
    names = [f"+{place + 1}" for place in range(window)]
    cells: list[list[float | None]] = [
        [None if i == j else view.information[i][j] for j in range(window)] for i in range(window)
    ]
    most = max((cell for row in cells for cell in row if cell is not None), default=0.0)
    figure = go.Figure()
    figure.add_heatmap(
        x=names,
        y=names,
        z=cells,
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
    axis = {"showgrid": False, "fixedrange": True, "type": "category"}
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
    """The verifier's log p of its own samples, the joint and the independent ones, in lanes.

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
            annotations=[
                {"x": view.threshold, "y": 1, "yref": "paper", "yanchor": "bottom",
                 "showarrow": False, "text": texts["circuit.verdicts.threshold"]}
            ],
            dragmode=False,
            hovermode="closest",
        )
    )  # fmt: skip
    return figure


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
