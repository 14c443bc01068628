"""The timeline of a run: one bar a step, its height the tokens committed, split by source."""

from __future__ import annotations

import plotly.graph_objects as go

from viz import theme

HEIGHT = 120


def template(texts: dict[str, str]) -> go.Figure:
    """An empty timeline: the trace of accepted drafts, then that of the verifier's own tokens."""
    figure = go.Figure()
    for role, name in (("accepted", "timeline.accepted"), ("verifier", "timeline.verifier")):
        figure.add_bar(
            x=[],
            y=[],
            name=texts[name],
            marker={
                "color": theme.ROLES[role],
                "line": {"width": 0},
                # Told apart without colour, too.
                "pattern": {
                    "shape": "/" if role == "verifier" else "",
                    "size": 5,
                    "solidity": 0.25,
                },
            },
            hovertemplate=texts["timeline.hover"] + "<extra>%{fullData.name}</extra>",
        )
    figure.update_layout(
        **theme.layout(
            HEIGHT,
            barmode="stack",
            bargap=0.15,
            margin={"l": 44, "r": 8, "t": 8, "b": 34},
            xaxis={
                "title": {"text": texts["timeline.x"], "standoff": 4},
                "fixedrange": True,
                "rangemode": "tozero",
                "showgrid": False,
                "tickformat": "d",
            },
            yaxis={
                "title": {"text": texts["timeline.y"], "standoff": 4},
                "fixedrange": True,
                "tickformat": "d",
            },
            dragmode=False,
            hovermode="x",
        )
    )
    return figure
