"""One place's noise swept over [0, 1): the tokens a drafter foresees there and later."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from mtp.records.noise import Sweep
from viz import theme
from viz.figures import tokens

ROW = 34  # px a place
OWN = "◆"  # the verifier's own token
LABELLED = 2  # cells that a run of one token needs to be labelled


def figure(sweep: Sweep, now: float, texts: Mapping[str, str], told: bool = False) -> go.Figure:
    """Later places × noise, coloured by the drafter's probability of its token; a run of cells
    with one token is labelled once and framed. `now`: the noise as it is set. `told`: place 1 holds
    the verifier's own tokens and probabilities, with its mark.
    """
    own = told and sweep.place == 0
    rows = len(sweep.texts[0])
    columns = len(sweep.noise)
    cell = 1 / columns
    places = [sweep.place + row for row in range(rows)]
    runs = [
        (row, start, stop, text)
        for row in range(rows)
        for start, stop, text in _runs([line[row] for line in sweep.texts])
    ]
    drawn = go.Figure()
    drawn.add_heatmap(
        x=list(sweep.noise),
        y=places,
        z=[[line[row] for line in sweep.probabilities] for row in range(rows)],
        customdata=[
            [
                [places[row] + 1, tokens.full(line[row]), texts[_whose(own and row == 0)]]
                for line in sweep.texts
            ]
            for row in range(rows)
        ],
        zmin=0,
        zmax=1,
        colorscale="Viridis",
        opacity=0.55,
        hovertemplate=texts["noise.sweep.hover"] + "<extra></extra>",
        colorbar={"title": {"text": texts["noise.sweep.scale"], "side": "top"},
                  "thickness": 10, "outlinewidth": 0, "tickvals": [0, 0.5, 1]},
    )  # fmt: skip
    labelled = [run for run in runs if run[2] - run[1] >= LABELLED]
    drawn.add_scatter(
        x=[(start + stop) / 2 * cell for _, start, stop, _ in labelled],
        y=[places[row] for row, *_ in labelled],
        text=[tokens.label(text, 6) for *_, text in labelled],
        mode="text",
        textfont={"family": theme.MONO, "size": theme.SIZES["body"]},
        hoverinfo="skip",
        name="tokens",
    )
    edges = [(stop * cell, places[row]) for row, _, stop, _ in runs if stop < columns]
    x: list[float | None] = []
    y: list[float | None] = []
    for at, place in edges:
        x += [at, at, None]
        y += [place - 0.5, place + 0.5, None]
    drawn.add_scatter(
        x=x, y=y, mode="lines", line={"color": theme.NEUTRAL_TEXT, "width": 1.2},
        hoverinfo="skip", name="changes",
    )  # fmt: skip
    drawn.add_scatter(
        x=[now, now], y=[places[0] - 0.5, places[-1] + 0.5], mode="lines",
        line={"color": theme.VERIFIER, "width": 2.5}, hoverinfo="skip", name="now",
    )  # fmt: skip
    drawn.update_layout(
        **theme.layout(
            66 + ROW * rows,
            margin={"l": 48, "r": 8, "t": 10, "b": 48},
            xaxis={"range": [0, 1], "fixedrange": True, "showgrid": False,
                   "title": {"text": texts["noise.sweep.x"].format(place=sweep.place + 1)}},
            yaxis={"range": [places[-1] + 0.5, places[0] - 0.5], "fixedrange": True,
                   "tickvals": places, "ticktext": [
                       f"{OWN} {place + 1}" if own and place == 0 else str(place + 1)
                       for place in places
                   ],
                   "showgrid": False, "title": {"text": texts["noise.sweep.y"]}},
        )
    )  # fmt: skip
    return drawn


def _whose(own: bool) -> str:
    """The key of whose probability a cell's is."""
    return "noise.sweep.verifiers" if own else "noise.sweep.drafters"


def _runs(line: list[str]) -> list[tuple[int, int, str]]:
    """Runs of equal tokens as (from, to, token)."""
    found = []
    start = 0
    for at in range(1, len(line) + 1):
        if at == len(line) or line[at] != line[start]:
            found.append((start, at, line[start]))
            start = at
    return found
