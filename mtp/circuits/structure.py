"""Structure of a circuit: which latent chooses what, over which positions of the window.

All four circuits of MTPC are trees of latents with the window's positions as leaves, read from left
to right. A latent's distribution depends on the state of the latent above it (one row of a weight
matrix); a position's token depends on the state of the latent that owns it.

    FF     no latent: positions are independent
    CP     one latent owns every position
    HMM    a chain: latent i owns position i, and latent i+1 hangs below it
    BTree  one latent per internal node of a tree that halves the window; leaves hang below

This one description is computed with (`moves`, `latents`, `owners`); latents and owners travel in
the records, from which pages draw it (`viz/figures/circuit_layout.py`): a sum for every latent and
state above it, a product for every latent's state, an input for every position and state.
Source: MTPC (arXiv 2511.11346), section 3.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple, get_args

from mtp.errors import InputError

CircuitName = Literal["ff", "cp", "hmm", "btree"]
CIRCUIT_NAMES: tuple[CircuitName, ...] = get_args(CircuitName)

TOP = -1  # the parent of the first latent, and the owner of positions that have no latent


@dataclass(frozen=True)
class Latent:
    """A latent variable: the state it takes chooses a component for everything below it."""

    index: int
    parent: int  # index of the latent above, or TOP
    start: int  # first position below this latent
    stop: int  # one past the last position below it


class Move(NamedTuple):
    """A step of the left-to-right walk: go down into a latent, or finish it and go back up."""

    kind: Literal["open", "close"]
    latent: int


@dataclass(frozen=True)
class Structure:
    """A circuit without its numbers.

    `latents` has parents before children. Latent 0 reads the `root` weights (r,); latent i > 0
    reads `transitions[i - 1]` (r, r): row = state of its parent, column = its own state.
    `owners[i]` is the latent that chooses the component of position i, or TOP. `moves[i]` leads
    from having read position i - 1 to being ready to read position i.
    """

    circuit: CircuitName
    window: int
    rank: int
    latents: tuple[Latent, ...]
    owners: tuple[int, ...]
    moves: tuple[tuple[Move, ...], ...]

    @property
    def root_shape(self) -> tuple[int, ...]:
        """Shape of the root weights of one circuit: (r,), or (0,) without latents."""
        return (self.rank if self.latents else 0,)

    @property
    def transitions_shape(self) -> tuple[int, ...]:
        """Shape of the transitions of one circuit: (number of latents - 1, r, r)."""
        return (max(len(self.latents) - 1, 0), self.rank, self.rank)

    def states_of(self, latent: int) -> int:
        """How many states a latent has; TOP has one."""
        return 1 if latent == TOP else self.rank

    def children_of(self, latent: int) -> tuple[int, ...]:
        """Latents whose parent is `latent` (TOP allowed), left to right."""
        below = [child for child in self.latents if child.parent == latent]
        return tuple(child.index for child in sorted(below, key=lambda child: child.start))


@cache
def build(circuit: str, window: int, rank: int) -> Structure:
    """Returns the structure of `circuit` over `window` tokens with `rank` components.

    Raises InputError for an unknown name, sizes below 1, FF with more than one component, or
    BTree over a window that is not a power of two of at least 2.
    """
    if circuit not in CIRCUIT_NAMES:
        raise InputError(f"Circuit '{circuit}' is unknown; choose from {', '.join(CIRCUIT_NAMES)}.")
    if window < 1 or rank < 1:
        raise InputError(f"Window {window} and rank {rank} must both be at least 1.")
    if circuit == "ff":
        if rank != 1:
            raise InputError(f"FF has one component per position, so its rank is 1, not {rank}.")
        latents, owners = [], [TOP] * window
    elif circuit == "cp":
        latents, owners = [Latent(0, TOP, 0, window)], [0] * window
    elif circuit == "hmm":
        latents = [Latent(i, i - 1, i, window) for i in range(window)]
        owners = list(range(window))
    else:
        latents, owners = _halves(window)
    return Structure(
        circuit, window, rank, tuple(latents), tuple(owners), _walk(tuple(latents), tuple(owners))
    )


def _halves(window: int) -> tuple[list[Latent], list[int]]:
    """Latents of a BTree in level order (children of i: 2i + 1, 2i + 2) and owners of positions."""
    if window < 2 or window & (window - 1):
        raise InputError(f"BTree halves its window; {window} is not a power of two of at least 2.")
    latents: list[Latent] = []
    level, size = 0, window
    while size > 1:
        for place in range(2**level):
            index = 2**level - 1 + place
            parent = TOP if index == 0 else (index - 1) // 2
            latents.append(Latent(index, parent, place * size, (place + 1) * size))
        level, size = level + 1, size // 2
    lowest = 2 ** (level - 1) - 1
    return latents, [lowest + position // 2 for position in range(window)]


def _walk(latents: tuple[Latent, ...], owners: tuple[int, ...]) -> tuple[tuple[Move, ...], ...]:
    """The moves of a depth-first walk that reads the positions from left to right."""
    moves: list[tuple[Move, ...]] = []
    here: list[int] = []  # open latents, outermost first
    for owner in owners:
        path: list[int] = []
        while owner != TOP:
            path.insert(0, owner)
            owner = latents[owner].parent
        shared = 0
        while shared < min(len(here), len(path)) and here[shared] == path[shared]:
            shared += 1
        closing = [Move("close", latent) for latent in reversed(here[shared:])]
        opening = [Move("open", latent) for latent in path[shared:]]
        moves.append((*closing, *opening))
        here = path
    return tuple(moves)
