"""What positions say about each other: pairwise joints and mutual information, in nats."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mtp.circuits.circuit import Circuit
from mtp.circuits.conditioning import latent_marginals, token_marginals
from mtp.circuits.structure import TOP


def latent_pairs(circuit: Circuit) -> dict[tuple[int, int], Tensor]:
    """q(z_a, z_b) for latents a ≤ b: (B, r, r) probabilities; for a = b the diagonal.

    Latents come parents first, so given its parent a latent is independent of all before it.
    """
    marginals = latent_marginals(circuit).exp()
    pairs: dict[tuple[int, int], Tensor] = {}
    for latent in circuit.structure.latents:
        b, parent = latent.index, latent.parent
        pairs[b, b] = torch.diag_embed(marginals[:, b])
        for a in range(b):
            above = pairs[a, parent] if a <= parent else pairs[parent, a].transpose(1, 2)
            pairs[a, b] = above @ circuit.weights(b).exp()
    return pairs


def pair_joint(circuit: Circuit, first: int, second: int) -> Tensor:
    """q(x_first, x_second) with all other positions summed out: (B, v, v) probabilities.

    Positions with first < second.
    """
    return _pair_joint(circuit, latent_pairs(circuit), first, second)


def mutual_information(circuit: Circuit) -> Tensor:
    """I(x_i; x_j) in nats: (B, n, n), symmetric; the diagonal is the entropy of x_i.

    Costs n² / 2 tables of v × v; for a large vocabulary take `coarsen` first.
    """
    window = circuit.structure.window
    single = token_marginals(circuit).exp()  # (B, n, v)
    pairs = latent_pairs(circuit)
    result = single.new_zeros(single.shape[0], window, window)
    entropies = -torch.xlogy(single, single).sum(-1)  # (B, n)
    for i in range(window):
        result[:, i, i] = entropies[:, i]
        for j in range(i + 1, window):
            joint = _pair_joint(circuit, pairs, i, j)
            both = torch.xlogy(joint, joint).sum((1, 2))
            shared = (both + entropies[:, i] + entropies[:, j]).clamp(min=0.0)
            result[:, i, j] = result[:, j, i] = shared
    return result


@dataclass(frozen=True)
class Coarse:
    """A circuit over fewer tokens: place k < keep of position i stands for `tokens[b, i, k]`, the
    last place for all others together."""

    circuit: Circuit
    tokens: Tensor  # (B, n, keep)


def coarsen(circuit: Circuit, keep: int) -> Coarse:
    """Merges all but the `keep` most probable tokens of each position into one.

    Mutual information of the result is a lower bound (data processing inequality).
    """
    keep = min(keep, circuit.vocabulary - 1)
    tokens = token_marginals(circuit).topk(keep, dim=-1).indices  # (B, n, keep)
    index = tokens[:, :, None, :].expand(-1, -1, circuit.structure.rank, -1)
    kept = circuit.inputs.gather(3, index)
    rest = circuit.inputs.scatter(3, index, -torch.inf).logsumexp(-1, keepdim=True)
    inputs = torch.cat([kept, rest], dim=-1)
    return Coarse(Circuit(circuit.structure, inputs, circuit.root, circuit.transitions), tokens)


def _pair_joint(
    circuit: Circuit, pairs: dict[tuple[int, int], Tensor], first: int, second: int
) -> Tensor:
    a, b = circuit.structure.owners[first], circuit.structure.owners[second]
    left = circuit.inputs[:, first].exp()  # (B, r, v)
    right = circuit.inputs[:, second].exp()
    if TOP in (a, b):
        return left.transpose(1, 2) @ right
    latents = pairs[a, b] if a <= b else pairs[b, a].transpose(1, 2)
    return left.transpose(1, 2) @ latents @ right
