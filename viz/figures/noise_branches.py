"""Partial quadratic decoding: how confidence shares a budget of noise rows among branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from viz import theme

HEIGHT = 250
ROWS, CHANCE = "#2A788E", "#E69F00"


def figure(
    rows: Sequence[int], ending: Sequence[float], texts: Mapping[str, str]
) -> dict[str, Any]:
    """Noise rows behind 0, 1, … drafts as bars; the chance that exactly so many stand as a line.

    Plain data and layout, as of the strips.
    """
    behind = list(range(len(rows)))
    bars = {
        "type": "bar", "name": "rows", "x": behind, "y": list(rows), "width": 0.62,
        "marker": {"color": ROWS}, "text": [str(count) if count else "" for count in rows],
        "textposition": "outside", "cliponaxis": False,
        "customdata": [f"{chance:.3g}" for chance in ending],
        "hovertemplate": texts["noise.branches.hover"] + "<extra></extra>",
    }  # fmt: skip
    line = {
        "type": "scatter", "name": "chance", "x": behind, "y": list(ending), "yaxis": "y2",
        "mode": "lines+markers", "line": {"color": CHANCE, "width": 2},
        "marker": {"size": 8, "symbol": "diamond"}, "customdata": list(rows),
        "hovertemplate": texts["noise.branches.chance"] + "<extra></extra>",
    }  # fmt: skip
    layout = theme.layout(
        HEIGHT,
        template=None,
        margin={"l": 48, "r": 52, "t": 18, "b": 46},
        xaxis={"title": {"text": texts["noise.branches.x"]}, "dtick": 1, "fixedrange": True,
               "showgrid": False, "range": [-0.6, max(len(rows), 2) - 0.4]},
        yaxis={"title": {"text": texts["noise.branches.y"]}, "fixedrange": True,
               "range": [0, max(4, *rows) * 1.15], "tickformat": "d"},
        yaxis2={"title": {"text": texts["noise.branches.y2"], "standoff": 8,
                          "font": {"size": theme.SIZES["small"]}},
                "overlaying": "y", "side": "right", "range": [0, 1.15], "tickvals": [0, 0.5, 1],
                "showgrid": False, "zeroline": False, "fixedrange": True},
    )  # fmt: skip
    return {"data": [bars, line], "layout": layout}
