"""Muon: momentum whose matrices are made orthogonal before they are applied."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

# Coefficients of the quintic Newton-Schulz step, chosen for speed at zero (Jordan et al. 2024).
_QUINTIC = (3.4445, -4.7750, 2.0315)
_STEPS = 5
# An orthogonal update of size (a, b) has RMS 1 / sqrt(max(a, b)); AdamW's is about 0.2, so with
# this factor both take the same learning rate (Liu et al. 2025, §2.2).
_ADAMW_RMS = 0.2


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest matrices (k, a, b) with singular values near 1 (0.7 to 1.2), float32."""
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else matrices.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    a, b, c = _QUINTIC
    for _ in range(_STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x if wide else x.mT


def optimizers_for(
    model: nn.Module,
    learning_rate: float,
    weight_decay: float,
    more: Iterable[nn.Parameter] = (),
) -> list[Optimizer]:
    """Muon for the matrices of a model's layers; AdamW for embeddings, output head, norms and
    `more` parameters, without decay.
    """
    inner = [p for n, p in model.named_parameters() if p.ndim == 2 and ".layers." in n]
    chosen = {id(p) for p in inner}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return [
        Muon(inner, learning_rate, weight_decay=weight_decay),
        AdamW([*rest, *more], learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


class Muon(Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay, for matrices of one model.

    Same update as `torch.optim.Muon` with `match_rms_adamw`, but in float32 and with matrices of
    one shape in one batch: on a processor without bfloat16 units that is several times faster.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Applies one update to every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                updates = orthogonal(
                    torch.stack([self._direction(p, group["momentum"]) for p in parameters])
                )
                size = group["lr"] * _ADAMW_RMS * max(shape) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-size)

    def _direction(self, parameter: Tensor, momentum: float) -> Tensor:
        """The Nesterov momentum of a parameter, its gradient taken in."""
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        average = state["momentum"]
        assert parameter.grad is not None
        average.lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(average, momentum)
