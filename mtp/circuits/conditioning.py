"""A circuit given evidence is again a circuit: conditioning, clamping, posteriors, marginals.

`condition` is exact: the result's joint over latents and tokens is the posterior. Every other query
then applies to the result, so conditional sampling, clamped marginals and the mutual information
that a prefix leaves need no code of their own.
"""

import math

import torch
from torch import Tensor

from mtp.circuits.circuit import UNKNOWN, Circuit, complete
from mtp.circuits.inference import messages
from mtp.circuits.structure import TOP
from mtp.errors import InputError


def condition(
    circuit: Circuit, windows: Tensor | None = None, states: Tensor | None = None
) -> Circuit:
    """The circuit given tokens and latent states: same structure, posterior parameters.

    windows: (B, ≤ n) tokens, UNKNOWN where not given (a prefix is just a short window); states:
    (B, ≤ L) latent states, UNKNOWN where not given. Given positions become certain. Raises
    InputError when the evidence has probability zero or is out of range.
    """
    structure = circuit.structure
    nothing = torch.full((1, 0), UNKNOWN, dtype=torch.long, device=circuit.inputs.device)
    windows = complete(
        nothing if windows is None else windows, structure.window, circuit.vocabulary, "token"
    )
    found = messages(circuit, windows, states)
    if bool((found.evidence == -torch.inf).any()):
        raise InputError("The given tokens and latent states have probability zero together.")
    batch = found.evidence.shape[0]
    rows = []
    for latent in structure.latents:
        weights = circuit.weights(latent.index) + found.below[latent.index][:, None, :]
        weights = weights - found.upward[latent.index][:, :, None]
        # A parent state that the evidence excludes has no posterior row; any row will do.
        rows.append(weights.nan_to_num(nan=-math.log(structure.rank), neginf=-torch.inf))
    root = rows[0][:, 0] if rows else circuit.root.expand(batch, -1)
    transitions = (
        torch.stack(rows[1:], dim=1) if rows[1:] else circuit.transitions.expand(batch, -1, -1, -1)
    )
    given = windows.expand(batch, -1)[:, :, None, None]  # (B, n, 1, 1)
    certain = torch.full_like(circuit.inputs, -torch.inf).expand(batch, -1, -1, -1)
    certain = certain.scatter(3, given.clamp(min=0).expand(-1, -1, structure.rank, 1), 0.0)
    inputs = torch.where(given == UNKNOWN, circuit.inputs, certain)
    return Circuit(structure, inputs, root, transitions)


def clamp(circuit: Circuit, latent: int, state: int) -> Circuit:
    """The circuit given that one latent has one state. Raises InputError if there is none such."""
    structure = circuit.structure
    if not 0 <= latent < len(structure.latents):
        raise InputError(
            f"{structure.circuit} over {structure.window} tokens has {len(structure.latents)} "
            f"latents; there is no latent {latent}."
        )
    states = torch.full((1, len(structure.latents)), UNKNOWN, device=circuit.inputs.device)
    states[0, latent] = state
    return condition(circuit, states=states)


def latent_marginals(circuit: Circuit) -> Tensor:
    """log q(z_l) of every latent: (B, L, r), natural log."""
    structure = circuit.structure
    rows: list[Tensor] = []
    for latent in structure.latents:
        weights = circuit.weights(latent.index)
        above = weights.new_zeros(1, 1) if latent.parent == TOP else rows[latent.parent]
        rows.append(torch.logsumexp(above[:, :, None] + weights, dim=1))
    if not rows:
        return circuit.inputs.new_zeros(circuit.batch, 0, structure.rank)
    return torch.stack(rows, dim=1)


def latent_posterior(circuit: Circuit, windows: Tensor) -> Tensor:
    """log q(z_l | tokens) of every latent for windows or prefixes (B, ≤ n): (B, L, r)."""
    return latent_marginals(condition(circuit, windows))


def token_marginals(circuit: Circuit) -> Tensor:
    """log q(x_i) of every position, all others summed out: (B, n, v), natural log."""
    latents = latent_marginals(circuit)
    columns = []
    for position, owner in enumerate(circuit.structure.owners):
        inputs = circuit.inputs[:, position]  # (B, r, v)
        prior = inputs.new_zeros(1, 1) if owner == TOP else latents[:, owner]
        columns.append(torch.logsumexp(prior[:, :, None] + inputs, dim=1))
    return torch.stack(columns, dim=1)
