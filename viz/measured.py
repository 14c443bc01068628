"""A measurement that ships with Draftscope: decoders by what a call brings and what it costs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mtp.records.bench import TableRow, read_table
from viz import panel
from viz.figures import acceptance
from viz.texts import table, text

CIRCUITS = panel.ASSETS / "bench" / "circuits" / "table.json"


@dataclass(frozen=True)
class Measured:
    """What was measured, over all prompts, and with which settings."""

    plan: dict[str, Any]
    rows: list[TableRow]


@cache
def read(path: Path) -> Measured | None:
    """The measurement in a table.json; None where none ships."""
    if not path.is_file():
        return None
    words = path.read_text(encoding="utf-8")
    rows = [row for row in read_table(words) if row.category == "all"]
    return Measured(json.loads(words)["plan"], rows)


def figure(measured: Measured) -> dict[str, Any]:
    """Acceptance against latency, as the page draws it."""
    return panel.plain_figure(acceptance.against_latency(measured.rows, table()))


def numbers(measured: Measured) -> dict[str, Any]:
    """The same as a table."""
    heads = ("decoder", "percall", "accepted", "draft", "verify", "speed", "ar", "hf")
    rows = [
        [
            row.decoder,
            _number(row.tokens_per_call),
            _number(row.accepted_per_call),
            _number(row.draft_ms),
            _number(row.verify_ms),
            _number(row.tokens_per_second, ".1f"),
            _spread(row.ratio_to_ar),
            _spread(row.ratio_to_hf),
        ]
        for row in measured.rows
    ]
    return {"heads": [text(f"acceptance.table.{head}") for head in heads], "rows": rows}


def said(measured: Measured) -> str:
    """What was measured, in a sentence."""
    plan = measured.plan
    sentence = text(
        "acceptance.said",
        prompts=len(plan["prompts"]),
        tokens=plan["max_new_tokens"],
        temperature=plan["temperature"],
        device=plan["device"],
        dtype=plan["dtype"],
    )
    bits = plan.get("bits_per_byte")
    return sentence if bits is None else f"{sentence} {text('acceptance.bits', bits=f'{bits:.2f}')}"


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def _spread(value: tuple[float, float, float] | None) -> str:
    return "–" if value is None else f"{value[1]:.2f} [{value[0]:.2f} – {value[2]:.2f}]"
