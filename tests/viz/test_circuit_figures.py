"""The circuit's figures hold the record's numbers; nothing overlaps; text stays text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go
import pytest

from mtp.circuits.structure import build
from mtp.circuits.view import beliefs, circuit_of, given, information
from mtp.records.circuit import CircuitView
from tests.circuit_units import induced_tree, units
from tests.circuit_views import circuit_view
from viz import theme
from viz.figures import circuit_beliefs, circuit_graph, circuit_samples, circuit_traces
from viz.figures.circuit_flow import lumped, mass_of
from viz.figures.circuit_graph import WIDTHS, Lit
from viz.figures.circuit_layout import REST, lay_out, states_shown
from viz.texts import table

CIRCUITS = ("ff", "cp", "hmm", "btree")
SIZES = [(name, window, rank) for name in CIRCUITS for window, rank in ((4, 3), (8, 16), (16, 16))]


def drawn(view: CircuitView, **more: Any) -> go.Figure:
    return circuit_graph.figure(view, view.beliefs, table(), **more)


def trace(figure: go.Figure, name: str) -> Any:
    return next(one for one in figure.data if one.name == name)


def laid_for(view: CircuitView, words: bool) -> Any:
    must: list[list[int]] = [[] for _ in view.beliefs.latents]
    return lay_out(view.circuit, view.beliefs, view.beliefs, must, words)


@pytest.mark.parametrize(("name", "window", "rank"), SIZES)
@pytest.mark.parametrize("words", [False, True])
def test_nothing_overlaps(name: str, window: int, rank: int, words: bool) -> None:
    laid = laid_for(circuit_view(name, window, rank), words)
    units_at = [*laid.sums.values(), *laid.products.values()]
    for index, one in enumerate(units_at):
        for other in units_at[index + 1 :]:
            assert max(abs(one.x - other.x), abs(one.y - other.y)) >= 26
    boxes = list(laid.inputs.values())
    for index, one in enumerate(boxes):
        for other in boxes[index + 1 :]:
            assert abs(one.x - other.x) > laid.chip or abs(one.y - other.y) > 24
        for unit in units_at:
            apart_x = abs(one.x - unit.x) >= laid.chip / 2 + 8
            assert apart_x or abs(one.y - unit.y) >= 12 + 8
    for place in [*units_at, *boxes]:
        assert 8 <= place.x <= laid.width - 8 and 8 <= place.y <= laid.height - 8


@pytest.mark.parametrize("name", CIRCUITS)
def test_a_small_circuit_is_drawn_whole(name: str) -> None:
    view = circuit_view(name, 4, 3)
    figure = drawn(view)
    structure = build(name, 4, 1 if name == "ff" else 3)
    counted = dict.fromkeys(("sum", "product", "input"), 0)
    for unit in units(structure):
        counted[unit.kind] += 1
    assert len(trace(figure, "sums").x) == counted["sum"]
    assert len(trace(figure, "products").x) == counted["product"]
    assert len(trace(figure, "input hover").x) == counted["input"]
    assert len(trace(figure, "rest").x) == 0
    weights = sum(len(unit.children) for unit in units(structure) if unit.kind == "sum")
    assert len(trace(figure, "edges").x) == weights


@pytest.mark.parametrize("name", CIRCUITS)
def test_a_lit_tree_is_the_induced_tree(name: str) -> None:
    view = circuit_view(name, 4, 3)
    sample = view.joint[0]
    figure = drawn(view, lit=Lit(sample.states, sample.tokens))
    structure = build(name, 4, 1 if name == "ff" else 3)
    lit = [units(structure)[index] for index in induced_tree(structure, sample.states)]
    products = {(u.latent, u.state) for u in lit if u.kind == "product"}
    chosen = trace(figure, "lit products").customdata
    if name != "ff":
        assert {tuple(pair) for pair in chosen} == products
    boxes = [x for x in trace(figure, "lit inputs").x if x is None]
    assert len(boxes) == sum(u.kind == "input" for u in lit) == 4
    edges = [x for x in trace(figure, "lit").x if x is None]
    below = sum(len(u.children) for u in lit if u.kind == "product")
    assert len(edges) == below + sum(u.kind == "sum" for u in lit)
    labels = [words for one in figure.data if one.name == "labels" for words in one.text]
    for token in sample.tokens:
        text = circuit_graph.tokens.label(view.text_of(token), 8)
        assert text in labels


def test_width_is_the_weight() -> None:
    view = circuit_view("cp", 4, 3)
    weights = view.beliefs.latents[0].weights[0]
    figure = drawn(view)
    widths = []
    for line in figure.data:
        if line.name == "weights":
            widths += [line.line.width] * sum(x is None for x in line.x)
    bins = [sum(w > bound for bound in circuit_graph.WIDTH_BOUNDS) for w in weights]
    assert sorted(widths) == sorted(WIDTHS[one] for one in bins)


def test_states_that_are_not_drawn_are_lumped() -> None:
    view = circuit_view("hmm", 4, 8)
    above, latent = view.beliefs.latents[1], view.beliefs.latents[2]
    rows, columns = (0, 3, REST), (1, 2, 5, REST)
    found = lumped(latent, above, rows, columns)
    for row in found:
        assert sum(row) == pytest.approx(1, abs=1e-3)
    passing = [
        sum(
            mass_of(above, rows, state) * row[place] for state, row in zip(rows, found, strict=True)
        )
        for place in range(len(columns))
    ]
    wanted = [mass_of(latent, columns, state) for state in columns]
    assert passing == pytest.approx(wanted, abs=1e-3)
    assert found[0][0] == latent.weights[0][1]


def test_places_of_states_stay_when_one_is_held() -> None:
    before = [0.3, 0.2, 0.05, 0.05, 0.2, 0.1, 0.05, 0.05]
    assert states_shown(before, before, [], 3) == (0, 1, 4, REST)
    assert states_shown(before, [0.0] * 7 + [1.0], [7], 3) == (0, 7, 4, REST)
    assert states_shown(before, before, [3, 6], 3) == (0, 3, 6, REST)
    assert states_shown(before[:4], before[:4], [], 3) == (0, 1, 2, 3)


def test_a_held_state_is_drawn_wherever_its_mass_was() -> None:
    view = circuit_view("btree", 8, 16)
    rare = min(range(16), key=lambda state: view.beliefs.latents[5].marginal[state])
    held, log_evidence = given(circuit_of("btree", view.numbers), clamped=(5, rare))
    now = beliefs(held, log_evidence)
    figure = circuit_graph.figure(view, now, table(), (5, rare))
    assert list(trace(figure, "clamped").customdata) == [[5, rare]]
    assert now.latents[5].marginal[rare] == 1


@pytest.mark.parametrize("name", ["cp", "hmm", "btree"])
def test_the_map_of_latents_has_every_state(name: str) -> None:
    view = circuit_view(name)
    sample = view.joint[0]
    figure = circuit_beliefs.latents(view, view.beliefs, table(), (0, 1), sample.states)
    cells = figure.data[0]
    for column, latent in enumerate(view.beliefs.latents):
        assert [row[column] for row in cells.z] == list(latent.marginal)
        assert cells.customdata[1][column][:2] == [column, 1]
    assert list(trace(figure, "drawn").y) == [state + 1 for state in sample.states]
    assert list(trace(figure, "clamped").y) == [2]


def test_ff_says_that_it_has_no_latents() -> None:
    view = circuit_view("ff")
    figure = circuit_beliefs.latents(view, view.beliefs, table())
    assert [note.text for note in figure.layout.annotations] == [table()["circuit.latents.none"]]


def test_bars_are_the_marginals_and_ticks_what_they_were() -> None:
    view = circuit_view("hmm")
    circuit = circuit_of("hmm", view.numbers)
    now = beliefs(given(circuit, clamped=(1, 0))[0], 0.0, circuit)
    figure = circuit_beliefs.marginals(view, now, table())
    shares = [(place, share) for place, one in enumerate(now.positions) for share in one.top]
    bars, ticks = trace(figure, "now"), trace(figure, "before")
    assert list(bars.base) == [place for place, _ in shares]
    assert [data[3] for data in bars.customdata] == [place + 1 for place, _ in shares]
    lengths = [circuit_beliefs.BAR_LENGTH * share.p for _, share in shares]
    assert list(bars.x) == pytest.approx(lengths)
    were = [place + circuit_beliefs.BAR_LENGTH * share.before for place, share in shares]
    assert list(ticks.x) == pytest.approx(were)
    without = circuit_beliefs.marginals(view, view.beliefs, table())
    assert len(trace(without, "before").x) == 0


@pytest.mark.parametrize("name", CIRCUITS)
def test_information_leaves_the_diagonal_out(name: str) -> None:
    view = circuit_view(name)
    cells = circuit_samples.information(view, view.information, table()).data[0].z
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            assert cell is None if i == j else cell == view.information[i][j]
    off = [cell for row in cells for cell in row if cell is not None]
    assert max(off) == 0 if name == "ff" else max(off) > 0


def test_a_pair_of_positions_is_framed_and_evidence_keeps_the_scale() -> None:
    view = circuit_view("hmm")
    held = given(circuit_of("hmm", view.numbers), (0, 1))[0]
    now = information(held)
    figure = circuit_samples.information(view, now, table(), (1, 3))
    cells = figure.data[0]
    assert cells.z[2][3] == now[2][3] != view.information[2][3]
    assert all(cell == 0 for cell in cells.z[0][1:])  # a given position has nothing left to tell
    assert cells.customdata[3][1] == cells.customdata[1][3] == [1, 3]
    assert cells.customdata[2][2] is None
    off = [
        row[i] for table in (view.information, now) for j, row in enumerate(table) for i in range(j)
    ]
    assert cells.zmax == pytest.approx(max(off))
    frames = [one for one in figure.data if one.name == "chosen"]
    assert [set(zip(one.x, one.y, strict=True)) for one in frames] == [
        {("+4", "+2"), ("+2", "+4")}
    ] * 2
    plain = circuit_samples.information(view, now, table())
    assert all(len(one.x) == 0 for one in plain.data if one.name == "chosen")


def test_what_is_chosen_has_no_roles_colour() -> None:
    view = circuit_view("btree", 8, 16)
    sample = view.joint[0]
    figures = [
        drawn(view, clamped=(0, 1), lit=Lit(sample.states, sample.tokens)),
        circuit_beliefs.latents(view, view.beliefs, table(), (0, 1), sample.states),
        circuit_samples.information(view, view.information, table(), (0, 1)),
    ]
    roles = {colour.lower() for colour in (*theme.ROLES.values(), *theme.DRAFTERS)}
    for figure in figures:
        data = str(figure.to_plotly_json()["data"]).lower()
        assert circuit_traces.CHOSEN.lower() in data or circuit_beliefs.DARK.lower() in data
        assert not roles.intersection(re.findall("#[0-9a-f]{6}", data))
    ring, held = trace(figures[0], "held ring"), trace(figures[0], "clamped")
    assert (ring.x, ring.y) == (held.x, held.y) and len(ring.x) == 1
    assert ring.marker.size > held.marker.size


def test_medians_stand_in_their_lanes() -> None:
    view = circuit_view("cp")
    found = circuit_samples.medians(view)
    assert found == {"verifier": -5.0, "joint": -10.0, "independent": -10.0}
    figure = circuit_samples.verdicts(view, table())
    strokes = trace(figure, "medians")
    lanes = [circuit_samples.LANES[y] for y in strokes.y]
    assert dict(zip(lanes, strokes.x, strict=True)) == found
    words = [note.text for note in figure.layout.annotations]
    assert words.count("median \u221210.0") == 2 and "median \u22125.0" in words
    assert table()["circuit.verdicts.threshold"] in words


def test_verdicts_put_every_sample_in_its_lane() -> None:
    view = circuit_view("cp")
    figure = circuit_samples.verdicts(view, table())
    assert list(trace(figure, "verifier").x) == list(view.verifier_log_p)
    bad, good = trace(figure, "joint impossible"), trace(figure, "joint possible")
    assert [pair[1] for pair in bad.customdata] == [0, 2]
    assert [pair[1] for pair in good.customdata] == [1, 3]
    assert list(bad.x) == [view.joint[0].log_p, view.joint[2].log_p]
    assert len(trace(figure, "independent impossible").x) == 0
    assert figure.layout.shapes[0].x0 == view.threshold


def texts_of(figure: go.Figure) -> Iterable[str]:
    for one in figure.data:
        yield from (str(words) for words in (one.text if one.text is not None else ()))
        yield from (str(words) for words in (one.hovertext if one.hovertext is not None else ()))
        data = one.customdata if one.customdata is not None else ()
        yield from (str(words) for row in data if row is not None for words in list(row))


def test_tokens_stay_text_in_every_figure() -> None:
    view = circuit_view("btree")
    figures = [
        drawn(view, lit=Lit(view.joint[0].states, view.joint[0].tokens)),
        circuit_beliefs.marginals(view, view.beliefs, table()),
        circuit_samples.verdicts(view, table()),
    ]
    escaped = 0
    for figure in figures:
        for words in texts_of(figure):
            assert "<b>x</b>" not in words and "&amp;" not in words.replace("&amp;amp;", "")
            escaped += "&lt;b&gt;" in words
    assert escaped > 0
