"""What a circuit believes: its latents' states as a map, its positions' tokens as bars."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from mtp.records.circuit import Beliefs, CircuitView
from viz import theme
from viz.figures import tokens

STATE_HEIGHT = 19  # px a state
BAR_HEIGHT = 26  # px a token
BAR_LENGTH = 0.86  # of a column, for probability 1
LABEL = {"narrow": 4, "wide": 8}  # characters of a bar's token
WIDE = 9  # positions from which on labels are narrow
BAR = "#2A788E"  # viridis, a third up
DARK, BRIGHT = "#14161A", "#FFFFFF"  # together they read on every cell of a map


def latents(
    view: CircuitView,
    now: Beliefs,
    texts: Mapping[str, str],
    clamped: tuple[int, int] | None = None,
    drawn: tuple[int, ...] = (),
) -> go.Figure:
    """States × latents, coloured by probability. customdata of a cell: [latent, state, before].

    The states that a sample was drawn with have a dot, a clamped one a frame.
    """
    figure = go.Figure()
    count = len(now.latents)
    rank = len(now.latents[0].marginal) if count else 1
    columns = list(range(count))
    figure.add_heatmap(
        x=columns,
        y=[state + 1 for state in range(rank)],
        z=[[one.marginal[state] for one in now.latents] for state in range(rank)],
        customdata=[
            [
                [column, state, f"{view.beliefs.latents[column].marginal[state]:.3g}", column + 1,
                 _scope(one.start, one.stop)]
                for column, one in enumerate(now.latents)
            ]
            for state in range(rank)
        ],
        zmin=0,
        zmax=1,
        colorscale="Viridis",
        xgap=2,
        ygap=1,
        hovertemplate=texts["circuit.latents.hover"] + "<extra></extra>",
        colorbar={"title": {"text": texts["circuit.latents.scale"], "side": "top"},
                  "thickness": 10, "outlinewidth": 0},
    )  # fmt: skip
    figure.add_scatter(
        x=columns if drawn else [],
        y=[state + 1 for state in drawn],
        mode="markers",
        marker={
            "symbol": "circle",
            "size": 11,
            "color": BRIGHT,
            "line": {"color": DARK, "width": 1.5},
        },
        hoverinfo="skip",
        name="drawn",
    )
    figure.add_scatter(
        x=[clamped[0]] if clamped else [],
        y=[clamped[1] + 1] if clamped else [],
        mode="markers",
        marker={"symbol": "square-open", "size": 15, "color": DARK, "line": {"width": 3}},
        hoverinfo="skip",
        name="clamped",
    )
    scopes = [f": {_scope(one.start, one.stop)}" for one in now.latents]
    names = [str(c + 1) + (scopes[c] if count < WIDE else "") for c in columns]
    figure.update_layout(
        **theme.layout(
            96 + STATE_HEIGHT * max(rank, 8),
            margin={"l": 44, "b": 52, "t": 10},
            xaxis={"title": {"text": texts["circuit.latents.x"]}, "tickvals": columns,
                   "ticktext": names, "showgrid": False, "fixedrange": True},
            yaxis={"title": {"text": texts["circuit.latents.y"]}, "showgrid": False,
                   "fixedrange": True, "tickformat": "d", "dtick": 1 if rank <= 8 else 3,
                   "autorange": "reversed"},
            dragmode=False,
        )
    )  # fmt: skip
    if not count:
        figure.update_layout(xaxis={"visible": False}, yaxis={"visible": False})
        figure.add_annotation(text=texts["circuit.latents.none"], showarrow=False,
                              xref="paper", yref="paper", x=0.5, y=0.5)  # fmt: skip
    return figure


def marginals(view: CircuitView, now: Beliefs, texts: Mapping[str, str]) -> go.Figure:
    """The most probable tokens of every position: a bar each, a tick where it was before.

    customdata of a bar: [token as text, probability now, probability before, position].
    """
    wide = len(now.positions) >= WIDE
    base, length, rows, words, data = [], [], [], [], []
    ticks_x, ticks_y = [], []
    for place, position in enumerate(now.positions):
        for rank, share in enumerate(position.top):
            before = share.p if share.before is None else share.before
            text = view.text_of(share.token)
            base.append(place)
            length.append(BAR_LENGTH * share.p)
            rows.append(rank + 1)
            words.append(tokens.label(text, LABEL["narrow" if wide else "wide"]))
            data.append([tokens.full(text), f"{share.p:.3g}", f"{before:.3g}", place + 1])
            if share.before is not None:
                ticks_x.append(place + BAR_LENGTH * before)
                ticks_y.append(rank + 1)
    figure = go.Figure()
    figure.add_bar(
        x=length, y=rows, base=base, orientation="h", customdata=data, width=0.78,
        marker={"color": BAR, "opacity": 0.42}, name="now",
        hovertemplate=texts["circuit.marginals.hover"] + "<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(
        x=ticks_x, y=ticks_y, mode="markers", name="before", hoverinfo="skip",
        marker={"symbol": "line-ns-open", "size": 15, "color": theme.NEUTRAL_TEXT,
                "line": {"width": 2}},
    )  # fmt: skip
    figure.add_scatter(
        x=[place + 0.03 for place in base], y=rows, text=words, mode="text",
        textposition="middle right", hoverinfo="skip", name="labels",
        textfont={"family": theme.MONO, "size": 13},
    )  # fmt: skip
    window = len(now.positions)
    most = max(len(position.top) for position in now.positions)
    lines = [
        {"type": "line", "x0": x, "x1": x, "y0": 0.5, "y1": most + 0.5,
         "line": {"color": theme.NEUTRAL_GRID, "width": 1}}
        for x in range(window)
    ]  # fmt: skip
    figure.update_layout(
        **theme.layout(
            64 + BAR_HEIGHT * most,
            barmode="overlay",
            margin={"l": 12, "r": 8, "t": 6, "b": 44},
            xaxis={"title": {"text": texts["circuit.marginals.x"]}, "range": [-0.05, window],
                   "tickvals": list(range(window)), "fixedrange": True, "showgrid": False,
                   "ticktext": [f"+{place + 1}" for place in range(window)]},
            yaxis={"visible": False, "autorange": False, "range": [most + 0.6, 0.4],
                   "fixedrange": True},
            shapes=lines,
            dragmode=False,
            hovermode="closest",
        )
    )  # fmt: skip
    return figure


def _scope(start: int, stop: int) -> str:
    return f"+{start + 1}" if stop == start + 1 else f"+{start + 1}–{stop}"
