"""The scaling study: what a call brings against a drafter's size, and as training goes."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from mtp.records.scaling import Scaling
from viz import theme

HEIGHT = 340


def figure(study: Scaling, texts: Mapping[str, str]) -> go.Figure:
    """Left: drafts accepted per call over parameters, one point a size, and below it what is left
    with noise of another draw. Right: over noise rows seen, one line a size, in the same colours.
    """
    drawn = go.Figure()
    drawn.add_scatter(
        x=[one.parameters for one in study.sizes],
        y=[one.last.unread for one in study.sizes],
        mode="lines+markers",
        line={"color": theme.UNREACHED, "width": 1, "dash": "dot"},
        marker={"size": 9, "symbol": "circle-open", "color": theme.UNREACHED},
        hovertemplate=texts["noise.scaling.unread"] + "<extra></extra>",
        name="unread",
    )
    drawn.add_scatter(
        x=[one.parameters for one in study.sizes],
        y=[one.last.accepted for one in study.sizes],
        mode="lines+markers+text",
        text=[one.label for one in study.sizes],
        textposition="top center",
        line={"color": theme.UNREACHED, "width": 1},
        marker={
            "size": 11,
            "color": [theme.DRAFTERS[i % len(theme.DRAFTERS)] for i in range(len(study.sizes))],
        },
        hovertemplate=texts["noise.scaling.hover"] + "<extra></extra>",
        cliponaxis=False,
        name="sizes",
    )
    for index, one in enumerate(study.sizes):
        drawn.add_scatter(
            x=[point.rows for point in one.curve],
            y=[point.accepted for point in one.curve],
            mode="lines+markers",
            line={"color": theme.DRAFTERS[index % len(theme.DRAFTERS)], "width": 2},
            marker={"size": 5},
            xaxis="x2",
            name=one.label,
            hovertemplate=one.label + "<br>" + texts["noise.scaling.curve"] + "<extra></extra>",
        )
    most = max((point.accepted for one in study.sizes for point in one.curve), default=1.0)
    drawn.update_layout(
        **theme.layout(
            HEIGHT,
            margin={"l": 48, "r": 16, "t": 22, "b": 48},
            xaxis={"type": "log", "domain": [0, 0.46], "dtick": 1, "fixedrange": True,
                   "title": {"text": texts["noise.scaling.x"]}},
            xaxis2={"domain": [0.54, 1], "anchor": "y", "gridcolor": theme.NEUTRAL_GRID,
                    "zeroline": False, "fixedrange": True,
                    "title": {"text": texts["noise.scaling.x2"], "standoff": 8,
                              "font": {"size": theme.SIZES["small"]}}},
            yaxis={"range": [0, most * 1.2 + 0.05], "fixedrange": True,
                   "title": {"text": texts["noise.scaling.y"]}},
            dragmode=False,
        )
    )  # fmt: skip
    return drawn
