"""How the inverse autoregressive pair is trained, and both models before their training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import LlamaForCausalLM

from mtp.errors import InputError
from mtp.ptp.embedding import NoiseEmbedding
from mtp.ptp.weights import spread_of
from mtp.sampling import Sampling
from mtp.train.byte_recipe import Shape, build_model
from mtp.train.loop import check_products
from mtp.train.muon import optimizers_for
from mtp.train.schedule import Schedule, check_rising, share_of_stage


@dataclass(frozen=True, kw_only=True)
class Recipe(Schedule):
    """How both models are trained: the same text in the same order, the same number of steps.

    In each of `batch` texts of `context` bytes, windows are split off, with about `rows` noise rows
    between them. Windows grow through `lengths`, tokens each: the i-th length's share of the budget
    is proportional to i, as short windows teach to read the noise. A window of 1 has no noise rows:
    both models learn the text alone, without which there is no distribution to pick from. Matrix
    products of what is learnt are taken in float32 or bfloat16; the noise is always found in
    float32.
    """

    batch: int = 16
    context: int = 256
    rows: int = 96
    lengths: tuple[int, ...] = (1, 2, 4, 8)
    learning_rate: float = 5e-3
    temperature: float = 0.7
    embedding: str = "binary"
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    mlp: int = 384
    products: str = "float32"

    def __post_init__(self) -> None:
        """Raises InputError as `Schedule` does, and for lengths that make no windows."""
        super().__post_init__()
        check_products(self.products)
        check_rising(self.lengths)
        if not 2 <= self.longest < self.context:
            raise InputError("The longest window has 2 tokens or more, and fewer than the context.")
        Sampling(self.temperature)
        _ = self.shape

    @property
    def longest(self) -> int:
        """The length of the last windows, at which the pair is measured."""
        return self.lengths[-1]

    def length(self, used: float) -> int:
        """The windows' length when this share of the budget is used."""
        for stage, length in enumerate(self.lengths):
            used -= share_of_stage(stage, len(self.lengths))
            if used < 0:
                return length
        return self.longest

    def windows(self, length: int) -> int:
        """Windows of this length in a text, 2 or more tokens each."""
        return max(1, self.rows // (length - 1))

    @property
    def shape(self) -> Shape:
        """Of both models: about a million parameters as it is."""
        return Shape(self.hidden, self.layers, self.heads, self.mlp, self.context)


@dataclass(frozen=True)
class Pair:
    """The model that reads noise, its embedding, and its autoregressive twin."""

    model: LlamaForCausalLM
    noise: NoiseEmbedding
    twin: LlamaForCausalLM

    def optimizers(self, recipe: Recipe) -> list[Optimizer]:
        """Muon for the layers' matrices of each, AdamW for the rest."""
        rate = recipe.learning_rate
        return [
            *optimizers_for(self.model, rate, 0.05, self.noise.parameters()),
            *optimizers_for(self.twin, rate, 0.05),
        ]

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All three, by name."""
        return {"model": self.model, "noise": self.noise, "twin": self.twin}


def build(recipe: Recipe) -> Pair:
    """Both models with the same first weights, functions of the seed."""
    model, twin = (build_model(recipe.shape, recipe.seed) for _ in range(2))
    generator = torch.Generator().manual_seed(recipe.seed)
    noise = NoiseEmbedding(recipe.embedding, recipe.hidden, spread_of(model), generator=generator)  # type: ignore[arg-type]
    return Pair(model, noise, twin)
