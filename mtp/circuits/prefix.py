"""Reading a window from left to right: prefix marginals, conditionals, and sampling with noise.

A prefix is a stack of open latents. Each holds `incoming`, the joint log-probability of everything
read before it was opened and its state, and `seen`, the log-probability of what was read below it
given its state. Each latent is opened once and closed at most once, so a whole window costs one
product per latent and direction, in any of the four circuits (forward filtering for HMM, the
component posterior for CP, an incremental inside pass for BTree).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mtp.circuits.circuit import UNKNOWN, Circuit, complete, emissions, latent_weights
from mtp.circuits.structure import Structure
from mtp.sampling import cumulative


@dataclass(frozen=True)
class Frame:
    """An open latent, or the top (one state) when `outer` is None. Tensors are (B, states)."""

    outer: "Frame | None"
    latent: int
    incoming: Tensor
    seen: Tensor

    @property
    def joint(self) -> Tensor:
        """(B, states): joint log-probability of the prefix and this latent's state."""
        return self.incoming + self.seen

    def read(self, message: Tensor) -> "Frame":
        """The same frame after something below it with this log-likelihood (B, states)."""
        return Frame(self.outer, self.latent, self.incoming, self.seen + message)


def start(like: Tensor, batch: int) -> Frame:
    """Nothing read yet, at the top; `like` gives dtype and device."""
    zero = like.new_zeros(batch, 1)
    return Frame(None, -1, zero, zero)


def go(
    frame: Frame, structure: Structure, position: int, root: Tensor, transitions: Tensor
) -> Frame:
    """Moves from having read `position` - 1 to being ready to read `position`."""
    for move in structure.moves[position]:
        weights = latent_weights(root, transitions, move.latent)  # (B, S, r)
        if move.kind == "open":
            incoming = torch.logsumexp(frame.joint[:, :, None] + weights, dim=1)
            frame = Frame(frame, move.latent, incoming, torch.zeros_like(incoming))
        else:
            assert frame.outer is not None
            message = torch.logsumexp(weights + frame.seen[:, None, :], dim=-1)  # (B, S)
            frame = frame.outer.read(message)
    return frame


def prefix_marginals(circuit: Circuit, windows: Tensor) -> Tensor:
    """M_k = log q(x_1 … x_k) with later positions summed out, k = 0 … n: (B, n + 1). MTPC §3.2.

    UNKNOWN positions are summed out of every M_k.
    """
    emitted = emissions(circuit, windows)
    return marginals_of_emissions(circuit.structure, emitted, circuit.root, circuit.transitions)


def marginals_of_emissions(
    structure: Structure, emitted: Tensor, root: Tensor, transitions: Tensor
) -> Tensor:
    """M_k (B, n + 1) from log p_i(x_i | component) (B, n, r) and log-weights. MTPC §3.2."""
    frame = start(emitted, emitted.shape[0])
    marginals = [frame.joint[:, 0]]
    for position in range(structure.window):
        frame = go(frame, structure, position, root, transitions)
        frame = frame.read(emitted[:, position])
        marginals.append(torch.logsumexp(frame.joint, dim=-1))
    return torch.stack(marginals, dim=1)


def conditionals(circuit: Circuit, windows: Tensor) -> Tensor:
    """log q(x_j | x_1 … x_{j-1}) over the vocabulary, for every j of the windows: (B, n, v)."""
    emitted = emissions(circuit, windows)
    frame = start(emitted, emitted.shape[0])
    rows = []
    for position in range(circuit.structure.window):
        frame = go(frame, circuit.structure, position, circuit.root, circuit.transitions)
        rows.append(_next_token(frame, circuit.inputs[:, position]))
        frame = frame.read(emitted[:, position])
    return torch.stack(rows, dim=1)


def next_conditional(circuit: Circuit, prefixes: Tensor) -> Tensor:
    """log q(x_{k+1} | x_1 … x_k) over the vocabulary, for prefixes (B, k) with k < n: (B, v)."""
    return conditionals(circuit, prefixes)[:, prefixes.shape[1]]


@dataclass(frozen=True)
class Drawn:
    """Windows drawn with given noise: tokens (B, n); log q(x_j | x_<j) of each (B, n)."""

    tokens: Tensor
    log_q: Tensor


def sample_with_noise(circuit: Circuit, noise: Tensor, given: Tensor | None = None) -> Drawn:
    """Draws x_j = Pick(u_j, q(· | x_<j)) from left to right, for coupled verification.

    noise: (B, n) in [0, 1); given: (B, ≤ n) tokens that are kept instead of drawn, UNKNOWN where
    they are to be drawn. Raises InputError when `given` is out of range.
    """
    structure = circuit.structure
    batch = max(circuit.batch, noise.shape[0])
    kept = torch.full((1, 0), UNKNOWN, device=noise.device) if given is None else given
    kept = complete(kept, structure.window, circuit.vocabulary, "token").expand(batch, -1)
    frame = start(circuit.inputs, batch)
    tokens, log_q = [], []
    for position in range(structure.window):
        frame = go(frame, structure, position, circuit.root, circuit.transitions)
        inputs = circuit.inputs[:, position].expand(batch, -1, -1)  # (B, r, v)
        conditional = _next_token(frame, inputs)
        picked = pick_rows(noise[:, position], conditional)
        token = torch.where(kept[:, position] == UNKNOWN, picked, kept[:, position])
        tokens.append(token)
        log_q.append(conditional.gather(1, token[:, None])[:, 0])
        index = token[:, None, None].expand(-1, structure.rank, 1)
        frame = frame.read(inputs.gather(2, index)[..., 0])
    return Drawn(torch.stack(tokens, dim=1), torch.stack(log_q, dim=1))


def pick_rows(noise: Tensor, log_probs: Tensor) -> Tensor:
    """Pick(u, P) = min{j : F_j > u}, row by row: (B,) from noise (B,) and log P (B, v).

    F is the float64 cumulative sum in vocabulary order divided by its last value.
    """
    edges = cumulative(log_probs.double().exp())
    at = noise.double()[:, None].expand(edges.shape[0], 1).contiguous()
    return torch.searchsorted(edges, at, right=True)[:, 0]


def _next_token(frame: Frame, inputs: Tensor) -> Tensor:
    """log q of the next token given the prefix (B, v), from its inputs (B, r, v)."""
    belief = torch.log_softmax(frame.joint, dim=-1)
    return torch.logsumexp(belief[:, :, None] + inputs, dim=1)
