"""The log-softmax of given tokens, and the gradient it computes by itself."""

import torch

from mtp.circuits.target import target_log_probs


def case(dtype):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(2, 3, 2, 4, generator=generator, dtype=dtype, requires_grad=True)
    tables = torch.randn(2, 4, 5, generator=generator, dtype=dtype, requires_grad=True)
    base = torch.randn(3, 5, generator=generator, dtype=dtype, requires_grad=True)
    return codes, tables, base, torch.randint(5, (2, 3), generator=generator)


def plain(codes, tables, base, targets):
    logits = codes @ tables[:, None] + base[:, None]
    return logits.log_softmax(-1).gather(3, targets[:, :, None, None].expand(-1, -1, 2, 1))[..., 0]


def test_values_and_gradients_equal_autograd():
    codes, tables, base, targets = case(torch.float64)
    torch.testing.assert_close(
        target_log_probs(codes, tables, base, targets), plain(codes, tables, base, targets)
    )
    assert torch.autograd.gradcheck(
        lambda *inputs: target_log_probs(*inputs, targets), (codes, tables, base)
    )
    assert torch.autograd.gradcheck(
        lambda *inputs: target_log_probs(*inputs, None, targets), (codes, tables)
    )


def test_under_autocast_products_are_bfloat16_and_the_softmax_is_not():
    codes, tables, base, targets = case(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = target_log_probs(codes, tables, base, targets)
    assert found.dtype == torch.float32
    wanted = plain(codes, tables, base, targets)
    assert 0 < (found - wanted).abs().max() < 0.05
    found.sum().backward()
    rough = [leaf.grad.clone() for leaf in (codes, tables, base)]
    exact = torch.autograd.grad(wanted.sum(), (codes, tables, base))
    for one, other in zip(rough, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)
