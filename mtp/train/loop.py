"""The steps of a training run: learning rate, updates, time used, checkpoints to go on from."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mtp.errors import InputError
from mtp.train.run_folder import RunFolder
from mtp.train.schedule import Schedule

CLIP = 1.0
PRODUCTS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def check_products(products: str) -> None:
    """Raises InputError for a precision that no product is taken in."""
    if products not in PRODUCTS:
        raise InputError(f"Products are taken in {' or '.join(PRODUCTS)}.")


def in_products(products: str, device: torch.device) -> AbstractContextManager[None]:
    """While entered, matrix products are taken in this precision, forward and backward."""
    dtype = PRODUCTS[products]
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


@dataclass
class Progress:
    """How far a run is; breaks do not count as time. `counts` holds what else it counts."""

    step: int = 0
    seconds: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)


class Loop:
    """Goes on from the folder's checkpoint, if there is one.

    `for step in loop` runs until the budget is used; each turn calls `update` once, then `save`
    where `due`.
    """

    def __init__(
        self,
        folder: RunFolder,
        recipe: Schedule,
        modules: Mapping[str, nn.Module],
        optimizers: Sequence[Optimizer],
        save_every: float,
        **counts: float,
    ) -> None:
        self.folder = folder
        self.recipe = recipe
        self.modules = modules
        self.optimizers = optimizers
        self.save_every = save_every
        self.progress = Progress(counts=dict(counts))
        self.rate = 0.0
        self._losses: list[float] = []
        state = folder.load()
        if state is not None:
            restore(modules, state)
            for optimizer, old in zip(optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(old)
            self.progress = Progress(**state["progress"])
        self._before, self._started = self.progress.seconds, time.monotonic()
        self._saved = self._started

    @property
    def used(self) -> float:
        """The share of the budget that is used."""
        return self.recipe.used(self.progress.step, self.progress.seconds)

    def __iter__(self) -> Iterator[int]:
        while self.used < 1:
            self.rate = self.recipe.rate(self.progress.step, self.progress.seconds)
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.rate
                optimizer.zero_grad(set_to_none=True)
            yield self.progress.step

    def update(self, loss: Tensor, *groups: Sequence[nn.Parameter], **counts: float) -> None:
        """One update. Gradients are clipped in each group of parameters, all of them together if
        none is given; `counts` are added to the run's.
        """
        loss.backward()
        every = [p for module in self.modules.values() for p in module.parameters()]
        for parameters in groups or [every]:
            nn.utils.clip_grad_norm_(parameters, CLIP)
        for optimizer in self.optimizers:
            optimizer.step()
        self._losses.append(loss.item())
        self.progress.step += 1
        self.progress.seconds = self._before + time.monotonic() - self._started
        for name, more in counts.items():
            self.progress.counts[name] += more

    @property
    def due(self) -> bool:
        """Whether it is time to save: at the end, and `save_every` seconds after the last time."""
        return self.used >= 1 or time.monotonic() - self._saved > self.save_every

    def save(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Writes a checkpoint and a line of the curve, which is returned."""
        whole = {
            "step": self.progress.step,
            "seconds": self.progress.seconds,
            **self.progress.counts,
            "learning_rate": self.rate,
            "loss": float(np.mean(self._losses)),
            **line,
        }
        self.folder.save(
            {
                **{name: module.state_dict() for name, module in self.modules.items()},
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "progress": vars(self.progress) | {"counts": dict(self.progress.counts)},
            },
            whole,
        )
        self._saved, self._losses = time.monotonic(), []
        return whole


def restore(modules: Mapping[str, nn.Module], state: Mapping[str, Any]) -> None:
    """Puts a checkpoint's weights into modules of the same names."""
    for name, module in modules.items():
        module.load_state_dict(state[name])


@torch.no_grad()
def round_as_stored(parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
    """Rounds parameters in place as a file in this precision does, so that what is measured is what
    will be read back.
    """
    for parameter in parameters:
        parameter.copy_(parameter.to(dtype))
