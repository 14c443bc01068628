"""The drafters that can be asked for and their options; imports nothing heavy, so a page can."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mtp.drafters.rows import DYNAMIC, children_per_depth, most_nodes
from mtp.errors import InputError

UNION = "+"
"""Joins the names of a union's members, such as esp+pld."""
MOST_MEMBERS = 4
CIRCUITS = ("mtpc-ff", "mtpc-cp", "mtpc-hmm", "mtpc-btree")
SAMPLED = frozenset({"draft-model", *CIRCUITS})
"""Drafters whose nodes are draws from a q of theirs; a union can have one of them."""
CHAIN, BEST = "chain", "best"
LONGEST = "longest"
MOST_WINDOW = 1024  # tokens


@dataclass(frozen=True)
class Option:
    """A setting of a drafter, with its default and what is allowed."""

    name: str
    default: int | float | str
    about: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    kind: Literal["int", "float", "choice", "text"] = "int"
    zero: str = ""
    """A word that says 0 as well."""

    def parse(self, value: object, drafter: str) -> int | float | str:
        """The value in the option's type. Raises InputError outside what is allowed."""
        where = f"Option {self.name} of {drafter} is {str(value)[:40]!r}"
        if self.kind == "text":
            return str(value)
        if self.kind == "choice":
            if str(value) not in self.choices:
                raise InputError(f"{where}; it can be {', '.join(self.choices)}.")
            return str(value)
        try:
            number = 0.0 if self.zero and str(value) == self.zero else float(str(value))
            if self.kind == "int" and number != int(number):
                raise ValueError
        except (ValueError, OverflowError) as error:
            kind = "a whole number" if self.kind == "int" else "a number"
            raise InputError(f"{where}; it must be {kind}.") from error
        low = -float("inf") if self.low is None else self.low
        high = float("inf") if self.high is None else self.high
        if not low <= number <= high:
            raise InputError(f"{where}; it can be from {low:g} to {high:g}.")
        return int(number) if self.kind == "int" else number


OPTIONS: dict[str, tuple[Option, ...]] = {
    "ar": (),
    "pld": (
        Option("budget", 10, "drafted tokens a step, at most", low=1, high=256),
        Option("n", 3, "longest run of last tokens to look up", low=1, high=16),
        Option("length", 10, "tokens copied from each place, at most", low=1, high=64),
        Option("branches", 1, "places copied from; 1 drafts a chain", low=1, high=64),
    ),
    "lookahead": (
        Option("n", 4, "length of an n-gram", low=2, high=8),
        Option("window", 5, "positions guessed ahead in parallel", low=2, high=32),
        Option("guesses", 5, "n-grams verified a step, at most", low=1, high=32),
        Option(
            "pool",
            "prompt",
            "n-grams from the window alone, or from the prompt too",
            choices=("prompt", "window"),
            kind="choice",
        ),
    ),
    "stand": (
        Option("budget", 30, "rows of a block, at most", low=2, high=256),
        Option("n", 4, "longest run of last tokens to look up", low=1, high=8),
    ),
    "draft-model": (
        Option("model", "", "name, folder or Hugging Face id; same vocabulary", kind="text"),
        Option("length", 5, "tokens drafted a step", low=1, high=32),
    ),
    "esp": (
        Option("masks", 1, "mask tokens behind every node", low=1, high=4),
        Option(
            "init",
            "table",
            "where masks start: mean of all embeddings or the prompt's, draws, last words",
            choices=("table", "mean", "sample", "last"),
            kind="choice",
        ),
        Option("update", 0.0, "how far a new token moves them", low=0, high=1, kind="float"),
        Option("budget", 30, "rows of a block, masks included, at most", low=4, high=256),
        Option("tree", DYNAMIC, "dynamic, or children per depth such as 15,4", kind="text"),
    ),
}

_CIRCUIT = (
    Option(
        "window",
        0,
        "tokens the circuit covers, the root included; 0 or longest: the most there are",
        low=0,
        high=MOST_WINDOW,
        zero=LONGEST,
    ),
    Option("rank", 0, "components of each position; 0: the most there are", low=0, high=256),
    Option(
        "tree",
        CHAIN,
        "a drawn window, or the circuit's most probable prefixes",
        choices=(CHAIN, BEST),
        kind="choice",
    ),
    Option("budget", 16, "rows of a block when the tree is best", low=2, high=256),
    Option("lora", 0, "K, last layers adapted for drafting", low=0, high=256),
    Option("head", "", "folder of another trained head", kind="text"),
)
OPTIONS |= dict.fromkeys(CIRCUITS, _CIRCUIT)

PTP = ("o-ptp", "c-ptp", "independent")
_PTP = (
    Option("most", 8, "M, tokens a call at most", low=2, high=32),
    Option("budget", 24, "B, noise rows a call", low=2, high=256),
    Option(
        "branches",
        "partial",
        "how the rows are shared: by confidence, M each, or all behind the last draft",
        choices=("partial", "full", "single"),
        kind="choice",
    ),
    Option("weights", "", "folder of another trained drafter", kind="text"),
)
OPTIONS |= dict.fromkeys(PTP, _PTP)
"""Their noise rows run with an adapter and belong to their own chain: they join no union."""

