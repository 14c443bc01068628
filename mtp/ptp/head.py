"""Layers above the noise rows, for what is known by the time their drafts are wanted."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from mtp.ptp.embedding import NoiseEmbedding

HEAD_WIDTH = 64  # of one attention head
MLP = 3  # times the hidden size


class NoiseHead(nn.Module):
    """A few causal layers that refine a branch's noise rows (beyond the paper).

    Noise rows run beside the tokens they continue, so that they meet neither the verifier's
    distribution behind their root nor the token it picks there. Once the forward is over both are
    known: the head reads the root's final state, that token's embedding, the rows' final states and
    their noise, and returns new states. At first it changes nothing.
    """

    def __init__(self, hidden: int, layers: int, noise: NoiseEmbedding) -> None:
        super().__init__()
        heads = max(1, hidden // HEAD_WIDTH)
        config = LlamaConfig(
            vocab_size=1,
            hidden_size=hidden,
            intermediate_size=MLP * hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.body = LlamaModel(config)
        del self.body.embed_tokens  # it is given states, never tokens
        self.root = nn.Linear(hidden, hidden, bias=False)
        self.token = nn.Linear(hidden, hidden, bias=False)
        self.row = nn.Linear(hidden, hidden, bias=False)
        self.noise = noise
        self.out = nn.Linear(hidden, hidden, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, states: Tensor, root: Tensor, token: Tensor, u: Tensor) -> Tensor:
        """(B, L, D): the states of L noise rows in each of B branches, refined.

        states (B, L, D) and root (B, D): final states of the rows and of the row they start behind.
        token (B, D): the embedding of the token picked at the root. u (B, L): the rows' noise.
        """
        rows = self.row(states) + self.noise(u).to(states)
        first = rows[:, :1] + self.token(token)[:, None]
        line = torch.cat([self.root(root)[:, None], first, rows[:, 1:]], dim=1)
        read: Tensor = self.body(inputs_embeds=line).last_hidden_state[:, 1:]
        return states + self.out(read)
