"""A head folded for drafting: everything that doesn't depend on the context computed once.

At batch 1 a draft is a handful of matrix-vector products whose cost is reading weights, so they are
merged and laid out to be read in order.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as fn

from mtp.circuits.drafting import WindowCircuit, from_circuit
from mtp.circuits.heads import CircuitHead
from mtp.circuits.inputs import RMS_FLOOR, LowRankInputs


class FoldedHead:
    """Makes the `WindowCircuit` of one hidden state. A copy: later training doesn't reach it.

    Full heads have nothing to fold and go through the head itself.
    """

    def __init__(self, head: CircuitHead) -> None:
        self.head = head
        self.structure = head.structure
        self.vocabulary = head.vocabulary
        self.temperature = head.config.temperature
        self._low_rank = _FoldedLowRank(head) if isinstance(head.inputs, LowRankInputs) else None

    @torch.inference_mode()
    def circuit(self, hidden: Tensor) -> WindowCircuit:
        """The circuit of one hidden state (D,), as probabilities. Equals `head(hidden[None])`."""
        if self._low_rank is None:
            return from_circuit(self.head(hidden.detach().float().cpu()[None]))
        array = hidden.detach().float().cpu().numpy()
        inputs, root, transitions = self._low_rank.probabilities(array)
        return WindowCircuit(self.structure, inputs, root, transitions)


class _FoldedLowRank:
    """`LowRankInputs` and `SumWeights` for one hidden state, in float32.

    NumPy for matrix-vector products, whose cost is mostly the call; torch for the products and the
    softmax over n · r · v numbers, where it is faster.
    """

    @torch.no_grad()
    def __init__(self, head: CircuitHead) -> None:
        inputs, sums = head.inputs, head.sums
        assert isinstance(inputs, LowRankInputs)
        self.codes = inputs.window * inputs.down.shape[1]
        self.own = inputs.own
        self.basis = inputs.up.shape[1]
        self.rank = inputs.rank
        self.transitions_shape = head.structure.transitions_shape
        self.root = head.structure.root_shape[0]
        # Codes of all positions and the gate in one product: (n · code + gate, D).
        self.down = _array(torch.cat([inputs.down.flatten(0, 1), sums.gate]))
        self.bias = _array(torch.cat([inputs.bias.flatten(), sums.gate_bias]))
        self.shared = _array(inputs.shared)  # (n, code, basis)
        self.apart = _array(inputs.apart.flatten(2))  # (n, own, r · basis)
        self.offset = _array(inputs.offset)  # (n, r, basis)
        self.tables = torch.from_numpy(_array(inputs.tables()))  # (n, basis, v)
        self.unembedding = _array(inputs.unembedding)  # (v, D)
        self.maps = _array(sums.maps)  # (gate, r + (L - 1) r²)
        self.maps_bias = _array(sums.bias)

    def probabilities(self, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """inputs (n, r, v), root (r,), transitions (L - 1, r, r) of one hidden state (D,)."""
        units = self.down.dot(hidden)
        units *= 1.0 / math.sqrt(float(hidden.dot(hidden)) / len(hidden) + RMS_FLOOR)
        units += self.bias
        fn.silu(torch.from_numpy(units), inplace=True)
        weights = units[self.codes :].dot(self.maps)
        weights += self.maps_bias
        code = units[: self.codes].reshape(len(self.shared), 1, -1)  # (n, 1, code)
        codes = np.matmul(code[:, :, : self.own], self.apart).reshape(self.offset.shape)
        codes += self.offset
        codes += np.matmul(code, self.shared)  # (n, r, basis)
        logits = torch.bmm(torch.from_numpy(codes), self.tables)  # (n, r, v)
        logits += torch.from_numpy(self.unembedding.dot(hidden))
        inputs = torch.softmax(logits, dim=-1).numpy()
        transitions = weights[self.root :].reshape(self.transitions_shape)
        return inputs, _softmax(weights[: self.root]), _softmax(transitions)


def _array(tensor: Tensor) -> np.ndarray:
    copied: np.ndarray = tensor.detach().float().cpu().contiguous().numpy().copy()
    return copied


def _softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64; logits may be empty."""
    powers = np.exp(logits - logits.max(-1, keepdims=True, initial=-np.inf)).astype(np.float64)
    powers /= powers.sum(-1, keepdims=True)
    return powers
