"""The verifier's cumulative distribution at each place as a column, and the interval u picks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtp.records.noise import NoiseView
from viz import theme
from viz.figures import tokens

HEIGHT = 300  # px; sliders of the page lie over the columns
SIDE = 96  # px left of the first column, as wide as the page's names of rows
COLUMN = 0.62  # of a place's width
LABELLED = 0.05  # a narrower interval has no room for its token
PLAIN, CHOSEN = "rgba(138, 143, 152, 0.20)", "rgba(0, 114, 178, 0.30)"
REST, EDGE = "rgba(138, 143, 152, 0.07)", "rgba(138, 143, 152, 0.55)"


def figure(view: NoiseView, texts: Mapping[str, str]) -> dict[str, Any]:
    """Columns of intervals in the vocabulary's order, from 0 to 1, the picked ones blue.

    Plain data and layout: Plotly's own figure classes take longer than a slider may.
    customdata of an interval: [place, token, from, to, probability].
    """
    places = list(range(len(view.plain)))
    parts = [
        (place, text, low, high, (low, high) == picked.interval)
        for place, picked in enumerate(view.plain)
        for text, low, high in picked.strip
    ]
    rest = {
        "type": "bar", "name": "rest", "x": places, "y": [1] * len(places), "base": 0,
        "width": COLUMN, "marker": {"color": REST}, "hoverinfo": "skip",
    }  # fmt: skip
    intervals = {
        "type": "bar",
        "name": "intervals",
        "x": [place for place, *_ in parts],
        "y": [high - low for _, _, low, high, _ in parts],
        "base": [low for _, _, low, _, _ in parts],
        "width": COLUMN,
        "text": [
            tokens.label(text, 5) if high - low >= LABELLED else ""
            for _, text, low, high, _ in parts
        ],
        "customdata": [
            [place + 1, tokens.full(text), f"{low:.3f}", f"{high:.3f}", f"{high - low:.3g}"]
            for place, text, low, high, _ in parts
        ],
        "marker": {
            "color": [CHOSEN if mine else PLAIN for *_, mine in parts],
            "line": {"color": [theme.VERIFIER if mine else EDGE for *_, mine in parts], "width": 1},
        },
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "textfont": {"family": theme.MONO, "size": theme.SIZES["body"]},
        "hovertemplate": texts["noise.strips.hover"] + "<extra></extra>",
    }
    layout = theme.layout(
        HEIGHT,
        template=None,
        barmode="overlay",
        margin={"l": SIDE, "r": 0, "t": 8, "b": 8},
        xaxis={"range": [-0.5, len(places) - 0.5], "visible": False, "fixedrange": True,
               "automargin": False},
        yaxis={"range": [0, 1], "tickvals": [0, 0.25, 0.5, 0.75, 1], "fixedrange": True,
               "title": {"text": texts["noise.strips.y"]}, "automargin": False},
        uniformtext={"minsize": 9, "mode": "show"},
    )  # fmt: skip
    return {"data": [rest, intervals], "layout": layout}
