"""The draft tree of a step: one template, and the arrays that each of a step's moments puts in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from mtp.records.trace import Step
from viz import theme
from viz.figures import tokens

MOMENTS = ("drafted", "verified", "committed")
COLUMN = 84  # px between depths
ROW = 31  # px between siblings
LEFT, TOP, RIGHT, BOTTOM = 46, 34, 60, 20  # px around the tree
EDGE_WIDTHS = (1.0, 1.75, 2.75, 4.0, 5.5)  # px, for a drafter's probability up to these bounds:
EDGE_BOUNDS = (0.05, 0.2, 0.5, 0.8)
CURVE = 7  # points along an edge
FADED = 0.6  # of what did not become text, once the step is committed

_STATES = ("unreached", "rejected", "drafted", "verifier", "accepted")  # accepted drawn last
_EDGE_OPACITY = {"accepted": 0.85, "unreached": 0.3}
_INK = "#7A808A"  # of what has no verdict yet; reads on light and dark
_COLOURS = {**theme.ROLES, "drafted": _INK, "root": _INK}
_SYMBOLS = {
    "root": "square",
    "drafted": "circle-open",
    "accepted": "circle",
    "rejected": "circle-x-open",
    "unreached": "circle-open-dot",
    "verifier": "diamond",
}
_SIZES = {
    "root": 11, "drafted": 12, "accepted": 14, "rejected": 13, "unreached": 8, "verifier": 14,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a node stands: px from the left and from the top."""

    x: float
    y: float


@dataclass(frozen=True)
class Spread:
    """A laid-out tree: the root, the drafted nodes, the verifier's own token, its size in px."""

    root: Place
    nodes: tuple[Place, ...]
    own: Place
    own_parent: int
    width: float
    height: float


def spread(step: Step) -> Spread:
    """Lays out a tree left to right by depth: the most probable child on its parent's line, its
    siblings below in order of probability, the verifier's own token under its siblings. Positions
    are the same in all three moments.
    """
    tree = step.tree
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    for siblings in children.values():
        siblings.sort(key=lambda node: -tree.log_q[node])
    own = len(tree.parents)
    own_parent = max(
        (n for n, s in enumerate(tree.status) if s == "accepted"),
        default=-1,
        key=lambda n: tree.depths[n],
    )
    ends_in_own = bool(step.committed) and step.committed[-1].source == "verifier"
    if ends_in_own:
        children.setdefault(own_parent, []).append(own)
    rows: dict[int, int] = {-1: 0}
    free = 1
    stack = [-1]
    while stack:
        parent = stack.pop()
        below = children.get(parent, [])
        for order, child in enumerate(below):
            if order == 0:
                rows[child] = rows[parent]
            else:
                rows[child] = free
                free += 1
        stack.extend(reversed(below))
    rows = _compact(rows, children)
    depth_of = [*tree.depths, (tree.depths[own_parent] + 1 if own_parent >= 0 else 0)]

    def place(node: int) -> Place:
        column = 0 if node < 0 else depth_of[node] + 1
        return Place(LEFT + COLUMN * column, TOP + ROW * rows.get(node, 0))

    columns = max(depth_of if ends_in_own else depth_of[:-1], default=-1) + 1
    return Spread(
        root=place(-1),
        nodes=tuple(place(node) for node in range(own)),
        own=place(own),
        own_parent=own_parent if ends_in_own else -2,
        width=LEFT + COLUMN * columns + RIGHT,
        height=TOP + ROW * max(rows.values()) + BOTTOM,
    )


def _compact(rows: dict[int, int], children: dict[int, list[int]]) -> dict[int, int]:
    """Rows in the order a depth-first walk meets them, so that edges do not cross."""
    order: list[int] = []
    lines: dict[int, int] = {}

    def walk(node: int) -> None:
        stack = [node]
        while stack:
            here = stack.pop()
            if rows[here] not in lines:
                lines[rows[here]] = len(lines)
            order.append(here)
            stack.extend(reversed(children.get(here, [])))

    walk(-1)
    return {node: lines[row] for node, row in rows.items()}


def template() -> go.Figure:
    """An empty tree: every trace that `arrays` fills, in the same order."""
    figure = go.Figure()
    for state in _STATES:
        for width in EDGE_WIDTHS:
            figure.add_scatter(
                x=[], y=[], mode="lines", hoverinfo="skip",
                line={"color": _COLOURS[state], "width": width},
                opacity=_EDGE_OPACITY.get(state, 0.5),
            )  # fmt: skip
    for state in ("root", *_STATES):
        figure.add_scatter(
            x=[], y=[], text=[], customdata=[], hovertext=[],
            mode="markers+text", textposition="top center", name=state,
            hovertemplate="%{hovertext}<extra></extra>", cliponaxis=False,
            textfont={"family": theme.MONO, "size": theme.SIZES["small"]},
            marker={
                "color": _COLOURS[state], "symbol": _SYMBOLS[state], "size": _SIZES[state],
                "line": {"width": 2 if "open" in _SYMBOLS[state] else 0, "color": _COLOURS[state]},
            },
        )  # fmt: skip
    figure.update_layout(
        **theme.layout(
            400,
            margin={"l": 0, "r": 0, "t": 0, "b": 0},
            xaxis={"visible": False, "fixedrange": True},
            yaxis={"visible": False, "fixedrange": True, "autorange": False},
            dragmode=False,
            hovermode="closest",
        )
    )
    return figure


