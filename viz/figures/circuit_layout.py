"""Where a circuit's units stand: which states of each latent are drawn, and at what place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mtp.records.circuit import NO_LATENT, Beliefs

REST = -1  # the state that stands for all states that are not drawn on their own
MOST_STATES = {"ff": 1, "cp": 6, "hmm": 4, "btree": 3}
MOST_STATES_WIDE = {"ff": 1, "cp": 6, "hmm": 4, "btree": 2}
WIDE = 9  # positions from which on fewer states fit
CHIP, WORD_CHIP, CHIP_HEIGHT = 26, 66, 24  # px; words need wider inputs than bytes
ROW = {"cp": 46, "hmm": 70}  # px between states that stand in rows
LEVEL, FALL = 134, 68  # px from level to level of a tree; from its sums to its products
REST_WIDTH = 34


@dataclass(frozen=True)
class Place:
    """px from the left and from the top."""

    x: float
    y: float


@dataclass(frozen=True)
class Laid:
    """A laid-out circuit. `shown[l]`: the states drawn of latent l, REST last where there are more.

    sums: (latent, state of its parent) → place; products: (latent, state); inputs: (position,
    state). FF has the product (NO_LATENT, 0). marks: labels of positions.
    """

    shown: tuple[tuple[int, ...], ...]
    sums: dict[tuple[int, int], Place]
    products: dict[tuple[int, int], Place]
    inputs: dict[tuple[int, int], Place]
    marks: tuple[tuple[Place, str], ...]
    chip: int
    width: float
    height: float


def states_shown(
    before: Sequence[float], now: Sequence[float], must: Sequence[int], most: int
) -> tuple[int, ...]:
    """At most `most` states of a latent, then REST if any are left.

    Those most probable without evidence, in rising order, so that places stay; but the ones in
    `must` and the most probable one now take the places of the least probable.
    """
    rank = len(before)
    if rank <= most + 1:
        return tuple(range(rank))
    kept = sorted(sorted(range(rank), key=lambda state: -before[state])[:most])
    wanted = list(dict.fromkeys([*must, max(range(rank), key=lambda state: now[state])]))[:most]
    for state in wanted:
        if state not in kept:
            least = min((k for k in kept if k not in wanted), key=lambda k: (now[k], before[k]))
            kept[kept.index(least)] = state
    return (*kept, REST)


def lay_out(
    circuit: str, before: Beliefs, now: Beliefs, must: Sequence[Sequence[int]], words: bool
) -> Laid:
    """Places every unit that is drawn. `must[l]`: states of latent l that have to be among them;
    `words`: whether input labels are longer than a character or two.
    """
    window = len(now.positions)
    most = (MOST_STATES_WIDE if window >= WIDE else MOST_STATES)[circuit]
    shown = tuple(
        states_shown(old.marginal, new.marginal, needed, most)
        for old, new, needed in zip(before.latents, now.latents, must, strict=True)
    )
    chip = WORD_CHIP if words else CHIP
    if circuit == "ff":
        return _independent(window, chip)
    if circuit == "cp":
        return _mixture(window, shown, chip)
    if circuit == "hmm":
        return _chain(window, shown, chip)
    return _tree(now, shown, chip)


def _independent(window: int, chip: int) -> Laid:
    step = chip + 34
    xs = [50 + step * position for position in range(window)]
    inputs = {(position, 0): Place(x, 190) for position, x in enumerate(xs)}
    marks = tuple((Place(x, 222), f"+{position + 1}") for position, x in enumerate(xs))
    top = {(NO_LATENT, 0): Place((xs[0] + xs[-1]) / 2, 50)}
    return Laid((), {}, top, inputs, marks, chip, xs[-1] + 50, 244)


def _mixture(window: int, shown: tuple[tuple[int, ...], ...], chip: int) -> Laid:
    rows = {state: 52 + ROW["cp"] * slot for slot, state in enumerate(shown[0])}
    middle = (min(rows.values()) + max(rows.values())) / 2
    xs = [220 + chip / 2 + (chip + 16) * position for position in range(window)]
    inputs = {
        (position, state): Place(x, y)
        for state, y in rows.items()
        if state != REST
        for position, x in enumerate(xs)
    }
    return Laid(
        shown,
        {(0, 0): Place(34, middle)},
        {(0, state): Place(166, y) for state, y in rows.items()},
        inputs,
        tuple((Place(x, 18), f"+{position + 1}") for position, x in enumerate(xs)),
        chip,
        xs[-1] + chip / 2 + 24,
        max(rows.values()) + 34,
    )


def _chain(window: int, shown: tuple[tuple[int, ...], ...], chip: int) -> Laid:
    step = max(88, chip + 62)
    slots = max(len(states) for states in shown)
    xs = [104 + step * latent for latent in range(window)]
    ys = [58 + ROW["hmm"] * slot for slot in range(slots)]
    sums = {(0, 0): Place(28, (ys[0] + ys[-1]) / 2)}
    products, inputs = {}, {}
    for latent, states in enumerate(shown):
        for slot, state in enumerate(states):
            products[latent, state] = Place(xs[latent], ys[slot])
            if state != REST:
                inputs[latent, state] = Place(xs[latent], ys[slot] + 27)
            if latent + 1 < window:
                sums[latent + 1, state] = Place(xs[latent] + 28, ys[slot])
    marks = tuple((Place(x, 18), f"+{position + 1}") for position, x in enumerate(xs))
    return Laid(
        shown, sums, products, inputs, marks, chip, xs[-1] + max(44, chip / 2 + 16), ys[-1] + 52
    )


def _tree(now: Beliefs, shown: tuple[tuple[int, ...], ...], chip: int) -> Laid:
    pair = 2 * chip + 10  # px of a product with both its inputs
    levels = [_depth(now, latent) for latent in range(len(shown))]
    lowest = max(levels)
    sums, products, inputs, marks, centres = {}, {}, {}, [], {}
    left = 18.0
    for latent in sorted(range(len(shown)), key=lambda one: now.latents[one].start):
        if levels[latent] != lowest:
            continue
        y = 30 + LEVEL * lowest + FALL
        x = left
        start = now.latents[latent].start
        for state in shown[latent]:
            size = REST_WIDTH if state == REST else pair
            products[latent, state] = Place(x + size / 2, y)
            if state != REST:
                for side in (0, 1):
                    across = x + size / 2 + (side - 0.5) * (chip + 3)
                    inputs[start + side, state] = Place(across, y + 46)
            x += size
        centres[latent] = (left + x) / 2
        marks.append((Place(centres[latent], y + 78), f"+{start + 1} and +{start + 2}"))
        left = x + 14
    for latent in reversed(range(len(shown))):
        if levels[latent] < lowest:
            below = [c for c in centres if now.latents[c].parent == latent]
            centres[latent] = sum(centres[c] for c in below) / len(below)
            y = 30 + LEVEL * levels[latent] + FALL
            states = shown[latent]
            for slot, state in enumerate(states):
                across = centres[latent] + 62 * (slot - (len(states) - 1) / 2)
                products[latent, state] = Place(across, y)
        parent = now.latents[latent].parent
        above = (0,) if parent == NO_LATENT else shown[parent]
        for slot, state in enumerate(above):
            across = centres[latent] + 40 * (slot - (len(above) - 1) / 2)
            sums[latent, state] = Place(across, 30 + LEVEL * levels[latent])
    height = 30 + LEVEL * lowest + FALL + 100
    return Laid(shown, sums, products, inputs, tuple(marks), chip, left + 4, height)


def _depth(now: Beliefs, latent: int) -> int:
    depth = 0
    while now.latents[latent].parent != NO_LATENT:
        latent, depth = now.latents[latent].parent, depth + 1
    return depth
