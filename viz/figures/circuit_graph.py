"""The circuit as a graph: sums, products and inputs; edge width = weight; a sample's tree lit."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from mtp.records.circuit import NO_LATENT, Beliefs, CircuitView
from viz import theme
from viz.figures import tokens
from viz.figures.circuit_flow import lumped, mass_of
from viz.figures.circuit_layout import CHIP, CHIP_HEIGHT, REST, Laid, Place, lay_out
from viz.figures.circuit_traces import CHOSEN, Lines, add_lines, add_points, add_texts

INK = "#7A808A"  # of units and edges; reads on light and dark
WIDTHS = (0.8, 1.8, 3.0, 4.5, 6.5)  # px, for weights up to these bounds:
WIDTH_BOUNDS = (0.05, 0.2, 0.5, 0.8)
STRENGTHS = (0.16, 0.42, 0.9)  # opacity, for flows (probability of the parent × weight) up to:
STRENGTH_BOUNDS = (0.03, 0.2)
LABEL_STRENGTHS = (0.5, 0.75, 1.0)
FORK = 1.1  # px of an edge below a product, which has no weight
SHORT = 3  # characters that fit a small input
RADIUS = 8  # px of a unit, where its edges end
RING = 30  # px across, around the state that a latent is held in
SQUEEZE = {"ff": 0.6, "cp": 0.6, "hmm": 0.72, "btree": 0.54}  # of its width, at most
CHARACTER, NEXT_INPUT = 8, 29  # px of a label's character; from an input's middle to the next's
BESIDE = "\u2002\u2005"  # clears a unit of its number, however far the graph is pressed
LISTED = 6  # weights a hover tells


@dataclass(frozen=True)
class Lit:
    """A sample whose induced tree is shown: its latent states (L,) and its tokens (n,)."""

    states: tuple[int, ...]
    tokens: tuple[int, ...]


def figure(
    view: CircuitView,
    now: Beliefs,
    texts: Mapping[str, str],
    clamped: tuple[int, int] | None = None,
    lit: Lit | None = None,
) -> go.Figure:
    """The graph under the beliefs `now`. Products carry customdata [latent, state]; REST has none.

    Sums and products are told apart by their signs, ⊕ and ⊗; inputs are boxes with their most
    probable token, those of a lit tree with the token that was drawn.
    """
    must: list[list[int]] = [[] for _ in now.latents]
    if clamped is not None:
        must[clamped[0]].append(clamped[1])
    for latent, state in enumerate(lit.states if lit else ()):
        must[latent].append(state)
    words = any(
        len(tokens.visible(view.text_of(component[0].token))) > SHORT
        for position in now.positions
        for component in position.components
    )
    laid = lay_out(view.circuit, view.beliefs, now, must, words)
    drawing = _Drawing(view, now, texts, laid, clamped, lit)
    drawing.sums()
    drawing.products()
    return drawing.figure()


class _Drawing:
    """Collects what each look has, then makes one trace of it."""

    def __init__(
        self,
        view: CircuitView,
        now: Beliefs,
        texts: Mapping[str, str],
        laid: Laid,
        clamped: tuple[int, int] | None,
        lit: Lit | None,
    ) -> None:
        self.view, self.now, self.texts, self.laid = view, now, texts, laid
        self.clamped, self.lit = clamped, lit
        self.weighted = {(w, s): Lines() for s in range(3) for w in range(len(WIDTHS))}
        self.forks = [Lines() for _ in STRENGTHS]
        self.lit_lines, self.lit_chips = Lines(), Lines()
        self.chips = [Lines() for _ in STRENGTHS]
        self.hovers: list[tuple[Place, str]] = []
        self.chip_hovers: list[tuple[Place, str]] = []
        self.labels: list[list[tuple[Place, str]]] = [[] for _ in STRENGTHS]

    def sums(self) -> None:
        """Edges from sums to the products they choose between: they have the weights."""
        for index, latent in enumerate(self.now.latents):
            parent = latent.parent
            above = None if parent == NO_LATENT else self.now.latents[parent]
            rows = (0,) if above is None else self.laid.shown[parent]
            columns = self.laid.shown[index]
            table = lumped(latent, above, rows, columns)
            for row, weights in zip(rows, table, strict=True):
                mass = 1.0 if above is None else mass_of(above, rows, row)
                start = self.laid.sums[index, row]
                for column, weight in zip(columns, weights, strict=True):
                    end = self.laid.products[index, column]
                    a, b = _between(start, end)
                    flow = mass * weight
                    self.weighted[_bin(weight, WIDTH_BOUNDS), _bin(flow, STRENGTH_BOUNDS)].add(a, b)
                    if self._is_lit(index, column) and self._is_lit(parent, row):
                        self.lit_lines.add(a, b)
                    hover = self._fill("edge", weight=_p(weight), flow=_p(flow),
                                       state=self._name(column))  # fmt: skip
                    self.hovers.append((Place((a.x + b.x) / 2, (a.y + b.y) / 2), hover))

    def products(self) -> None:
        """Edges below products, to the sums and inputs that share their state; the inputs."""
        for (latent, state), place in self.laid.products.items():
            mass = self._mass(latent, state)
            strength = _bin(mass, STRENGTH_BOUNDS)
            below = [
                self.laid.sums[child, state]
                for child, one in enumerate(self.now.latents)
                if one.parent == latent and latent != NO_LATENT
            ]
            lit = self._is_lit(latent, state)
            for child in below:
                self._fork(*_between(place, child), strength, lit)
            for position, one in enumerate(self.now.positions):
                if one.owner == latent and state != REST:
                    self._input(position, state, place, strength, lit)

    def _fork(self, start: Place, end: Place, strength: int, lit: bool) -> None:
        self.forks[strength].add(start, end)
        if lit:
            self.lit_lines.add(start, end)

    def _input(self, position: int, state: int, above: Place, strength: int, lit: bool) -> None:
        place = self.laid.inputs[position, state]
        half, tall = self.laid.chip / 2, CHIP_HEIGHT / 2
        if place.y == above.y:  # in a row: each input hangs on to the one before it
            before = self.laid.inputs.get((position - 1, state))
            start = Place(above.x + RADIUS, above.y)
            if before is not None:
                start = Place(before.x + half, before.y)
            a, b = start, Place(place.x - half, place.y)
        else:
            a, b = _between(above, Place(place.x, place.y - tall + RADIUS))
        self._fork(a, b, strength, lit)
        corners = [(-half, -tall), (half, -tall), (half, tall), (-half, tall), (-half, -tall)]
        box = [Place(place.x + x, place.y + y) for x, y in corners]
        (self.lit_chips if lit else self.chips[strength]).add(*box)
        shares = self.now.positions[position].components[state]
        token = shares[0].token
        if lit and self.lit is not None:
            token = self.lit.tokens[position]
        width = SHORT if self.laid.chip == CHIP else 8
        label = tokens.label(self.view.text_of(token), width)
        self.labels[2 if lit else strength].append((place, label))
        lines = [self._fill("input", position=position + 1, state=state + 1)]
        lines += [
            f"<b>{tokens.full(self.view.text_of(one.token))}</b> {_p(one.p)}" for one in shares
        ]
        if lit:
            lines.append(self._fill("drawn", token=tokens.full(self.view.text_of(token))))
        self.chip_hovers.append((place, "<br>".join(lines)))

    def _is_lit(self, latent: int, state: int) -> bool:
        if self.lit is None:
            return False
        return latent == NO_LATENT or self.lit.states[latent] == state

    def _mass(self, latent: int, state: int) -> float:
        if latent == NO_LATENT:
            return 1.0
        return mass_of(self.now.latents[latent], self.laid.shown[latent], state)

    def _name(self, state: int) -> str:
        return self.texts["circuit.graph.rest"] if state == REST else str(state + 1)

    def _fill(self, key: str, **values: object) -> str:
        return self.texts[f"circuit.graph.{key}"].format(**values)

    def _sum_hover(self, latent: int, state: int) -> str:
        one = self.now.latents[latent]
        if one.parent == NO_LATENT:
            head, weights = self._fill("sum.first", latent=latent + 1), one.weights[0]
        else:
            head = self._fill("sum", latent=latent + 1, parent=one.parent + 1,
                              state=self._name(state))  # fmt: skip
            if state == REST:
                return head
            weights = one.weights[state]
        order = sorted(range(len(weights)), key=lambda s: -weights[s])[:LISTED]
        lines = [self._fill("weight", state=s + 1, weight=_p(weights[s])) for s in order]
        return "<br>".join([head, *lines])

    def _product_hover(self, latent: int, state: int) -> str:
        if latent == NO_LATENT:
            return self.texts["circuit.graph.product.only"]
        now = self._mass(latent, state)
        if state == REST:
            count = len(self.now.latents[latent].marginal) - len(self.laid.shown[latent]) + 1
            return self._fill("product.rest", latent=latent + 1, count=count, p=_p(now))
        before = self.view.beliefs.latents[latent].marginal[state]
        one = self.now.latents[latent]
        key = "product.held" if (latent, state) == self.clamped else "product"
        return self._fill(
            key, latent=latent + 1, state=state + 1, p=_p(now), before=_p(before),
            first=one.start + 1, last=one.stop,
        )  # fmt: skip

    def figure(self) -> go.Figure:
        """One trace a look, always the same ones in the same order."""
        drawn = go.Figure()
        for (width, strength), lines in self.weighted.items():
            add_lines(drawn, lines, WIDTHS[width], INK, STRENGTHS[strength], "weights")
        for strength, lines in enumerate(self.forks):
            add_lines(drawn, lines, FORK, INK, STRENGTHS[strength], "forks")
        for strength, lines in enumerate(self.chips):
            add_lines(drawn, lines, 1.2, INK, STRENGTHS[strength], "inputs", "toself")
        add_lines(drawn, self.lit_lines, 4, CHOSEN, 1, "lit")
        add_lines(drawn, self.lit_chips, 2.4, CHOSEN, 1, "lit inputs", "toself")
        add_points(drawn, self.hovers, "edges", {"size": 9, "opacity": 0})
        boxes = {"symbol": "square", "size": 24, "opacity": 0}
        add_points(drawn, self.chip_hovers, "input hover", boxes)
        for strength, labels in enumerate(self.labels):
            add_texts(drawn, labels, LABEL_STRENGTHS[strength], theme.MONO, 13)
        add_texts(drawn, list(self.laid.marks), 0.75, theme.SANS, theme.SIZES["small"])
        self._add_units(drawn)
        drawn.update_layout(
            **theme.layout(
                round(self.laid.height),
                width=round(self.laid.width),
                meta={"squeeze": self._squeeze()},
                margin={"l": 0, "r": 0, "t": 0, "b": 0},
                xaxis={"visible": False, "fixedrange": True, "range": [0, self.laid.width]},
                yaxis={"visible": False, "fixedrange": True, "range": [-self.laid.height, 0]},
                dragmode=False,
                hovermode="closest",
                hoverdistance=14,
            )
        )
        return drawn

    def _squeeze(self) -> float:
        """How far a page may press the graph together before labels would overlap."""
        if self.laid.chip != CHIP:
            return 1.0
        longest = max(len(html.unescape(words)) for labels in self.labels for _, words in labels)
        needed = (CHARACTER * longest + 2) / NEXT_INPUT
        return min(1.0, max(SQUEEZE[self.view.circuit], needed))

    def _add_units(self, drawn: go.Figure) -> None:
        sums = [(place, self._sum_hover(*key)) for key, place in self.laid.sums.items()]
        signs = {"symbol": "circle-cross-open", "size": 2 * RADIUS, "color": INK}
        add_points(drawn, sums, "sums", {**signs, "line": {"width": 1.6}})
        groups: dict[str, list[tuple[int, int]]] = {
            "products": [], "rest": [], "lit products": [], "clamped": [],
        }  # fmt: skip
        for key in self.laid.products:
            held = key == self.clamped
            lit = self._is_lit(*key) and key[1] != REST
            name = "clamped" if held else "lit products" if lit else "products"
            groups["rest" if key[1] == REST else name].append(key)
        looks: dict[str, dict[str, Any]] = {
            "products": {"symbol": "circle-x-open", "color": INK, "line": {"width": 1.6}},
            "rest": {"symbol": "circle-open-dot", "color": INK, "opacity": 0.55},
            "lit products": {"symbol": "circle-x-open", "color": CHOSEN, "line": {"width": 3}},
            "clamped": {"symbol": "circle-x-open", "color": CHOSEN, "line": {"width": 3}},
        }
        rings = [(self.laid.products[key], "") for key in groups["clamped"]]
        ring = {"symbol": "circle-open", "size": RING, "color": CHOSEN, "line": {"width": 2.4}}
        add_points(drawn, rings, "held ring", ring)
        for name, keys in groups.items():
            points = [(self.laid.products[key], self._product_hover(*key)) for key in keys]
            marker = {"size": 2 * RADIUS + 2, **looks[name]}
            chosen = [list(key) if key[1] != REST and key[0] >= 0 else None for key in keys]
            add_points(drawn, points, name, marker, chosen)
        names = [
            (place, BESIDE * (2 if (latent, state) == self.clamped else 1) + self._label(state))
            for (latent, state), place in self.laid.products.items()
            if latent != NO_LATENT
        ]
        add_texts(drawn, names, 0.75, theme.SANS, 11, "top right")

    def _label(self, state: int) -> str:
        return "…" if state == REST else str(state + 1)


def _between(start: Place, end: Place) -> tuple[Place, Place]:
    """The part of an edge that lies outside both units."""
    across, down = end.x - start.x, end.y - start.y
    long = max((across**2 + down**2) ** 0.5, 2.0 * RADIUS)
    x, y = RADIUS * across / long, RADIUS * down / long
    return Place(start.x + x, start.y + y), Place(end.x - x, end.y - y)


def _bin(value: float, bounds: tuple[float, ...]) -> int:
    return sum(value > bound for bound in bounds)


def _p(value: float) -> str:
    return f"{value:.3g}"