def arrays(step: Step, texts: Mapping[str, str]) -> dict[str, Any]:
    """What the template's traces hold at each moment of a step, hovers in the words of `texts`.

    Returns {"width", "height", "moments": {moment: [{"x", "y", …} a trace]}}. customdata of a node
    is its index, of the root −1, of the verifier's own token −2.
    """
    laid = spread(step)
    return {
        "width": laid.width,
        "height": laid.height,
        "moments": {moment: _moment(step, laid, moment, texts) for moment in MOMENTS},
    }


def _moment(
    step: Step, laid: Spread, moment: str, texts: Mapping[str, str]
) -> list[dict[str, Any]]:
    tree = step.tree
    judged = moment != "drafted"
    state = [status if judged else "drafted" for status in tree.status]
    edges: dict[tuple[str, int], tuple[list[float | None], list[float | None]]] = {
        (name, width): ([], []) for name in _STATES for width in range(len(EDGE_WIDTHS))
    }
    for node, parent in enumerate(tree.parents):
        start = laid.root if parent < 0 else laid.nodes[parent]
        xs, ys = edges[state[node], edge_width(tree.log_q[node])]
        _curve(start, laid.nodes[node], xs, ys)
    shows_own = judged and laid.own_parent >= -1
    if shows_own:
        start = laid.root if laid.own_parent < 0 else laid.nodes[laid.own_parent]
        xs, ys = edges["verifier", 1]
        _curve(start, laid.own, xs, ys)
    traces: list[dict[str, Any]] = [{"x": xs, "y": ys} for xs, ys in edges.values()]
    traces.append(
        _nodes(
            [laid.root],
            [tokens.label(step.root.text)],
            [_bold(step.root.text, texts["tree.root"])],
            [-1],
        )
    )
    kept = moment != "committed"
    for name in _STATES:
        members = [node for node in range(len(state)) if state[node] == name]
        places = [laid.nodes[node] for node in members]
        labels = [tokens.label(tree.texts[node]) for node in members]
        hovers = [_hover(step, node, judged, texts) for node in members]
        if name == "verifier" and shows_own:
            own = step.committed[-1]
            places, labels, members = [laid.own], [tokens.label(own.text)], [-2]
            hovers = [_bold(own.text, texts["tree.own"])]
        bright = kept or name in ("accepted", "verifier")
        traces.append(_nodes(places, labels, hovers, members, 1.0 if bright else FADED))
    return traces


def edge_width(log_q: float) -> int:
    """Which of EDGE_WIDTHS an edge has, by the drafter's probability."""
    q = math.exp(log_q)
    return sum(q > bound for bound in EDGE_BOUNDS)


def _nodes(
    places: list[Place],
    labels: list[str],
    hovers: list[str],
    customdata: list[int],
    opacity: float = 1.0,
) -> dict[str, Any]:
    return {
        "x": [place.x for place in places],
        "y": [-place.y for place in places],
        "text": labels,
        "hovertext": hovers,
        "customdata": customdata,
        "opacity": opacity,
    }


def _curve(start: Place, end: Place, xs: list[float | None], ys: list[float | None]) -> None:
    """Appends an edge: straight on one line, else an S that leaves and arrives level."""
    points = 2 if start.y == end.y else CURVE
    for point in range(points):
        t = point / (points - 1)
        ease = t * t * (3 - 2 * t)
        xs.append(round(start.x + (end.x - start.x) * t, 1))
        ys.append(round(-(start.y + (end.y - start.y) * ease), 1))
    xs.append(None)
    ys.append(None)


def _bold(token: str, *lines: str) -> str:
    return "<br>".join([f"<b>{tokens.full(token)}</b>", *lines])


def _hover(step: Step, node: int, judged: bool, texts: Mapping[str, str]) -> str:
    tree = step.tree
    lines = [texts["tree.q"].format(q=_probability(tree.log_q[node]))]
    if judged:
        log_p = tree.log_p[node]
        lines.append(texts["tree.p"].format(p=_probability(log_p) if log_p is not None else "0"))
        lines.append(texts[f"node.status.{tree.status[node]}"])
    origins = texts["tree.and"].join(tree.origins[node])
    lines.append(texts["tree.from"].format(drafters=origins))
    return _bold(tree.texts[node], *lines)


def _probability(log: float) -> str:
    return f"{math.exp(log):.3g}"
