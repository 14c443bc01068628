"""Ancestral sampling: latents from the top down, then one token per position. MTPC §3."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mtp.circuits.circuit import Circuit, latent_weights, owner_states
from mtp.circuits.structure import TOP, Structure


@dataclass(frozen=True)
class Samples:
    """Joint samples: tokens (S, B, n) and the latent states that chose them (S, B, L)."""

    tokens: Tensor
    states: Tensor


def sample(circuit: Circuit, count: int, generator: torch.Generator | None = None) -> Samples:
    """Draws `count` windows from each circuit of the batch."""
    states = sample_latents(circuit.structure, circuit.root, circuit.transitions, count, generator)
    components = owner_states(circuit.structure, states)  # (S, B, n)
    at = torch.arange(circuit.batch, device=states.device)[None, :, None]
    position = torch.arange(circuit.structure.window, device=states.device)
    return Samples(draw(circuit.inputs[at, position, components], generator), states)


def sample_latents(
    structure: Structure,
    root: Tensor,
    transitions: Tensor,
    count: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draws latent states (S, B, L) from log-weights (B, r) and (B, L - 1, r, r)."""
    batch = root.shape[0]
    at = torch.arange(batch, device=root.device)
    states: list[Tensor] = []
    for latent in structure.latents:
        above = at.new_zeros(count, batch) if latent.parent == TOP else states[latent.parent]
        rows = latent_weights(root, transitions, latent.index)[at, above]  # (S, B, r)
        states.append(draw(rows, generator))
    if not states:
        return at.new_zeros(count, batch, 0)
    return torch.stack(states, dim=-1)


def draw(log_probs: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One index per row of (…, k) log-probabilities: (…,)."""
    rows = log_probs.reshape(-1, log_probs.shape[-1]).double().exp()
    chosen = torch.multinomial(rows, 1, generator=generator)
    return chosen.reshape(log_probs.shape[:-1])
