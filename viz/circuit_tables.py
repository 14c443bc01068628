"""A circuit's view as tables: the numbers behind each of its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mtp.records.circuit import Beliefs, CircuitView, Pair, Sample
from viz.figures.tokens import visible
from viz.texts import text

LISTED_FLOW = 0.001  # weights that carry less are left out


def listed(sample: Sample) -> dict[str, Any]:
    """A sample as a line of its list."""
    return {
        "text": visible(sample.text),
        "log_p": signed(sample.log_p),
        "log_q": signed(sample.log_q),
        "marks": [text(f"circuit.mark.{one.kind}", what=one.what) for one in sample.marks],
        "kinds": [one.kind for one in sample.marks],
    }


def weights(now: Beliefs) -> dict[str, Any]:
    """Every weight that carries something, by latent, the state above and its own."""
    rows = []
    for index, latent in enumerate(now.latents):
        above = (1.0,) if latent.parent < 0 else now.latents[latent.parent].marginal
        for parent, row in enumerate(latent.weights):
            for state, weight in enumerate(row):
                flow = above[parent] * weight
                if flow >= LISTED_FLOW:
                    up = "–" if latent.parent < 0 else f"{latent.parent + 1}: {parent + 1}"
                    rows.append([index + 1, up, state + 1, number(weight), number(flow)])
    return {"heads": _heads("latent", "above", "state", "weight", "flow"), "rows": rows}


def states(view: CircuitView, now: Beliefs) -> dict[str, Any]:
    """Every state's probability, now and without evidence."""
    rows = [
        [index + 1, f"+{latent.start + 1} – +{latent.stop}", state + 1, number(p),
         number(view.beliefs.latents[index].marginal[state])]
        for index, latent in enumerate(now.latents)
        for state, p in enumerate(latent.marginal)
    ]  # fmt: skip
    return {"heads": _heads("latent", "scope", "state", "p", "before"), "rows": rows}


def tokens(view: CircuitView, now: Beliefs) -> dict[str, Any]:
    """The most probable tokens of every position, now and without evidence."""
    rows = [
        [f"+{place + 1}", visible(view.text_of(share.token)), number(share.p),
         number(share.p if share.before is None else share.before)]
        for place, position in enumerate(now.positions)
        for share in position.top
    ]  # fmt: skip
    return {"heads": _heads("position", "token", "p", "before"), "rows": rows}


def _heads(*names: str) -> list[str]:
    return [text(f"circuit.table.{name}") for name in names]


def _offsets(view: CircuitView) -> list[str]:
    return [f"+{place + 1}" for place in range(view.window)]


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3g}"


def signed(value: float, digits: int = 1) -> str:
    """A fixed number of digits, with a true minus sign."""
    return f"{value:.{digits}f}".replace("-", "\u2212")


def information(view: CircuitView, now: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Mutual information of positions, in bits; their entropies on the diagonal."""
    rows = [
        [name, *(number(value) for value in row)]
        for name, row in zip(_offsets(view), now, strict=True)
    ]
    return {"heads": [text("circuit.information.x"), *_offsets(view)], "rows": rows}


def pairs(view: CircuitView, places: tuple[int, int], found: Sequence[Pair]) -> dict[str, Any]:
    """Pairs of tokens at two positions, jointly and as if the positions were independent."""
    rows = [
        [*(visible(view.text_of(token)) for token in one.tokens), number(one.p), number(one.apart)]
        for one in found
    ]
    heads = [*(f"+{place + 1}" for place in places), *_heads("pair", "apart")]
    return {"heads": heads, "rows": rows}


def verdicts(view: CircuitView) -> dict[str, Any]:
    """All samples, with what verifier and circuit say of them."""
    rows = [
        [text(f"circuit.lane.{kind}"), one["text"], one["log_p"], one["log_q"],
         "; ".join(one["marks"]) or "–"]
        for kind, samples in (("joint", view.joint), ("independent", view.independent))
        for one in map(listed, samples)
    ]  # fmt: skip
    return {"heads": _heads("kind", "text", "log_p", "log_q", "marks"), "rows": rows}
