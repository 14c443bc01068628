"""Input distributions of a circuit as functions of the hidden state: low-rank or full.

Both give logits over the draft vocabulary for every position and component, and start with every
component a copy of the model's own output head (MTPC §4).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from mtp.circuits.target import target_log_probs

RMS_FLOOR = 1e-6  # added to the mean square, as in the models' own norms


def unit_rms(hidden: Tensor) -> Tensor:
    """Hidden states (…, D) scaled to a root mean square of 1, so that one learning rate fits."""
    return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + RMS_FLOOR)


def at_least_float32(logits: Tensor) -> Tensor:
    """bfloat16 logits would make sum weights and distributions miss 1."""
    return logits if logits.dtype == torch.float64 else logits.float()


class LowRankInputs(nn.Module):
    """Frozen shared unembedding E (v, D) behind low-rank expanders per (position, component).

    For position i and component z, with a code s_i = SiLU(down_i h' + bias_i) of the hidden state h
    (h' is h at unit RMS):

        c_iz = s_i shared_i + s_i[:own] own_iz + offset_iz            (basis,)
        logits_iz = E (h + c_iz up_i)

    `up` starts at zero, so every component starts as E h; `own` and `offset` start at random, so
    components part with the first step. E up_i is computed once per optimiser step (or once for
    good when drafting), which makes a window cost n · r · v · basis instead of n · r · v · D.
    """

    def __init__(
        self,
        window: int,
        rank: int,
        unembedding: Tensor,
        code: int,
        basis: int,
        own: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        hidden = unembedding.shape[1]
        self.window, self.rank, self.own = window, rank, min(own, code)
        self.register_buffer("unembedding", unembedding, persistent=False)
        self.unembedding: Tensor

        def normal(*shape: int, scale: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * scale)

        self.down = normal(window, code, hidden, scale=1 / math.sqrt(hidden))
        self.bias = nn.Parameter(torch.zeros(window, code))
        self.shared = normal(window, code, basis, scale=1 / math.sqrt(code))
        self.apart = normal(window, self.own, rank, basis, scale=1 / math.sqrt(self.own))
        self.offset = normal(window, rank, basis, scale=1.0)
        self.up = nn.Parameter(torch.zeros(window, basis, hidden))

    def tables(self) -> Tensor:
        """E up_i: (n, basis, v), to be computed once for many windows."""
        return self.up @ self.unembedding.T

    def codes(self, hidden: Tensor) -> Tensor:
        """c_iz for hidden states (N, D): (n, N, r, basis)."""
        x = unit_rms(hidden)
        units = fn.silu(x @ self.down.transpose(1, 2) + self.bias[:, None])  # (n, N, code)
        common = units @ self.shared  # (n, N, basis)
        apart = units[..., : self.own] @ self.apart.flatten(2)  # (n, N, r · basis)
        apart = apart.unflatten(2, self.apart.shape[2:])
        return apart + common[:, :, None] + self.offset[:, None]

    def forward(self, hidden: Tensor) -> Tensor:
        """Log-probabilities (N, n, r, v) for hidden states (N, D)."""
        offsets = at_least_float32(self.codes(hidden) @ self.tables()[:, None])  # (n, N, r, v)
        logits = offsets + at_least_float32(hidden @ self.unembedding.T)[:, None]
        return torch.log_softmax(logits, dim=-1).transpose(0, 1)

    def chosen(self, hidden: Tensor, components: Tensor) -> Tensor:
        """Log-probabilities (N, n, v) of one component (N, n) per position. MTPC §4.

        Unembeds n rows per window instead of n · r.
        """
        units = fn.silu(unit_rms(hidden) @ self.down.transpose(1, 2) + self.bias[:, None])
        place = torch.arange(self.window, device=hidden.device)
        apart = self.apart[place, :, components]  # (N, n, own, basis)
        own = torch.einsum("inp,nipb->inb", units[..., : self.own], apart)
        codes = units @ self.shared + own + self.offset[place, components].transpose(0, 1)
        states = hidden + codes @ self.up  # (n, N, D)
        logits = at_least_float32(states @ self.unembedding.T)
        return torch.log_softmax(logits, dim=-1).transpose(0, 1)

    def of_targets(self, hidden: Tensor, tables: Tensor, targets: Tensor) -> Tensor:
        """log p_i(target | component) (N, n, r) for hidden (N, D) and targets (N, n)."""
        base = hidden @ self.unembedding.T
        found = target_log_probs(
            self.codes(hidden), tables, at_least_float32(base), targets.T.contiguous()
        )
        return found.transpose(0, 1)


class FullInputs(nn.Module):
    """An output head of its own for every (position, component): n · r · v · D weights.

    The released form of MTPC, for small vocabularies. Starts as copies of the model's own head.
    """

    def __init__(self, window: int, rank: int, unembedding: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(unembedding.repeat(window, rank, 1, 1))  # (n, r, v, D)

    def tables(self) -> Tensor:
        """(n · r, D, v): one group per (position, component)."""
        return self.weight.flatten(0, 1).transpose(1, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        """Log-probabilities (N, n, r, v) for hidden states (N, D)."""
        logits = at_least_float32(torch.einsum("nd,irvd->nirv", hidden, self.weight))
        return torch.log_softmax(logits, dim=-1)

    def chosen(self, hidden: Tensor, components: Tensor) -> Tensor:
        """Log-probabilities (N, n, v) of one component (N, n) per position."""
        place = torch.arange(self.weight.shape[0], device=hidden.device)
        rows = self.weight[place, components]  # (N, n, v, D)
        return torch.log_softmax(at_least_float32(torch.einsum("nd,nivd->niv", hidden, rows)), -1)

    def of_targets(self, hidden: Tensor, tables: Tensor, targets: Tensor) -> Tensor:
        """log p_i(target | component) (N, n, r) for hidden (N, D) and targets (N, n)."""
        window, rank = self.weight.shape[:2]
        codes = hidden[None, :, None].expand(window * rank, -1, 1, -1)
        repeated = targets.T.repeat_interleave(rank, dim=0)  # (n · r, N)
        found = target_log_probs(codes, tables, None, repeated)
        return found.view(window, rank, -1).permute(2, 0, 1)
