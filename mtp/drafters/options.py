"""The drafters that can be asked for and their options; imports nothing heavy, so a page can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mtp.errors import InputError


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
            number = float(str(value))
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
}


def settle_options(name: str, given: Mapping[str, object]) -> dict[str, int | float | str]:
    """All options of a drafter with their values: those given, the defaults for the rest.

    Raises InputError for an unknown drafter or option, or a value that is not allowed.
    """
    if name not in OPTIONS:
        raise InputError(f"There is no drafter {name[:40]!r}; there are {', '.join(OPTIONS)}.")
    known = {option.name: option for option in OPTIONS[name]}
    for key in given:
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise InputError(f"{name} has no option {key[:40]!r}; its options: {allowed}.")
    return {
        key: option.parse(given.get(key, option.default), name) for key, option in known.items()
    }
