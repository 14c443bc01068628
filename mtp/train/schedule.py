"""A training budget in minutes or steps, and the learning rate as a function of its used share."""

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from mtp.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A warm-up, constant, then linear to 0. The budget is `minutes` of training or `steps`,
    whichever is less.

    Recipes extend it. Raises InputError without a budget, or for a number that is not above 0
    (those in `MAY_BE_ZERO` may be).
    """

    WARM_UP_STEPS: ClassVar[int] = 20
    CONSTANT_SHARE: ClassVar[float] = 0.5  # of the budget, before the learning rate falls
    MAY_BE_ZERO: ClassVar[Collection[str]] = ("seed",)

    learning_rate: float
    seed: int = 0
    minutes: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.minutes is None and self.steps is None:
            raise InputError("Training needs a budget: a number of minutes, of steps, or both.")
        for name, value in dataclasses.asdict(self).items():
            zero = name in self.MAY_BE_ZERO
            if not isinstance(value, (int, float)):
                continue
            if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
                raise InputError(
                    f"The {name.replace('_', ' ')} is {value}; it must be a number "
                    f"{'of at least' if zero else 'above'} 0."
                )

    def used(self, step: int, seconds: float) -> float:
        """Share of the budget used, 0 to 1."""
        by_steps = step / self.steps if self.steps else 0.0
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(by_steps, by_time))

    def rate(self, step: int, seconds: float) -> float:
        """The learning rate."""
        fall = (1 - self.used(step, seconds)) / (1 - self.CONSTANT_SHARE)
        return self.learning_rate * min(1.0, fall, (step + 1) / self.WARM_UP_STEPS)


def parse_lengths(text: str) -> tuple[int, ...]:
    """Window lengths of a command line, such as 1,2,4. Raises InputError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"The window lengths are whole numbers, such as 1,2,4; not {text[:40]}.")
    return tuple(map(int, parts))


def check_rising(lengths: Sequence[int]) -> None:
    """Raises InputError for window lengths that no curriculum has."""
    if list(lengths) != sorted(set(lengths)) or min(lengths, default=0) < 1:
        raise InputError("The window lengths rise from 1 or more, such as 1,2,4,8.")


def share_of_stage(stage: int, stages: int) -> float:
    """The share of the budget that stage 0, 1, … of a curriculum may take: longer windows need more
    of it, the i-th in proportion to i.
    """
    return (stage + 1) / sum(range(1, stages + 1))
