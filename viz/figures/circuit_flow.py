"""How probability passes between the states of a circuit that are drawn, the others lumped."""

from __future__ import annotations

from mtp.records.circuit import LatentView
from viz.figures.circuit_layout import REST


def lumped(latent: LatentView, above: LatentView | None, rows: tuple[int, ...],
           columns: tuple[int, ...]) -> list[list[float]]:  # fmt: skip
    """Weights between the states that are drawn, REST standing for all others together: its row is
    their mean by the parent's probabilities, its column their sum.
    """
    parent = above.marginal if above is not None else (1.0,)
    others = [state for state in range(len(parent)) if state not in rows]
    mass = sum(parent[state] for state in others)

    def row(state: int) -> list[float]:
        if state != REST:
            return list(latent.weights[state])
        if mass <= 0:
            return [sum(w[c] for w in latent.weights) / len(parent) for c in _states(latent)]
        return [
            sum(parent[s] * latent.weights[s][c] for s in others) / mass for c in _states(latent)
        ]

    table = []
    for state in rows:
        weights = row(state)
        rest = sum(weights[c] for c in _states(latent) if c not in columns)
        table.append([rest if column == REST else weights[column] for column in columns])
    return table


def _states(latent: LatentView) -> range:
    return range(len(latent.marginal))


def mass_of(latent: LatentView, shown: tuple[int, ...], state: int) -> float:
    """Probability of a drawn state; of REST, of all that are not drawn."""
    if state != REST:
        return latent.marginal[state]
    return sum(p for s, p in enumerate(latent.marginal) if s not in shown)
