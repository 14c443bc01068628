"""How deep drafts stand in a run: the share of steps in which a node at each depth stood."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from mtp.records.trace import DepthCount
from viz import theme

HEIGHT = 220


def figure(counts: Sequence[DepthCount], texts: dict[str, str]) -> go.Figure:
    """Two lines over depth: P(stands), and P(stands | its parent stood)."""
    depths = [count.depth + 1 for count in counts if count.drafted]
    stands = [count.stood / count.drafted for count in counts if count.drafted]
    given = [
        count.stood / count.reached if count.reached else None for count in counts if count.drafted
    ]
    drawn = go.Figure()
    for y, key, hover, role, symbol, dash in (
        (stands, "depth.stands", "depth.hover", theme.ACCEPTED, "circle", "solid"),
        (given, "depth.given", "depth.given.hover", theme.UNREACHED, "diamond-open", "dot"),
    ):
        drawn.add_scatter(
            x=depths,
            y=y,
            name=texts[key],
            mode="lines+markers",
            line={"color": role, "dash": dash, "width": 2},
            marker={"symbol": symbol, "size": 8},
            customdata=[[c.stood, c.drafted, c.reached] for c in counts if c.drafted],
            hovertemplate=texts[hover] + "<extra>" + texts[key] + "</extra>",
        )
    drawn.update_layout(
        **theme.layout(
            HEIGHT,
            xaxis={
                "title": {"text": texts["depth.x"]},
                "tickformat": "d",
                "dtick": 1,
            },
            yaxis={
                "title": {"text": texts["depth.y"]},
                "range": [-0.03, 1.05],
                "tickformat": ".0%",
            },
            showlegend=True,
            margin={"t": 44},
            legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        )
    )
    return drawn
