"""What the byte model is and how it is trained: shape, schedule, optimizers."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import LlamaConfig, LlamaForCausalLM

from mtp.errors import InputError
from mtp.train.byte_tokenizer import END_ID, PAD_ID, VOCABULARY
from mtp.train.muon import optimizers_for
from mtp.train.schedule import Schedule

# Of the budget, trained on windows half as long and twice as many: attention is a third of a step
# at 1,024 bytes, and what is far away is learnt last.
SHORT_SHARE = 0.7


@dataclass(frozen=True)
class Shape:
    """Size of the model: 5.25M parameters as it is. Raises InputError for one that cannot be."""

    hidden: int = 256
    layers: int = 6
    heads: int = 4
    mlp: int = 768
    context: int = 1024

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise InputError(f"The model's {name} is {value}; it must be 1 or more.")
        if self.hidden % (2 * self.heads):
            raise InputError(
                f"A model's heads divide its hidden size into even parts; {self.heads} heads do "
                f"not divide {self.hidden} so."
            )


@dataclass(frozen=True, kw_only=True)
class Recipe(Schedule):
    """How it is trained."""

    WARM_UP_STEPS = 50  # Muon's momentum fills in 20; the first steps of AdamW are the wild ones
    CONSTANT_SHARE = 0.4

    batch: int = 8
    learning_rate: float = 5e-3
    weight_decay: float = 0.05

    def window(self, context: int, step: int, seconds: float) -> tuple[int, int]:
        """Windows of a step and their length: short ones first, then `batch` of `context`."""
        if self.used(step, seconds) < SHORT_SHARE:
            return 2 * self.batch, context // 2
        return self.batch, context


def build_model(shape: Shape, seed: int) -> LlamaForCausalLM:
    """The untrained model, float32; the weights are a function of the seed."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


def build_optimizers(model: nn.Module, recipe: Recipe) -> list[Optimizer]:
    """Muon for the layers' matrices; AdamW for embeddings, output head and norms."""
    return optimizers_for(model, recipe.learning_rate, recipe.weight_decay)
