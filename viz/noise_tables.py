"""What page Noise says in words and tables: the rows of tokens, the picture's numbers, counts."""

from __future__ import annotations

from typing import Any

from mtp.records.noise import (
    PLAIN,
    DrafterFacts,
    Foreseen,
    NoiseRecord,
    NoiseView,
    Picked,
)
from viz.figures.tokens import visible
from viz.texts import text


def cells_of(view: NoiseView) -> dict[str, list[dict[str, Any]]]:
    """The rows of tokens by name, plain sampling's first."""
    rows = {PLAIN: [_plain_cell(one) for one in view.plain]}
    return rows | {name: _cells(foreseen) for name, foreseen in view.foreseen.items()}


def _plain_cell(one: Picked) -> dict[str, Any]:
    low, high = one.interval
    about = text("noise.cell.plain", u=f"{one.u:.3f}", low=f"{low:.3f}", high=f"{high:.3f}")
    return {"text": visible(one.text), "state": "verifier", "about": about}


def _cells(foreseen: tuple[Foreseen, ...]) -> list[dict[str, Any]]:
    """A drafter's row: a token stands while all before it stand; after that it is unreached. One
    that the drafter is told is the verifier's.
    """
    cells = []
    for place, (one, state) in enumerate(zip(foreseen, states_of(foreseen), strict=True)):
        key = "noise.cell.told" if one.told else "noise.cell.foreseen"
        about = text(key, p=f"{one.probability:.3g}", verifier=f"{one.verifier:.3g}")
        impossible = place > 0 and one.impossible
        if impossible:
            about += " " + text("noise.cell.impossible")
        cells.append({"text": visible(one.text), "state": state, "about": about,
                      "impossible": impossible})  # fmt: skip
    return cells


def states_of(foreseen: tuple[Foreseen, ...]) -> list[str]:
    """What became of a drafter's tokens: verifier (told), accepted, rejected or unreached."""
    states = []
    reached = True
    for one in foreseen:
        if one.told:
            states.append("verifier")
            continue
        states.append("accepted" if reached and one.picked else "rejected" if reached else
                      "unreached")  # fmt: skip
        reached = reached and one.picked
    return states


def drafts_of(view: NoiseView) -> list[dict[str, Any]]:
    """The rows of tokens as numbers: place, row, token, the drafter's probability, the verifier's,
    what became of it, whether it is impossible behind the token before.
    """
    found: list[dict[str, Any]] = []
    for place, one in enumerate(view.plain, 1):
        low, high = one.interval
        found.append({"place": place, "row": PLAIN, "token": one.text, "noise": one.u,
                      "drafter": None, "verifier": high - low, "state": "verifier",
                      "impossible": False})  # fmt: skip
    for name, foreseen in view.foreseen.items():
        for at, (token, state) in enumerate(zip(foreseen, states_of(foreseen), strict=True)):
            found.append({"place": at + 1, "row": name, "token": token.text,
                          "noise": view.noise[at],
                          "drafter": None if token.told else token.probability,
                          "verifier": token.verifier, "state": state,
                          "impossible": at > 0 and token.impossible})  # fmt: skip
    return found


def drafts_table(view: NoiseView) -> dict[str, Any]:
    """The rows of tokens as a table."""
    heads = ("position", "row", "token", "drafter_p", "verifier_p", "became", "impossible_one")
    return {
        "heads": [text(f"noise.table.{name}") for name in heads],
        "rows": [
            [one["place"], text(f"noise.row.{one['row']}"), visible(one["token"]),
             "–" if one["drafter"] is None else f"{one['drafter']:.3g}",
             f"{one['verifier']:.3g}", text(f"noise.became.{one['state']}"),
             "●" if one["impossible"] else ""]
            for one in drafts_of(view)
        ],
    }  # fmt: skip


def strips_table(view: NoiseView) -> dict[str, Any]:
    """The intervals of the columns as a table."""
    heads = ("position", "noise", "token", "from", "to", "picked")
    return {
        "heads": [text(f"noise.table.{name}") for name in heads],
        "rows": [
            [place + 1, f"{picked.u:.3f}", visible(word), f"{low:.4f}", f"{high:.4f}",
             "●" if (low, high) == picked.interval else ""]
            for place, picked in enumerate(view.plain)
            for word, low, high in picked.strip
        ],
    }  # fmt: skip


def said_of(view: NoiseView) -> str:
    """A view in a sentence or two."""
    written = "".join(one.text for one in view.plain)
    said = text("noise.said.plain", written=visible(written))
    if not view.foreseen:
        return said
    parts = [
        text("noise.said.right", drafter=text(f"noise.row.{name}"), right=view.right(name),
             drafted=len(view.drafted(name)))
        for name in view.foreseen
    ]  # fmt: skip
    said += " " + text("noise.said.row", parts=", ".join(parts))
    if any(row[0].told for row in view.foreseen.values()):
        said += " " + text("noise.said.told")
    return said


def definition_of(name: str, facts: DrafterFacts, told: bool) -> str:
    """What a drafter is, and how the one that is shown works."""
    parts = [f"noise.row.{name}.is"]
    if facts.head_layers:
        parts.append("noise.how.head" if facts.rank else "noise.how.head.alone")
        parts.append("noise.how.once" if name == "independent" else "noise.how.passes")
    else:
        parts.append("noise.how.rows")
    if told:
        parts.append("noise.how.told")
    return " ".join(text(key) for key in parts)


def tally_of(record: NoiseRecord) -> dict[str, Any]:
    """Counts over many draws of noise as a table."""
    heads = ("drafter", "right", "impossible", "trained")
    rows = []
    for name, one in record.tallies.items():
        facts = record.drafters.get(name)
        drafted = len(record.view.drafted(name)) if facts else 0
        rows.append([
            text(f"noise.row.{name}"),
            text("noise.table.of", right=f"{one.right:.2f}", drafted=drafted) if facts else "–",
            f"{100 * one.impossible:.2g}%",
            f"{facts.temperature:g}" if facts else "–",
        ])  # fmt: skip
    return {"heads": [text(f"noise.table.{name}") for name in heads], "rows": rows}