WEIGHTS = Path(__file__).resolve().parents[2] / "assets" / "weights"


def shipped() -> list[str]:
    """The drafters that can be used as they are: all but trained ones of which none ships."""
    circuits = {f"mtpc-{_said(file, 'circuit')}" for file in WEIGHTS.glob("circuits/*/head.json")}
    parallel = {_said(file, "variant") for file in WEIGHTS.glob("ptp/*/ptp.json")}
    trained = {*CIRCUITS, *PTP}
    return [name for name in OPTIONS if name not in trained or name in circuits | parallel]


def _said(file: Path, key: str) -> str:
    return str(json.loads(file.read_text(encoding="utf-8"))["config"][key])


UNION_BUDGET = Option("budget", 60, "rows of a block, shared by all, at most", low=4, high=256)


def members_of(name: str) -> tuple[str, ...]:
    """The drafters behind a name: itself, or a union's members in order.

    Raises InputError for an unknown drafter or a union that makes no sense.
    """
    names = tuple(name.split(UNION))
    if len(names) == 1 and name in OPTIONS:
        return names
    for member in names:
        if member not in OPTIONS:
            raise InputError(
                f"There is no drafter {member[:40]!r}; there are {', '.join(OPTIONS)}, and unions "
                "such as esp+pld."
            )
    wrong = None
    if len(set(names)) < len(names):
        wrong = "names a drafter twice"
    elif "ar" in names:
        wrong = "has ar as a member, which drafts nothing"
    elif set(PTP).intersection(names):
        wrong = "has a member that works alone (o-ptp, c-ptp, independent)"
    elif len(names) > MOST_MEMBERS:
        wrong = f"has {len(names)} members"
    elif len(SAMPLED.intersection(names)) > 1:
        wrong = f"has more than one drafter that samples ({', '.join(sorted(SAMPLED))})"
    if wrong:
        raise InputError(
            f"The union {name[:60]} {wrong}; a union joins two to {MOST_MEMBERS} different "
            "drafters, such as esp+pld."
        )
    return names


def options_of(name: str) -> tuple[Option, ...]:
    """The options of a drafter. A union has `budget`, rows for the whole, and every member's but
    its budget as `member.option`, such as esp.masks.

    Raises InputError as `members_of` does.
    """
    members = members_of(name)
    if len(members) == 1:
        return OPTIONS[name]
    joined = [UNION_BUDGET]
    for member in members:
        own = [option for option in OPTIONS[member] if option.name != "budget"]
        joined += [replace(option, name=f"{member}.{option.name}") for option in own]
    return tuple(joined)


def settle_options(name: str, given: Mapping[str, object]) -> dict[str, int | float | str]:
    """All options of a drafter or union with their values: those given, defaults for the rest.

    Raises InputError for an unknown drafter or option, or a value that is not allowed.
    """
    known = {option.name: option for option in options_of(name)}
    for key in given:
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise InputError(f"{name} has no option {key[:40]!r}; its options: {allowed}.")
    settled = {
        key: option.parse(given.get(key, option.default), name) for key, option in known.items()
    }
    by_member = by_members(name, settled)
    for member, options in by_member.items():
        if member in CHECKS:
            CHECKS[member](options)
    if len(by_member) > 1 and most_nodes(by_member, int(settled["budget"])) < 1:
        raise InputError(
            f"A budget of {settled['budget']} rows leaves {name} no room for a drafted token; "
            "raise it, or give its members fewer masks or a smaller window."
        )
    return settled


def by_members(name: str, options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A drafter's or union's settled options apart, by member."""
    members = members_of(name)
    if len(members) == 1:
        return {name: dict(options)}
    return {
        member: {
            key.removeprefix(f"{member}."): value
            for key, value in options.items()
            if key.startswith(f"{member}.")
        }
        for member in members
    }


def _check_esp(options: Mapping[str, Any]) -> None:
    """Raises InputError where masks, tree and budget do not go together."""
    masks = options["masks"]
    fixed = children_per_depth(options["tree"])
    if fixed is not None and len(fixed) > masks:
        raise InputError(
            f"The tree {options['tree']} is {len(fixed)} tokens deep and needs as many masks; "
            f"esp has {masks}."
        )
    if fixed is None and most_nodes({"esp": options}, options.get("budget", 256)) < 1:
        raise InputError(
            f"A budget of {options['budget']} rows holds no drafted token with {masks} masks each; "
            f"it must be at least {2 * (masks + 1)}."
        )


def _check_draft_model(options: Mapping[str, Any]) -> None:
    """Raises InputError where no model is named."""
    if not str(options["model"]).strip():
        raise InputError(
            "draft-model needs option model: a short name, a folder or a Hugging Face id of a "
            "small model with the verifier's vocabulary."
        )


CHECKS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "esp": _check_esp,
    "draft-model": _check_draft_model,
}
