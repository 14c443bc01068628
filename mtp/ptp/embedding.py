"""How a noise value enters the model: u in [0, 1) as a vector of the hidden size. PTP §4."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from mtp.errors import InputError
from mtp.sampling import NOISE_BITS

EmbeddingName = Literal["binary", "linear", "sawtooth", "quarter-cos", "round", "constant"]
EMBEDDINGS: tuple[EmbeddingName, ...] = get_args(EmbeddingName)
WAVES = 32  # frequencies of sawtooth and quarter-cos
BINS = 32  # of round
ANCHORS = 3  # of linear, as released: at 0, ½ and 1


class NoiseEmbedding(nn.Module):
    """u (…,) to (…, D).

    binary: its 24 bits, each −½ or ½, through a linear map (the paper's, whose noise has as many).
    linear: interpolation between learned anchors. sawtooth: n·u mod 1, quarter-cos: cos(nπu), for
    n = 1 … 32, through a linear map. round: one vector for each of 32 bins. constant: one vector,
    blind to u: the independent baseline. Raises InputError for another name.
    """

    def __init__(
        self,
        name: EmbeddingName,
        hidden: int,
        spread: float,
        anchors: int = ANCHORS,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if name not in EMBEDDINGS:
            raise InputError(f"A noise embedding is one of {', '.join(EMBEDDINGS)}, not {name!r}.")
        if anchors < 2:
            raise InputError(f"Interpolation needs at least 2 anchors, not {anchors}.")
        self.name: EmbeddingName = name
        rows = {
            "binary": NOISE_BITS,
            "linear": anchors,
            "sawtooth": WAVES,
            "quarter-cos": WAVES,
            "round": BINS,
            "constant": 1,
        }[name]
        mixed = name in ("binary", "sawtooth", "quarter-cos")  # sums of about `rows` vectors
        scale = spread / math.sqrt(rows) * 2 if mixed else spread
        self.table = nn.Parameter(scale * torch.randn(rows, hidden, generator=generator))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, u: Tensor) -> Tensor:
        """(…, D) in the table's precision, for u (…,) in [0, 1)."""
        features = self.features(u.double()).to(self.table)
        return features @ self.table + self.bias

    def features(self, u: Tensor) -> Tensor:
        """Weights (…, rows) of the table's rows, float64."""
        rows = len(self.table)
        n = torch.arange(1, rows + 1, device=u.device, dtype=torch.float64)
        if self.name == "binary":
            grid = torch.floor(u * 2**NOISE_BITS).long()[..., None]
            places = torch.arange(NOISE_BITS, device=u.device)
            return ((grid >> places) & 1).double() - 0.5
        if self.name == "linear":
            places = torch.arange(rows, device=u.device, dtype=torch.float64)
            return (1 - (u[..., None] * (rows - 1) - places).abs()).clamp(min=0)
        if self.name == "sawtooth":
            return (u[..., None] * n) % 1 - 0.5
        if self.name == "quarter-cos":
            return torch.cos(math.pi * n * u[..., None])
        if self.name == "round":
            return nn.functional.one_hot((u * BINS).long().clamp(max=BINS - 1), BINS).double()
        return torch.ones_like(u)[..., None]
