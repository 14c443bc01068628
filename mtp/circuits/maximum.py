"""Max-product: the best joint choice of latents and tokens. Exact for the window only in FF."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mtp.circuits.circuit import Circuit, owner_states
from mtp.circuits.inference import log_prob
from mtp.circuits.structure import TOP


@dataclass(frozen=True)
class Best:
    """tokens (B, n); states (B, L); log_joint (B,) = log max q(x, z); log_prob (B,) = log q(x)."""

    tokens: Tensor
    states: Tensor
    log_joint: Tensor
    log_prob: Tensor


def max_product(circuit: Circuit) -> Best:
    """argmax over (x, z) of q(x, z), which approximates the most probable window. MTPC §3.

    Sums become maxima; for FF (no latents) the tokens are the most probable window exactly.
    """
    structure = circuit.structure
    best, tokens = circuit.inputs.max(dim=-1)  # (B, n, r) each
    below = {TOP: best.new_zeros(circuit.batch, 1)} | {
        latent.index: best.new_zeros(circuit.batch, structure.rank) for latent in structure.latents
    }
    for position, owner in enumerate(structure.owners):
        below[owner] = below[owner] + best[:, position]
    choices: dict[int, Tensor] = {}  # latent → best own state (B, states of the parent)
    for latent in reversed(structure.latents):
        scores = circuit.weights(latent.index) + below[latent.index][:, None, :]
        value, choices[latent.index] = scores.max(dim=-1)
        below[latent.parent] = below[latent.parent] + value
    states: list[Tensor] = []
    top = torch.zeros(circuit.batch, dtype=torch.long, device=best.device)
    for latent in structure.latents:
        above = top if latent.parent == TOP else states[latent.parent]
        states.append(choices[latent.index].gather(1, above[:, None])[:, 0])
    chosen = torch.stack(states, dim=-1) if states else top.new_zeros(circuit.batch, 0)
    components = owner_states(structure, chosen)  # (B, n)
    window = tokens.gather(2, components[:, :, None])[..., 0]
    return Best(window, chosen, below[TOP][:, 0], log_prob(circuit, window))
