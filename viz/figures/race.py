"""What a race shows when it is over: speed against plain decoding, and what the time went to."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from mtp.records.race import Lap, Race, standings
from viz import theme

LANE = 46  # px a racer
PARTS = (("draft", "#E69F00"), ("verify", "#56B4E9"), ("rest", "#555555"), ("whole", "#8A8F98"))


def speeds(race: Race, texts: Mapping[str, str]) -> go.Figure:
    """Every lap's speed over plain decoding's in the same turn, as points; the median as a bar."""
    order = [racer.decoder for racer in race.racers]
    lines = [line for line in standings(race) if line.ratio is not None]
    lines.sort(key=lambda line: -order.index(line.decoder))  # the first lane is on top
    colours = colours_of(race)
    plain = next((racer for racer in race.racers if racer.decoder == "ar"), None)
    figure = go.Figure()
    figure.add_bar(
        y=[line.decoder for line in lines],
        x=[line.ratio for line in lines],
        orientation="h",
        marker={"color": [colours[line.decoder] for line in lines], "opacity": 0.75},
        text=[f"{line.ratio:.2f}×" for line in lines],
        textposition="inside",
        insidetextanchor="start",
        hovertemplate=texts["race.speed.hover"] + "<extra></extra>",
    )
    if plain is not None:
        for racer in race.racers:
            pairs = zip(racer.laps, plain.laps, strict=False)
            ratios = [own.speed / base.speed for own, base in pairs if base.speed]
            figure.add_scatter(
                y=[racer.decoder] * len(ratios),
                x=ratios,
                mode="markers",
                marker={"symbol": "line-ns-open", "size": 16, "line": {"width": 2}},
                marker_color=theme.NEUTRAL_TEXT,
                hovertemplate=texts["race.lap.hover"] + "<extra></extra>",
            )
    figure.update_layout(
        **theme.layout(
            90 + LANE * max(1, len(lines)),
            margin={"l": 90},
            xaxis={"title": {"text": texts["race.speed.x"]}, "rangemode": "tozero"},
            yaxis={"showgrid": False},
            shapes=[
                {
                    "type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper",
                    "line": {"color": theme.NEUTRAL_TEXT, "dash": "dot", "width": 1},
                }
            ],
            dragmode=False,
        )
    )  # fmt: skip
    return figure


def times(race: Race, texts: Mapping[str, str]) -> go.Figure:
    """Milliseconds a token of each racer's replayed lap, split into draft, verify and the rest."""
    lines = [racer for racer in reversed(race.racers) if racer.typical.tokens]
    figure = go.Figure()
    for part, colour in PARTS:
        values = []
        for racer in lines:
            values.append(milliseconds(racer.typical)[part])
        figure.add_bar(
            y=[racer.decoder for racer in lines],
            x=values,
            name=texts[f"race.part.{part}"],
            orientation="h",
            marker={"color": colour},
            hovertemplate=texts["race.time.hover"] + "<extra>%{fullData.name}</extra>",
        )
    figure.update_layout(
        **theme.layout(
            110 + LANE * max(1, len(lines)),
            barmode="stack",
            margin={"l": 90, "t": 34},
            xaxis={"title": {"text": texts["race.time.x"]}},
            yaxis={"showgrid": False},
            showlegend=True,
            legend={
                "orientation": "h",
                "x": 0,
                "y": 1.02,
                "yanchor": "bottom",
                "traceorder": "normal",
            },
            dragmode=False,
        )
    )
    return figure


def milliseconds(lap: Lap) -> dict[str, float]:
    """Milliseconds a token of a lap by part, as `PARTS` names them."""
    return {part: 1000 * value / max(1, lap.tokens) for part, value in _shares(lap).items()}


def _shares(lap: Lap) -> dict[str, float]:
    """Seconds of a lap by part; all of them "whole" where they cannot be told apart."""
    if lap.draft is None or lap.verify is None:
        return {"draft": 0.0, "verify": 0.0, "rest": 0.0, "whole": lap.seconds}
    rest = max(0.0, lap.seconds - lap.draft - lap.verify)
    return {"draft": lap.draft, "verify": lap.verify, "rest": rest, "whole": 0.0}


def colours_of(race: Race) -> dict[str, str]:
    """Each racer's colour, by the fixed order of the theme."""
    return {
        racer.decoder: theme.DRAFTERS[index % len(theme.DRAFTERS)]
        for index, racer in enumerate(race.racers)
    }
