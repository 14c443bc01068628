"""The neural head: from a hidden state to the parameters of a circuit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from mtp.circuits.circuit import UNKNOWN, Circuit, owner_states
from mtp.circuits.inputs import FullInputs, LowRankInputs
from mtp.circuits.prefix import marginals_of_emissions
from mtp.circuits.sampling import draw, sample_latents
from mtp.circuits.structure import CircuitName, build
from mtp.circuits.weights import SumWeights
from mtp.errors import InputError
from mtp.models.draft_vocabulary import DraftVocabulary

Inputs = Literal["low-rank", "full"]
HMM_STAY = 0.9  # near identity, yet far enough from 1 that gradients pass


@dataclass(frozen=True)
class HeadConfig:
    """What a head is made of; saved beside its weights.

    window n and rank r of the circuit; hidden D and vocabulary V of the base model, whose weights
    have SHA-256 `base_sha256`; draft_vocabulary v ≤ V tokens can be drafted. code, basis and own
    are the sizes of `LowRankInputs`, gate and stay those of `SumWeights`. lora is K: that many of
    the model's last layers run with an adapter to make the hidden state. temperature: of the texts
    it was trained on, where the base wrote them itself, else 1; what the circuit prices is the
    base's choice at that temperature.
    """

    circuit: CircuitName
    window: int
    rank: int
    hidden: int
    vocabulary: int
    draft_vocabulary: int
    base_sha256: str
    inputs: Inputs = "low-rank"
    code: int = 64
    basis: int = 64
    own: int = 16
    gate: int = 32
    lora: int = 0
    temperature: float = 1.0
    stay: float | None = None  # None: HMM_STAY for hmm, 1 / rank otherwise

    @property
    def first_stay(self) -> float:
        """Probability of keeping the state at the start."""
        if self.stay is not None:
            return self.stay
        return HMM_STAY if self.circuit == "hmm" else 1.0 / self.rank


@dataclass(frozen=True)
class LatentFirst:
    """Windows drawn latents first: tokens (N, n) draft indices, latent states (N, L)."""

    tokens: Tensor
    states: Tensor


class CircuitHead(nn.Module):
    """Parameters of a circuit from hidden states (after the model's final norm). MTPC §4.

    unembedding: (V, D), the model's output matrix; it is kept frozen and not saved with the head.
    Tokens in and out are indices into `vocabulary`. Raises InputError when sizes don't match.
    """

    def __init__(
        self,
        config: HeadConfig,
        unembedding: Tensor,
        vocabulary: DraftVocabulary,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if tuple(unembedding.shape) != (config.vocabulary, config.hidden):
            raise InputError(
                f"The head needs an unembedding of {config.vocabulary} × {config.hidden}, "
                f"not {' × '.join(map(str, unembedding.shape))}."
            )
        if (len(vocabulary), vocabulary.size) != (config.draft_vocabulary, config.vocabulary):
            raise InputError(
                f"The head drafts {config.draft_vocabulary} of {config.vocabulary} tokens; the "
                f"draft vocabulary has {len(vocabulary)} of {vocabulary.size}."
            )
        self.config = config
        self.vocabulary = vocabulary
        self.structure = build(config.circuit, config.window, config.rank)
        rows = unembedding.detach().float()[torch.as_tensor(vocabulary.ids)]  # (v, D)
        self.inputs: LowRankInputs | FullInputs
        if config.inputs == "full":
            self.inputs = FullInputs(config.window, config.rank, rows)
        else:
            self.inputs = LowRankInputs(
                config.window, config.rank, rows, config.code, config.basis, config.own, generator
            )
        self.sums = SumWeights(
            self.structure, config.hidden, config.gate, config.first_stay, generator
        )

    def forward(self, hidden: Tensor) -> Circuit:
        """The whole circuit of each hidden state (N, D)."""
        root, transitions = self.sums(hidden)
        return Circuit(self.structure, self.inputs(hidden), root, transitions)

    def emissions(self, hidden: Tensor, tables: Tensor, windows: Tensor) -> Tensor:
        """log p_i(x_i | component) (N, n, r); 0 where windows (N, n) are UNKNOWN.

        tables: `self.inputs.tables()`, computed once for many calls.
        """
        found = self.inputs.of_targets(hidden, tables, windows.clamp(min=0))
        return found.masked_fill((windows == UNKNOWN)[:, :, None], 0.0)

    def prefix_marginals(self, hidden: Tensor, emitted: Tensor) -> Tensor:
        """M_k (N, n + 1) of windows whose `emissions` (N, n, r) are given. MTPC §3.2."""
        root, transitions = self.sums(hidden)
        return marginals_of_emissions(self.structure, emitted, root, transitions)

    def sample(self, hidden: Tensor, generator: torch.Generator | None = None) -> LatentFirst:
        """One window per hidden state (N, D), latents first: only n rows are unembedded."""
        root, transitions = self.sums(hidden)
        states = sample_latents(self.structure, root, transitions, 1, generator)[0]  # (N, L)
        rows = self.inputs.chosen(hidden, owner_states(self.structure, states))
        return LatentFirst(draw(rows, generator), states)
