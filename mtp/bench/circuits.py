"""The circuits' table: every trained head of a model, beside plain decoding."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from mtp.circuits.shelf import Shelved, heads_for
from mtp.errors import InputError
from mtp.verify import VERIFICATIONS

TREE_CIRCUIT = "btree"
TREE_ROWS = 16


def circuit_decoders(weights_sha256: str, model: str, shelf: Path | None = None) -> list[str]:
    """ar, hf, and every shipped head of the model with these weights, under both verifications;
    BTree's without an adapter also as a tree. Raises InputError where there is none.
    """
    heads = heads_for(weights_sha256, shelf)
    if not heads:
        raise InputError(f"There are no circuit heads for {model[:80]} to measure.")
    ranks = Counter(_but_rank(head) for head in heads)
    found = ["ar", "hf"]
    for head in heads:
        config = head.config
        options = [f"window={config.window}"]
        if ranks[_but_rank(head)] > 1:
            options.append(f"rank={config.rank}")
        if config.lora:
            options.append(f"lora={config.lora}")
        trees: list[list[str]] = [[]]
        if config.circuit == TREE_CIRCUIT and not config.lora:
            trees.append(["tree=best", f"budget={TREE_ROWS}"])
        for tree in trees:
            for how in VERIFICATIONS:
                written = ",".join([*options, *tree, f"verification={how}"])
                found.append(f"mtpc-{config.circuit}[{written}]")
    return found


def _but_rank(head: Shelved) -> tuple[str, int, int]:
    return head.config.circuit, head.config.window, head.config.lora
