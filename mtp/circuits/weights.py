"""Sum weights of a circuit as functions of the hidden state: root and transitions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from mtp.circuits.inputs import at_least_float32, unit_rms
from mtp.circuits.structure import Structure

ROOT_SPREAD = 1.0  # standard deviation of the root's first logits: breaks the tie of components
CONTEXT_SPREAD = 0.1  # standard deviation that the context adds to each logit at the start


class SumWeights(nn.Module):
    """logits = bias + SiLU(gate h' + gate_bias) · maps, softmax over each row of states.

    `stay` is the probability with which a transition keeps its parent's state at the start:
    near 1 for HMM (MTPC §3: near identity), 1 / r for rows without a preference.
    """

    def __init__(
        self,
        structure: Structure,
        hidden: int,
        gate: int,
        stay: float,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.structure = structure
        rank, root = structure.rank, structure.root_shape[0]
        count = root + math.prod(structure.transitions_shape)
        gate = gate if count else 0  # FF has no weights, so nothing reads the context for them

        def normal(*shape: int, scale: float) -> Tensor:
            return torch.randn(*shape, generator=generator) * scale

        self.gate = nn.Parameter(normal(gate, hidden, scale=1 / math.sqrt(hidden)))
        self.gate_bias = nn.Parameter(torch.zeros(gate))
        self.maps = nn.Parameter(normal(gate, count, scale=CONTEXT_SPREAD / math.sqrt(gate or 1)))
        keep = math.log(stay * (rank - 1) / (1 - stay)) if rank > 1 else 0.0
        transitions = normal(*structure.transitions_shape, scale=CONTEXT_SPREAD)
        transitions = transitions + keep * torch.eye(rank)
        first = torch.cat([normal(root, scale=ROOT_SPREAD), transitions.flatten()])
        self.bias = nn.Parameter(first)  # (r + (L - 1) · r · r,)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Log-weights root (N, r or 0) and transitions (N, L - 1, r, r) for hidden (N, D)."""
        units = fn.silu(unit_rms(hidden) @ self.gate.T + self.gate_bias)
        logits = at_least_float32(units @ self.maps + self.bias)
        return self.split(logits)

    def split(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, r + (L - 1) r²) to normalised log-weights."""
        root, rest = logits.tensor_split([self.structure.root_shape[0]], dim=1)
        transitions = rest.unflatten(1, self.structure.transitions_shape)
        return torch.log_softmax(root, dim=-1), torch.log_softmax(transitions, dim=-1)
