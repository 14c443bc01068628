"""Bottom-up pass: messages of the latents, and the log-probability of windows with any gaps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mtp.circuits.circuit import UNKNOWN, Circuit, complete, emissions
from mtp.circuits.structure import TOP


@dataclass(frozen=True)
class Messages:
    """What the evidence below each latent says about it, natural log.

    below: L tensors (B, r): log-probability of everything below, given the latent's state.
    upward: L tensors (B, states of the parent): the same given the parent's state.
    evidence: (B,) log-probability of all evidence.
    """

    below: tuple[Tensor, ...]
    upward: tuple[Tensor, ...]
    evidence: Tensor


def messages(circuit: Circuit, windows: Tensor, states: Tensor | None = None) -> Messages:
    """Collects evidence bottom-up. MTPC §3.

    windows: (B, ≤ n) tokens, UNKNOWN where not given; states: (B, ≤ L) latent states, UNKNOWN where
    not given. Raises InputError when either is out of range.
    """
    structure = circuit.structure
    emitted = emissions(circuit, windows)  # (B, n, r)
    batch = emitted.shape[0]
    if states is not None:
        states = complete(states, len(structure.latents), structure.rank, "latent state")
        batch = max(batch, states.shape[0])
    below = {TOP: emitted.new_zeros(batch, 1)} | {
        latent.index: emitted.new_zeros(batch, structure.rank) for latent in structure.latents
    }
    for position, owner in enumerate(structure.owners):
        below[owner] = below[owner] + emitted[:, position]
    upward: dict[int, Tensor] = {}
    for latent in reversed(structure.latents):
        if states is not None:
            below[latent.index] = below[latent.index] + _clamped(
                states[:, latent.index], structure.rank, emitted
            )
        message = torch.logsumexp(
            circuit.weights(latent.index) + below[latent.index][:, None, :], dim=-1
        )
        upward[latent.index] = message
        below[latent.parent] = below[latent.parent] + message
    order = range(len(structure.latents))
    return Messages(
        tuple(below[i] for i in order), tuple(upward[i] for i in order), below[TOP][:, 0]
    )


def log_prob(circuit: Circuit, windows: Tensor) -> Tensor:
    """log q(x) of windows (B, n), natural log, (B,); UNKNOWN positions are summed out. MTPC §3."""
    return messages(circuit, windows).evidence


def _clamped(states: Tensor, rank: int, like: Tensor) -> Tensor:
    """(B, r): 0 where a state is allowed, -inf where the clamp forbids it."""
    forbidden = (states[:, None] != UNKNOWN) & (
        states[:, None] != torch.arange(rank, device=states.device)
    )
    return like.new_zeros(states.shape[0], rank).masked_fill(forbidden, -torch.inf)
