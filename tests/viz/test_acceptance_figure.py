"""The acceptance plot shows the table's numbers, and tells decoders apart."""

import json
from dataclasses import asdict

import pytest

from mtp.errors import InputError
from mtp.records.bench import TableRow, read_table
from viz.figures.acceptance import against_latency, label_of
from viz.texts import table


def row(decoder, tokens, draft, verify):
    return TableRow(
        category="all",
        decoder=decoder,
        runs=4,
        tokens_per_call=tokens,
        accepted_per_call=None,
        rows_per_call=16.0,
        tokens_per_second=900.0,
        ratio_to_ar=(1.0, 1.5, 2.0),
        ratio_to_hf=None,
        draft_ms=draft,
        verify_ms=verify,
        peak_memory_mb=9.0,
    )


ROWS = [
    row("ar", 1.0, 0.0, 4.0),
    row("mtpc-ff[window=8]", 3.0, 0.5, 5.5),
    row("mtpc-btree[window=16,lora=2,verification=rejection]", 4.5, 1.0, 7.0),
    row("hf", None, None, None),
]


def test_points_are_the_tables_numbers():
    figure = against_latency(ROWS, table())
    points = {trace.name: trace for trace in figure.data if trace.name}
    assert set(points) == {"ar", "mtpc-ff", "mtpc-btree"}  # hf's calls are not told
    assert (points["mtpc-ff"].x[0], points["mtpc-ff"].y[0]) == (6.0, 3.0)
    assert points["mtpc-btree"].text[0] == "16 K2"
    assert points["mtpc-btree"].marker.symbol[0].endswith("-open")
    assert not points["mtpc-ff"].marker.symbol[0].endswith("-open")
    low, high = figure.layout.yaxis.range
    assert low < 1.0 and 4.5 < high < 5.0
    assert points["mtpc-btree"].marker.size[0] > points["mtpc-ff"].marker.size[0]
    assert "1.50 [1.00 – 2.00]" in points["mtpc-ff"].hovertext[0]
    assert list(points["mtpc-btree"].customdata) == [[ROWS[2].decoder]]
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    named = [one.text for one in figure.layout.annotations]
    assert named == ["0.5 ×", "0.75 ×", "1 ×", "1.5 ×", "2 ×", "3 ×", "4 ×"]
    for line, name in zip(lines, named, strict=True):
        for x, y in zip(line.x, line.y, strict=True):  # plain decoding: a token every 4 ms
            assert y == pytest.approx(float(name.split()[0]) * x / 4.0)
            assert low - 1e-9 <= y <= high + 1e-9


def test_labels_name_what_differs():
    assert label_of("mtpc-ff") == ""
    assert label_of("mtpc-ff[window=8,tree=best]") == "8 tree"


def test_an_empty_table_is_an_empty_figure():
    assert not against_latency([], table()).data


def test_tables_are_read_back_and_others_refused():
    text = json.dumps({"plan": {}, "rows": [asdict(one) for one in ROWS]})
    assert read_table(text) == ROWS
    for broken in ("[]", "{", '{"rows": [{"category": 1}]}'):
        with pytest.raises(InputError, match=r"not the table\.json"):
            read_table(broken)
