"""Log-probability of given tokens under many softmaxes at once, without keeping the softmaxes.

Training needs one column and the log-normaliser of each of n · r distributions over v tokens per
window. Autograd would keep several tensors of n · r · v per window; here the backward pass computes
the logits again (one product) and turns them into the gradient in place.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def target_log_probs(codes: Tensor, tables: Tensor, base: Tensor | None, targets: Tensor) -> Tensor:
    """log softmax(codes @ tables + base)[target]: (G, N, R).

    codes: (G, N, R, m); tables: (G, m, v); base: (N, v), shared by all G and R, or None; targets:
    (G, N) indices below v. Products follow autocast, the softmax is float32 at least. Gradients
    reach codes, tables and base, once (no second derivatives).
    """
    result: Tensor = _TargetLogProbs.apply(codes, tables, base, targets)
    return result


class _TargetLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, codes: Tensor, tables: Tensor, base: Tensor | None, targets: Tensor
    ) -> Tensor:
        product_type = codes.dtype
        if torch.is_autocast_enabled(codes.device.type):
            product_type = torch.get_autocast_dtype(codes.device.type)
        logits = _logits(codes, tables, base, product_type)
        chosen = logits.gather(3, _column(targets, logits))[..., 0]
        norm = torch.logsumexp(logits, dim=-1)
        ctx.product_type = product_type
        ctx.save_for_backward(codes, tables, base, targets, norm)
        return chosen - norm

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        codes, tables, base, targets, norm = ctx.saved_tensors
        at_logits = _logits(codes, tables, base, ctx.product_type)  # (G, N, R, v)
        at_logits.sub_(norm[..., None]).exp_().mul_(-grad[..., None])
        at_logits.scatter_add_(3, _column(targets, at_logits), grad[..., None].to(at_logits.dtype))
        at_base = at_logits.sum(dim=(0, 2)).to(base.dtype) if ctx.needs_input_grad[2] else None
        groups, batch, rows, wide = at_logits.shape
        flat = at_logits.view(groups, batch * rows, wide).to(ctx.product_type)
        at_codes = at_tables = None
        if ctx.needs_input_grad[0]:
            at_codes = flat @ tables.to(ctx.product_type).transpose(1, 2)
            at_codes = at_codes.view_as(codes).to(codes.dtype)
        if ctx.needs_input_grad[1]:
            narrow = codes.reshape(groups, batch * rows, -1).to(ctx.product_type)
            at_tables = (narrow.transpose(1, 2) @ flat).to(tables.dtype)
        return at_codes, at_tables, at_base, None


def _logits(
    codes: Tensor, tables: Tensor, base: Tensor | None, product_type: torch.dtype
) -> Tensor:
    """(G, N, R, v) in float32 or float64."""
    groups, batch, rows, narrow = codes.shape
    flat = codes.reshape(groups, batch * rows, narrow).to(product_type)
    logits = (flat @ tables.to(product_type)).view(groups, batch, rows, -1)
    if logits.dtype != torch.float64:
        logits = logits.float()
    if base is not None:
        logits += base[:, None, :]
    return logits


def _column(targets: Tensor, logits: Tensor) -> Tensor:
    return targets[:, :, None, None].expand(-1, -1, logits.shape[2], 1)
