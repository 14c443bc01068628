"""A causal LM small enough to sample from in a test, with weights from a seed."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 300  # more than one block of the two-level search


def tiny_llama(vocabulary: int = VOCABULARY) -> LlamaForCausalLM:
    """Two layers with shared key heads, in float64, far from uniform."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config).double().eval()
