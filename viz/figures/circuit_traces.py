"""Traces of the circuit's graph: lines, points with a hover, texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from viz import theme
from viz.figures.circuit_layout import Place

CHOSEN = theme.PAGE["light"]["ink"]  # a held state, a lit tree; the page puts its own ink here


@dataclass
class Lines:
    """Line pieces of one look, as one trace."""

    x: list[float | None] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)

    def add(self, *places: Place) -> None:
        self.x += [*(round(place.x, 1) for place in places), None]
        self.y += [*(round(-place.y, 1) for place in places), None]


def add_lines(
    drawn: go.Figure, lines: Lines, width: float, colour: str, opacity: float, name: str,
    fill: str = "none",
) -> None:  # fmt: skip
    inside = f"rgba(138, 143, 152, {0.32 if colour == CHOSEN else 0.10})"
    drawn.add_scatter(
        x=lines.x, y=lines.y, mode="lines", name=name, hoverinfo="skip", opacity=opacity,
        line={"color": colour, "width": width}, fill=fill, fillcolor=inside,
    )  # fmt: skip


def add_points(
    drawn: go.Figure,
    points: list[tuple[Place, str]],
    name: str,
    marker: Mapping[str, Any],
    customdata: list[Any] | None = None,
) -> None:
    drawn.add_scatter(
        x=[place.x for place, _ in points], y=[-place.y for place, _ in points], mode="markers",
        hovertext=[words for _, words in points], hovertemplate="%{hovertext}<extra></extra>",
        marker=dict(marker), name=name, customdata=customdata, cliponaxis=False,
    )  # fmt: skip


def add_texts(
    drawn: go.Figure,
    labels: list[tuple[Place, str]],
    opacity: float,
    family: str,
    size: int,
    position: str = "middle center",
) -> None:
    drawn.add_scatter(
        x=[place.x for place, _ in labels], y=[-place.y for place, _ in labels], mode="text",
        text=[words for _, words in labels], textposition=position, opacity=opacity,
        textfont={"family": family, "size": size}, hoverinfo="skip", name="labels",
    )  # fmt: skip
