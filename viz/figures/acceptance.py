"""Acceptance against latency: what a call brings and what it costs, one point a decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from mtp.records.bench import TableRow
from viz import theme

HEIGHT = 420
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")


def against_latency(rows: Sequence[TableRow], texts: Mapping[str, str]) -> go.Figure:
    """Tokens a call over milliseconds a call. Colour: the drafter; filled: coupled verification,
    hollow: rejection; lines of equal speed through plain decoding's point and its multiples.
    """
    timed = [row for row in rows if row.tokens_per_call and row.draft_ms is not None]
    timed = [row for row in timed if row.verify_ms is not None]
    names = list(dict.fromkeys(drafter_of(row.decoder) for row in timed))
    figure = go.Figure()
    plain = next((row for row in timed if row.decoder == "ar"), None)
    most = max((_milliseconds(row) for row in timed), default=1.0)
    highest = max((row.tokens_per_call or 0.0 for row in timed), default=1.0)
    if plain is not None:
        _equal_speeds(figure, 1 / _milliseconds(plain), 1.1 * most, texts)
    for index, name in enumerate(names):
        colour = theme.DRAFTERS[index % len(theme.DRAFTERS)]
        mine = [row for row in timed if drafter_of(row.decoder) == name]
        symbols = [SYMBOLS[index % len(SYMBOLS)] + _hollow(row.decoder) for row in mine]
        figure.add_scatter(
            x=[_milliseconds(row) for row in mine],
            y=[row.tokens_per_call for row in mine],
            mode="markers+text",
            name=name,
            text=[label_of(row.decoder) for row in mine],
            # Of two signs of one window side by side, each has its label on its own side.
            textposition=[
                "top center" if _hollow(row.decoder) else "bottom center" for row in mine
            ],
            textfont={"size": theme.SIZES["small"]},
            marker={"color": colour, "symbol": symbols, "size": 11, "line": {"width": 2}},
            hovertext=[_hover(row, texts) for row in mine],
            hovertemplate="%{hovertext}<extra></extra>",
            cliponaxis=False,
        )
    figure.update_layout(
        **theme.layout(
            HEIGHT,
            margin={"r": 90, "t": 34},
            xaxis={"title": {"text": texts["acceptance.x"]}, "range": [0, 1.1 * most]},
            # Up to the signs: the lines of equal speed go on beyond.
            yaxis={"title": {"text": texts["acceptance.y"]}, "range": [0, 1.25 * highest]},
            showlegend=True,
            legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            dragmode=False,
        )
    )
    return figure


def drafter_of(decoder: str) -> str:
    """A decoder's name without its options: mtpc-ff of mtpc-ff[window=8]."""
    return decoder.partition("[")[0]


def label_of(decoder: str) -> str:
    """The options that tell a point from its neighbours: 16 r8 K2 tree."""
    given = dict(re.findall(r"(\w+)=([\w.]+)", decoder))
    parts = [given.get("window", "")]
    if given.get("rank", "0") != "0":
        parts.append(f"r{given['rank']}")
    if given.get("lora", "0") != "0":
        parts.append(f"K{given['lora']}")
    if given.get("tree") == "best":
        parts.append("tree")
    return " ".join(part for part in parts if part)


def _hollow(decoder: str) -> str:
    return "-open" if "verification=rejection" in decoder else ""


def _milliseconds(row: TableRow) -> float:
    return (row.draft_ms or 0.0) + (row.verify_ms or 0.0)


def _equal_speeds(figure: go.Figure, speed: float, end: float, texts: Mapping[str, str]) -> None:
    """Straight lines of 1, 2, 4 … times plain decoding's tokens a millisecond."""
    for times in (1, 2, 3, 5, 8):
        figure.add_scatter(
            x=[0, end],
            y=[0, times * speed * end],
            mode="lines",
            line={"color": theme.NEUTRAL_GRID, "width": 1, "dash": "dot"},
            hovertemplate=texts["acceptance.line"].format(times=times) + "<extra></extra>",
            showlegend=False,
        )


def _hover(row: TableRow, texts: Mapping[str, str]) -> str:
    ratio = row.ratio_to_ar
    return texts["acceptance.hover"].format(
        decoder=row.decoder,
        tokens=f"{row.tokens_per_call:.2f}",
        draft=f"{row.draft_ms:.2f}",
        verify=f"{row.verify_ms:.2f}",
        speed="–" if row.tokens_per_second is None else f"{row.tokens_per_second:.0f}",
        ratio="–" if ratio is None else f"{ratio[1]:.2f} [{ratio[0]:.2f} – {ratio[2]:.2f}]",
    )
