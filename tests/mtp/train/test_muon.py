"""Muon against its definition and torch's own."""

import torch

from mtp.train.muon import Muon, orthogonal


def test_singular_values_come_near_one():
    matrices = torch.randn(3, 16, 40, generator=torch.Generator().manual_seed(0))
    for made in (orthogonal(matrices), orthogonal(matrices.mT).mT):
        values = torch.linalg.svdvals(made)
        assert values.min() > 0.5 and values.max() < 1.5
        overlap = (made * matrices).sum((1, 2)) / torch.linalg.svdvals(matrices).sum(-1)
        assert (overlap > 0.6).all()


def test_same_steps_as_torch_up_to_its_bfloat16():
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in [(16, 24), (24, 16), (16, 24)]]
    mine = [torch.nn.Parameter(x.clone()) for x in start]
    theirs = [torch.nn.Parameter(x.clone()) for x in start]
    a = Muon(mine, lr=0.01)
    b = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        a.step()
        b.step()
    for one, other, old in zip(mine, theirs, start, strict=True):
        assert (one - other).norm() < 0.03 * (one - old).norm()
