"""All units of a circuit, one by one: what its pictures and its queries have to match.

Unit values multiply and add exactly as the queries do: evaluating the units bottom-up gives
`log_prob`, and a small circuit's picture has just these units and edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from mtp.circuits.structure import TOP, Structure
from mtp.errors import InputError


@dataclass(frozen=True)
class Unit:
    """One unit of the graph.

    input: component `state` of position `start`, reads `inputs[start, state]` (v,).
    product: what latent `latent` in state `state` chooses; no parameters.
    sum: sums out `latent`, given that the latent above is in `state`; one weight per child, read
    from `root` (no row) or from `transitions[latent - 1, state]`.
    """

    index: int
    kind: Literal["input", "product", "sum"]
    start: int  # scope: positions start … stop - 1
    stop: int
    latent: int  # TOP for inputs owned by no latent, and for the product at the top of FF
    state: int
    children: tuple[int, ...]  # indices of units, all smaller than this unit's
    parameter: Literal["inputs", "root", "transitions", "none"]
    row: tuple[int, ...]  # where in that parameter, without the batch axis


@cache
def units(structure: Structure) -> tuple[Unit, ...]:
    """All units, children before parents; the last one is the circuit's output."""
    made: list[Unit] = []
    inputs: dict[tuple[int, int], int] = {}
    sums: dict[tuple[int, int], int] = {}  # (latent, state of its parent) → unit

    def add(
        kind: Literal["input", "product", "sum"],
        scope: tuple[int, int],
        latent: int,
        state: int,
        children: tuple[int, ...] = (),
        parameter: Literal["inputs", "root", "transitions", "none"] = "none",
        row: tuple[int, ...] = (),
    ) -> int:
        made.append(Unit(len(made), kind, *scope, latent, state, children, parameter, row))
        return len(made) - 1

    def product(latent: int, state: int, scope: tuple[int, int]) -> int:
        owned = [i for i, owner in enumerate(structure.owners) if owner == latent]
        below = [(i, inputs[i, state]) for i in owned]
        below += [
            (structure.latents[child].start, sums[child, state])
            for child in structure.children_of(latent)
        ]
        return add("product", scope, latent, state, tuple(unit for _, unit in sorted(below)))

    for position, owner in enumerate(structure.owners):
        for state in range(structure.states_of(owner)):
            scope = (position, position + 1)
            inputs[position, state] = add(
                "input", scope, owner, state, parameter="inputs", row=(position, state)
            )
    if not structure.latents:
        product(TOP, 0, (0, structure.window))
    for latent in reversed(structure.latents):
        scope = (latent.start, latent.stop)
        chosen = tuple(product(latent.index, s, scope) for s in range(structure.rank))
        for state in range(structure.states_of(latent.parent)):
            row = () if latent.parent == TOP else (latent.index - 1, state)
            parameter: Literal["root", "transitions"] = (
                "root" if latent.parent == TOP else "transitions"
            )
            sums[latent.index, state] = add(
                "sum", scope, latent.index, state, chosen, parameter, row
            )
    return tuple(made)


def induced_tree(structure: Structure, states: Sequence[int]) -> tuple[int, ...]:
    """Units that one joint choice of latent states selects, in the order of `units`.

    `states`: one state per latent. Returns the sum, product and input units through which a sample
    with these latents was drawn (the induced tree of the sample). Raises InputError when the
    number of states or a state is out of range.
    """
    if len(states) != len(structure.latents) or any(
        not 0 <= state < structure.rank for state in states
    ):
        raise InputError(
            f"Latent states {list(states)} don't fit: {len(structure.latents)} states below "
            f"{structure.rank} are needed."
        )
    at = {TOP: 0} | {latent: int(state) for latent, state in enumerate(states)}
    lit = []
    for unit in units(structure):
        above = unit.latent
        if unit.kind == "sum":
            above = structure.latents[unit.latent].parent
        if unit.state == at[above]:
            lit.append(unit.index)
    return tuple(lit)
