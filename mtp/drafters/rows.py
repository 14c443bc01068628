"""How many rows of a block a drafter takes: its nodes, and the probes that ride along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtp.errors import InputError

DYNAMIC = "dynamic"
MOST_NODES = 255  # of one tree; more rows than this pay on no machine


def children_per_depth(tree: str) -> tuple[int, ...] | None:
    """A fixed tree such as "15,4" as numbers: children of the root, then of the best node of each
    depth. None for "dynamic".

    Raises InputError for anything else.
    """
    if tree.strip() == DYNAMIC:
        return None
    try:
        counts = tuple(int(part) for part in tree.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1 or sum(counts) > MOST_NODES:
        raise InputError(
            f"The tree is {tree[:40]!r}; it can be {DYNAMIC} or children per depth, such as 15,4, "
            f"{MOST_NODES} at most in all."
        )
    return counts


def probe_rows(name: str, options: Mapping[str, Any], nodes: int) -> int:
    """Rows of a drafter's probes beside a tree of `nodes` nodes.

    `esp`: k masks for the root and every node. `lookahead`: its window, whose first token is the
    root.
    """
    if name == "esp":
        return int(options["masks"]) * (1 + nodes)
    if name == "lookahead":
        return (int(options["n"]) - 1) * int(options["window"]) - 1
    return 0


def most_nodes(members: Mapping[str, Mapping[str, Any]], budget: int) -> int:
    """The largest tree with which root, nodes and all members' probes fit into `budget` rows."""
    fixed = 1 + sum(probe_rows(name, options, 0) for name, options in members.items())
    with_one = 2 + sum(probe_rows(name, options, 1) for name, options in members.items())
    return max(0, min(MOST_NODES, (budget - fixed) // (with_one - fixed)))
