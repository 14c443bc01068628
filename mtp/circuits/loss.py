"""Training loss of MTPC: discounted cross-entropy of prefix marginals over stride-1 windows.

M_k = log q(x_{t+1} … x_{t+k} | x_≤t), CE_k = -mean(M_k - M_{k-1}), and the loss is
Σ γ^{k-1} CE_k / Σ γ^{k-1} (MTPC §4). A window ends where its document ends, or at the first token
that cannot be drafted; what lies behind is summed out and not counted. Logits exist for one chunk
of windows at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mtp.circuits.circuit import UNKNOWN
from mtp.circuits.heads import CircuitHead
from mtp.errors import InputError

DISCOUNT = 0.9  # γ of MTPC §4
CHUNK_NUMBERS = 2**22  # held at once, 16 MB in float32: near the caches of a CPU


@dataclass(frozen=True)
class WindowLoss:
    """loss: scalar with gradient. cross_entropy (n,): CE_k in nats, no gradient, NaN where nothing
    was counted. counts (n,): windows that reach position k."""

    loss: Tensor
    cross_entropy: Tensor
    counts: Tensor


def window_targets(tokens: Tensor, states: int, window: int, documents: Tensor | None) -> Tensor:
    """Tokens each window predicts: (B, T, n), UNKNOWN from the end of its document on.

    tokens: (B, S) draft indices, UNKNOWN where a token cannot be drafted; position t (of the first
    T = `states`) predicts t + 1 … t + n, as far as S goes. documents: (B, S) a number per document,
    negative for padding, or None when each row is one document. Raises InputError when S < T.
    """
    batch, length = tokens.shape
    if length < states:
        raise InputError(f"{length} tokens are too few for {states} hidden states.")
    reach = torch.arange(states, device=tokens.device)[:, None] + torch.arange(
        1, window + 1, device=tokens.device
    )  # (T, n)
    inside = (reach < length).expand(batch, -1, -1)
    reach = reach.clamp(max=length - 1)
    targets = tokens[:, reach]  # (B, T, n)
    inside = inside & (targets != UNKNOWN)
    if documents is not None:
        own = documents[:, :states, None]
        inside = inside & (documents[:, reach] == own) & (own >= 0)
    reached = inside.long().cumprod(dim=-1).bool()
    return targets.masked_fill(~reached, UNKNOWN)


def window_loss(
    head: CircuitHead,
    hidden: Tensor,
    tokens: Tensor,
    documents: Tensor | None = None,
    discount: float = DISCOUNT,
    chunk_numbers: int = CHUNK_NUMBERS,
) -> WindowLoss:
    """The loss over all windows of hidden states (B, T, D) that reach at least one token.

    tokens, documents: as in `window_targets`. Gradients reach the head and `hidden`.
    chunk_numbers bounds how many logits exist at once; an accelerator wants more. Raises InputError
    when no window reaches a token.
    """
    targets = window_targets(tokens, hidden.shape[1], head.config.window, documents).flatten(0, 1)
    reaching = targets[:, 0] != UNKNOWN
    return loss_of_windows(
        head, hidden.flatten(0, 1)[reaching], targets[reaching], discount, chunk_numbers
    )


def loss_of_windows(
    head: CircuitHead,
    states: Tensor,
    targets: Tensor,
    discount: float = DISCOUNT,
    chunk_numbers: int = CHUNK_NUMBERS,
) -> WindowLoss:
    """The loss over chosen windows: hidden states (N, D), targets (N, n) as `window_targets` gives
    them, the first of each known. Gradients reach the head and `states`.

    Raises InputError when there are none.
    """
    counts = (targets != UNKNOWN).sum(0)
    if not len(targets):
        raise InputError("No window has a token to predict: the documents are too short.")
    emitted = _emissions(head, states, targets, chunk_numbers)
    # Only the sums remain, whose numbers per window are fewer: larger chunks, fewer calls.
    sums = math.prod(head.structure.transitions_shape) + emitted[0].numel()
    parts = (tensor.split(max(1, chunk_numbers // sums)) for tensor in (states, emitted, targets))
    gains = [_gains(head, *part) for part in zip(*parts, strict=True)]
    total = torch.stack(gains).sum(0)  # (n,)
    weights = discount ** torch.arange(len(counts), device=total.device, dtype=total.dtype)
    weights = weights * (counts > 0)
    mean = total / counts.clamp(min=1)
    loss = -(weights * mean).sum() / weights.sum()
    return WindowLoss(loss, -(total.detach() / counts), counts)


def _emissions(head: CircuitHead, hidden: Tensor, windows: Tensor, chunk_numbers: int) -> Tensor:
    """log p_i(x_i | component) (N, n, r), with the logits of one chunk of windows at a time."""
    config = head.config
    chunk = max(1, chunk_numbers // (config.window * config.rank * config.draft_vocabulary))
    tables = head.inputs.tables()
    parts = zip(hidden.split(chunk), windows.split(chunk), strict=True)
    return torch.cat([head.emissions(part, tables, targets) for part, targets in parts])


def _gains(head: CircuitHead, hidden: Tensor, emitted: Tensor, windows: Tensor) -> Tensor:
    """Σ over windows (N, n) of M_k - M_{k-1} where position k is reached: (n,)."""
    marginals: Tensor = checkpoint(head.prefix_marginals, hidden, emitted, use_reentrant=False)
    return marginals.diff(dim=1).masked_fill(windows == UNKNOWN, 0.0).sum(0)
