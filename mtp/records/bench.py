"""What a measurement leaves: one row a run, and how rows are summed up."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from mtp.errors import InputError


@dataclass(frozen=True)
class BenchRow:
    """One decoder on one prompt, once. Numbers as in the trace's summary; None: not measurable."""

    prompt_index: int
    category: str
    decoder: str
    repeat: int
    prompt_tokens: int
    new_tokens: int
    verifier_calls: int | None
    accepted: int | None
    drafted: int | None
    rows: int | None
    seconds: float
    seconds_prefill: float
    seconds_draft: float | None
    seconds_verify: float | None
    tokens_per_second: float | None
    peak_memory_mb: float
    text: str
    ids: tuple[int, ...]
    seconds_forward: float | None = None
    """Of the verifier's forwards after the prefill; None where that is not known."""


@dataclass(frozen=True)
class TableRow:
    """A decoder over a set of prompts.

    tokens_per_call is all new tokens over all verifier calls; draft_ms and verify_ms are the
    median over runs of what a call spent drafting and verifying; outside is the median share of the
    time that was not the verifier's forward. Speeds are medians over prompts
    and repeats; a ratio is the median over prompts of (decoder's median speed / the other's),
    with its quartiles.
    """

    category: str
    decoder: str
    runs: int
    tokens_per_call: float | None
    accepted_per_call: float | None
    rows_per_call: float | None
    tokens_per_second: float | None
    ratio_to_ar: tuple[float, float, float] | None
    ratio_to_hf: tuple[float, float, float] | None
    draft_ms: float | None
    verify_ms: float | None
    peak_memory_mb: float
    outside: float | None = None


_TABLE = TypeAdapter(list[TableRow])


def tabulate(rows: Sequence[BenchRow], decoders: Sequence[str]) -> list[TableRow]:
    """The table by category, then over all prompts ("all"), decoders in the order given."""
    categories = list(dict.fromkeys(row.category for row in rows))
    groups = [*categories, "all"] if len(categories) > 1 else ["all"]
    table = []
    for category in groups:
        within = [row for row in rows if category in ("all", row.category)]
        for decoder in decoders:
            mine = [row for row in within if row.decoder == decoder]
            if mine:
                table.append(_table_row(category, decoder, mine, within))
    return table


def _table_row(
    category: str, decoder: str, mine: Sequence[BenchRow], within: Sequence[BenchRow]
) -> TableRow:
    speeds = [row.tokens_per_second for row in mine if row.tokens_per_second is not None]
    return TableRow(
        category=category,
        decoder=decoder,
        runs=len(mine),
        tokens_per_call=_share(mine, "new_tokens"),
        accepted_per_call=_share(mine, "accepted"),
        rows_per_call=_share(mine, "rows"),
        tokens_per_second=statistics.median(speeds) if speeds else None,
        ratio_to_ar=_ratio(mine, [row for row in within if row.decoder == "ar"]),
        ratio_to_hf=_ratio(mine, [row for row in within if row.decoder == "hf"]),
        draft_ms=_milliseconds(mine, "seconds_draft"),
        verify_ms=_milliseconds(mine, "seconds_verify"),
        peak_memory_mb=max(row.peak_memory_mb for row in mine),
        outside=_outside(mine),
    )


def _outside(rows: Sequence[BenchRow]) -> float | None:
    """The median over runs of the share of time outside the verifier's forward."""
    shares = [
        1 - row.seconds_forward / row.seconds
        for row in rows
        if row.seconds_forward is not None and row.seconds > 0
    ]
    return statistics.median(shares) if shares else None


def _milliseconds(rows: Sequence[BenchRow], name: str) -> float | None:
    """The median over runs of a time a verifier call."""
    times = []
    for row in rows:
        seconds: float | None = getattr(row, name)
        if seconds is None or not row.verifier_calls:
            return None
        times.append(1000 * seconds / row.verifier_calls)
    return statistics.median(times) if times else None


def _share(rows: Sequence[BenchRow], name: str) -> float | None:
    """A count summed over runs, a verifier call."""
    counts: list[int] = []
    calls = 0
    for row in rows:
        count: int | None = getattr(row, name)
        if count is None or row.verifier_calls is None:
            return None
        counts.append(count)
        calls += row.verifier_calls
    return sum(counts) / calls if calls else None


def _ratio(
    mine: Sequence[BenchRow], others: Sequence[BenchRow]
) -> tuple[float, float, float] | None:
    """First quartile, median and third quartile over prompts of the ratio of median speeds."""
    ratios = []
    for prompt in {row.prompt_index for row in mine}:
        own = _median_speed(mine, prompt)
        other = _median_speed(others, prompt)
        if own and other:
            ratios.append(own / other)
    if not ratios:
        return None
    if len(ratios) == 1:
        return (ratios[0],) * 3
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high


def _median_speed(rows: Sequence[BenchRow], prompt: int) -> float | None:
    speeds = [
        row.tokens_per_second
        for row in rows
        if row.prompt_index == prompt and row.tokens_per_second is not None
    ]
    return statistics.median(speeds) if speeds else None


def as_text(table: Sequence[TableRow]) -> str:
    """The table as aligned text, numbers to three significant digits."""
    heads: tuple[str, ...] = ("category", "decoder", "runs", "tokens/call", "accepted/call")
    heads += ("rows/call", "draft ms", "verify ms", "outside", "tokens/s")
    heads += ("× ar [quartiles]", "× hf [quartiles]", "peak MB")
    lines = [heads]
    for row in table:
        lines.append(
            (
                row.category,
                row.decoder,
                str(row.runs),
                _number(row.tokens_per_call),
                _number(row.accepted_per_call),
                _number(row.rows_per_call),
                _number(row.draft_ms),
                _number(row.verify_ms),
                "–" if row.outside is None else f"{100 * row.outside:.1f}%",
                _number(row.tokens_per_second),
                _spread(row.ratio_to_ar),
                _spread(row.ratio_to_hf),
                f"{row.peak_memory_mb:.0f}",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    digits = 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def _spread(value: tuple[float, float, float] | None) -> str:
    if value is None:
        return "–"
    if value[0] == value[2]:
        return _number(value[1])  # one prompt has no spread
    return f"{_number(value[1])} [{_number(value[0])}–{_number(value[2])}]"


def read_table(text: str) -> list[TableRow]:
    """The rows of a measurement's table.json. Raises InputError for anything else."""
    try:
        return _TABLE.validate_python(json.loads(text)["rows"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("This is not the table.json of a measurement.") from error
