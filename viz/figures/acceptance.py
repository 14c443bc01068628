"""Acceptance against latency: what a call brings and what it costs, one point a decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from mtp.records.bench import TableRow
from viz import theme

HEIGHT = 420
ROOM = 0.09  # of what the signs span, around them
MULTIPLES = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8)
MIDDLE_WINDOW = 8  # signs of longer windows are larger
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")


def against_latency(rows: Sequence[TableRow], texts: Mapping[str, str]) -> go.Figure:
    """Tokens a call over milliseconds a call. Colour and sign: the drafter, larger for longer
    windows; filled: coupled verification, hollow: rejection. Of each drafter the sign with the most
    tokens a call is labelled. Lines of equal speed through the origin, in multiples of plain
    decoding's. customdata of a sign: [decoder].
    """
    timed = [row for row in rows if row.tokens_per_call and row.draft_ms is not None]
    timed = [row for row in timed if row.verify_ms is not None]
    names = list(dict.fromkeys(drafter_of(row.decoder) for row in timed))
    figure = go.Figure()
    if not timed:
        return figure
    across = [_milliseconds(row) for row in timed]
    up = [row.tokens_per_call or 0.0 for row in timed]
    ends = Ends(*_around(across), *_around(up))
    plain = next((row for row in timed if row.decoder == "ar"), None)
    if plain is not None:
        _equal_speeds(figure, 1 / _milliseconds(plain), ends, texts)
    for index, name in enumerate(names):
        colour = theme.DRAFTERS[index % len(theme.DRAFTERS)]
        mine = [row for row in timed if drafter_of(row.decoder) == name]
        symbols = [SYMBOLS[index % len(SYMBOLS)] + _hollow(row.decoder) for row in mine]
        best = max(mine, key=lambda row: row.tokens_per_call or 0.0)
        figure.add_scatter(
            x=[_milliseconds(row) for row in mine],
            y=[row.tokens_per_call for row in mine],
            mode="markers+text",
            name=name,
            text=[label_of(row.decoder) if row is best else "" for row in mine],
            textposition="top center",
            textfont={"size": theme.SIZES["small"]},
            marker={"color": colour, "symbol": symbols, "size": [_size(row) for row in mine],
                    "line": {"width": 2, "color": colour}},
            customdata=[[row.decoder] for row in mine],
            hovertext=[_hover(row, texts) for row in mine],
            hovertemplate="%{hovertext}<extra></extra>",
            cliponaxis=False,
        )  # fmt: skip
    figure.update_layout(
        **theme.layout(
            HEIGHT,
            margin={"r": 48, "t": 34},
            xaxis={"title": {"text": texts["acceptance.x"]}, "range": [ends.left, ends.right]},
            yaxis={"title": {"text": texts["acceptance.y"]}, "range": [ends.low, ends.high]},
            showlegend=True,
            legend={"orientation": "h", "x": 0, "y": 1.06, "yanchor": "bottom"},
            dragmode=False,
        )
    )
    return figure


class Ends(NamedTuple):
    """What the figure shows of both axes."""

    left: float
    right: float
    low: float
    high: float


def _around(values: Sequence[float]) -> tuple[float, float]:
    """A range that holds the values with some room."""
    room = ROOM * (max(values) - min(values)) or ROOM * max(values)
    return max(0.0, min(values) - room), max(values) + room


def drafter_of(decoder: str) -> str:
    """A decoder's name without its options: mtpc-ff of mtpc-ff[window=8]."""
    return decoder.partition("[")[0]


def label_of(decoder: str) -> str:
    """The options that tell a point from its neighbours: 16 r8 K2 tree."""
    given = _options(decoder)
    parts = [given.get("window", "")]
    if given.get("rank", "0") != "0":
        parts.append(f"r{given['rank']}")
    if given.get("lora", "0") != "0":
        parts.append(f"K{given['lora']}")
    if given.get("tree") == "best":
        parts.append("tree")
    return " ".join(part for part in parts if part)


def _options(decoder: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=([\w.]+)", decoder))


def _hollow(decoder: str) -> str:
    return "-open" if "verification=rejection" in decoder else ""


def _milliseconds(row: TableRow) -> float:
    return (row.draft_ms or 0.0) + (row.verify_ms or 0.0)


def _size(row: TableRow) -> int:
    window = _options(row.decoder).get("window", "")
    return 13 if window.isdecimal() and int(window) > MIDDLE_WINDOW else 9


def _equal_speeds(figure: go.Figure, speed: float, ends: Ends, texts: Mapping[str, str]) -> None:
    """Straight lines of multiples of plain decoding's tokens a millisecond, where they cross what
    is shown, each with its number where it leaves.
    """
    for times in MULTIPLES:
        slope = times * speed
        first, last = max(ends.left, ends.low / slope), min(ends.right, ends.high / slope)
        if first >= last:
            continue
        figure.add_scatter(
            x=[first, last],
            y=[slope * first, slope * last],
            mode="lines",
            line={"color": theme.NEUTRAL_GRID, "width": 1, "dash": "dot"},
            hovertemplate=texts["acceptance.line"].format(times=times) + "<extra></extra>",
            showlegend=False,
        )
        at_side = last == ends.right
        figure.add_annotation(
            x=last, y=slope * last, text=f"{times:g} ×", showarrow=False,
            xanchor="left" if at_side else "center", yanchor="middle" if at_side else "bottom",
            font={"size": theme.SIZES["small"]},
        )  # fmt: skip


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
