"""A circuit with its numbers: log-probabilities of inputs and log-weights of sums, for a batch.

Queries are functions of a `Circuit` in the files beside this one. Windows are (B, n) token indices
0 … v - 1, with UNKNOWN for a position that is not given and is summed out. A batch of 1 in either
the circuit or the windows meets any batch in the other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mtp.circuits.structure import TOP, Structure
from mtp.errors import InputError
from mtp.models.draft_vocabulary import OUTSIDE

# In a window: position not given, such as a token that cannot be drafted; in latent states: latent
# not given.
UNKNOWN = OUTSIDE


@dataclass(frozen=True)
class Circuit:
    """Parameters in log-space (natural log), already normalised.

    inputs: (B, n, r, v), each last axis a distribution over tokens.
    root: (B, r), or (B, 0) without latents.
    transitions: (B, L - 1, r, r) for L latents, each last axis a distribution over states.
    Raises InputError when a shape doesn't fit the structure.
    """

    structure: Structure
    inputs: Tensor
    root: Tensor
    transitions: Tensor

    def __post_init__(self) -> None:
        structure = self.structure
        wanted = {
            "inputs": (structure.window, structure.rank, self.inputs.shape[-1]),
            "root": structure.root_shape,
            "transitions": structure.transitions_shape,
        }
        for name, shape in wanted.items():
            given = tuple(getattr(self, name).shape)
            if given != (self.inputs.shape[0], *shape):
                raise InputError(
                    f"{structure.circuit} with window {structure.window} and rank {structure.rank} "
                    f"needs {name} of shape (B, {', '.join(map(str, shape))}), not {given}."
                )

    @property
    def batch(self) -> int:
        """B: how many circuits of this structure are held."""
        return self.inputs.shape[0]

    @property
    def vocabulary(self) -> int:
        """v: how many tokens each position chooses from."""
        return self.inputs.shape[-1]

    def weights(self, latent: int) -> Tensor:
        """Log-weights (B, states of its parent, r) of a latent given the latent above it."""
        return latent_weights(self.root, self.transitions, latent)

    def at(self, rows: int | list[int] | Tensor) -> "Circuit":
        """The circuits at these places of the batch, as a smaller (or repeated) batch."""
        places = torch.as_tensor(rows, device=self.inputs.device).reshape(-1)
        return Circuit(
            self.structure, self.inputs[places], self.root[places], self.transitions[places]
        )


def latent_weights(root: Tensor, transitions: Tensor, latent: int) -> Tensor:
    """Log-weights (B, states of its parent, r) of latent `latent`: the root's have one row."""
    return root[:, None, :] if latent == 0 else transitions[:, latent - 1]


def emissions(circuit: Circuit, windows: Tensor) -> Tensor:
    """log p_i(x_i | component) of the given tokens: (B, n, r), zero where x_i is UNKNOWN.

    Windows may be shorter than n; what is missing is UNKNOWN. Raises InputError on tokens outside
    the vocabulary or longer windows.
    """
    structure = circuit.structure
    windows = complete(windows, structure.window, circuit.vocabulary, "token")
    batch = max(windows.shape[0], circuit.batch)
    inputs = circuit.inputs.expand(batch, -1, -1, -1)
    tokens = windows.expand(batch, -1)[:, :, None, None]  # (B, n, 1, 1)
    index = tokens.clamp(min=0).expand(-1, -1, structure.rank, -1)
    return inputs.gather(3, index)[..., 0].masked_fill(tokens[..., 0] == UNKNOWN, 0.0)


def complete(given: Tensor, length: int, choices: int, what: str) -> Tensor:
    """Checks (B, ≤ length) indices into `choices` and fills up to (B, length) with UNKNOWN."""
    if given.ndim != 2 or given.shape[1] > length:
        raise InputError(
            f"A batch of {what}s has shape (B, at most {length}), not {tuple(given.shape)}."
        )
    if given.numel() and not -1 <= int(given.min()) <= int(given.max()) < choices:
        raise InputError(
            f"A {what} lies outside 0 … {choices - 1} ({UNKNOWN} means not given): "
            f"{int(given.min())} … {int(given.max())} was given."
        )
    missing = given.new_full((given.shape[0], length - given.shape[1]), UNKNOWN)
    return torch.cat([given, missing], dim=1)


def owner_states(structure: Structure, states: Tensor) -> Tensor:
    """Component of every position (…, n) for latent states (…, L); 0 where no latent owns it."""
    columns = [
        torch.zeros_like(states.sum(-1)) if owner == TOP else states[..., owner]
        for owner in structure.owners
    ]
    return torch.stack(columns, dim=-1)
