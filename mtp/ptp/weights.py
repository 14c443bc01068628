"""A PTP drafter: settings, adapter, noise embedding, pick head, and what they foresee."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtp.errors import InputError
from mtp.models.backbone import Backbone
from mtp.models.draft_vocabulary import DraftVocabulary
from mtp.models.lora import LowRankAdapter
from mtp.ptp.embedding import ANCHORS, EmbeddingName, NoiseEmbedding
from mtp.ptp.head import Behind, PickHead, picks, settle
from mtp.ptp.intervals import picked
from mtp.sampling import Sampling, final_probabilities

Variant = Literal["o-ptp", "c-ptp", "independent"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)


@dataclass(frozen=True)
class Drafts:
    """What rows draft: tokens (...), the drafter's probability of each, its confidence, and for
    C-PTP the distributions (..., V) that they were picked from, float64.
    """

    tokens: Tensor
    likely: Tensor
    sure: Tensor
    q: Tensor | None = None


@dataclass(frozen=True)
class PtpConfig:
    """Which drafter this is, and what it was trained for.

    temperature, top_k and top_p give its noise its meaning. `longest` is the longest window it was
    trained on. `rank` is the adapter's, 0 for a drafter without noise rows in the base, which
    drafts by its head alone; `head_layers` counts the layers of its pick head, 0 for none,
    `head_width` is their width, 0 for the base's, and `head_context` counts the rows of the text
    before the root that the head reads; `draft_vocabulary` counts the tokens it drafts of, 0 for
    all. `gains` is H(b), b = 1, 2, …: how many drafts of a branch
    of b rows stood on held-out text. `stands` pairs a confidence with the share of drafts that
    stood, rising.
    """

    variant: Variant
    base_sha256: str
    hidden: int
    temperature: float
    embedding: EmbeddingName = "binary"
    anchors: int = ANCHORS
    top_k: int = 0
    top_p: float = 1.0
    longest: int = 16
    rank: int = 32
    head_layers: int = 0
    head_width: int = 0
    head_context: int = 0
    draft_vocabulary: int = 0
    gains: tuple[float, ...] = ()
    stands: tuple[tuple[float, float], ...] = ()

    @property
    def replaced(self) -> int:
        """Rows at a branch's start whose token the verifier knows before they are of use."""
        return 0 if self.variant == "c-ptp" else 1

    def offset(self, row: int) -> int:
        """How far behind its root the token stands that row 0, 1, … of a branch foresees; at 1
        stands the verifier's own pick.
        """
        return row + 2 - self.replaced

    @property
    def sampling(self) -> Sampling:
        """What it was trained for."""
        return Sampling(self.temperature, self.top_k, self.top_p)

    @property
    def picks_with_noise(self) -> bool:
        """Whether a row gives a distribution, C-PTP's, from which its token's noise then picks."""
        return self.variant == "c-ptp"

    def drafts(self, logits: Tensor, u: Tensor, sampling: Sampling) -> Drafts:
        """What rows draft that say logits (..., V), for tokens whose noise is u (...)."""
        if not self.picks_with_noise:
            best = logits.float().softmax(-1).max(-1)
            return Drafts(best.indices, best.values, best.values)
        q = final_probabilities(logits, sampling)
        tokens, sure = picked(q, u)
        return Drafts(tokens, q.gather(-1, tokens[..., None])[..., 0], sure, q)

    def own_noise(self, u: Tensor) -> Tensor:
        """The noise (B, L) of the tokens that rows foresee, from the noise u (B, L) that they read:
        for C-PTP that of the next row, which the last one lacks.
        """
        return u if self.replaced else u.roll(-1, dims=1)

    def given(self, tokens: Tensor) -> Tensor:
        """The tokens (B, L) that rows of a head are given when those before them are known: tokens
        (B, L), whose noise the rows read. −1 for none.
        """
        before = tokens.clone()
        if self.replaced:
            before = torch.cat([torch.full_like(tokens[:, :1], -1), tokens[:, :-1]], dim=1)
        if self.variant == "independent":
            before[:, self.replaced + 1 :] = -1
        return before

    def expected(self) -> tuple[float, ...]:
        """H(b); before it has been measured, every row but a replaced first one counts whole."""
        if self.gains:
            return self.gains
        return tuple(float(max(0, b - self.replaced)) for b in range(1, self.longest + 1))

    def chance(self, confidence: float) -> float:
        """The calibrated chance that a draft of this confidence stands."""
        if not self.stands:
            return confidence
        below = [pair for pair in self.stands if pair[0] <= confidence]
        above = [pair for pair in self.stands if pair[0] > confidence]
        if not below or not above:
            return below[-1][1] if below else above[0][1]
        (x0, y0), (x1, y1) = below[-1], above[0]
        return y0 + (y1 - y0) * (confidence - x0) / (x1 - x0)


@dataclass(frozen=True)
class DraftRows:
    """The tokens a head drafts of, where those are not all of the model's: their ids (W,), and
    their rows (W, D) of the base's unembedding, on its device.
    """

    vocabulary: DraftVocabulary
    ids: Tensor
    rows: Tensor

    @classmethod
    def of(cls, vocabulary: DraftVocabulary, backbone: Backbone) -> DraftRows:
        """Those of a draft vocabulary."""
        ids = torch.from_numpy(vocabulary.ids).to(backbone.device)
        return cls(vocabulary, ids, backbone.unembedding.detach()[ids])


@dataclass(frozen=True)
class PtpWeights:
    """A trained drafter, ready to run on its base. Without `drafted` it drafts any token."""

    config: PtpConfig
    adapter: LowRankAdapter | None
    noise: NoiseEmbedding
    head: PickHead | None = None
    drafted: DraftRows | None = None

    def __post_init__(self) -> None:
        """Raises InputError for a drafter that has neither adapter nor head."""
        if self.adapter is None and self.head is None:
            raise InputError("A PTP drafter has an adapter, a pick head, or both.")

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What is trained, by name."""
        found: dict[str, nn.Module] = {}
        if self.adapter is not None:
            found |= {"adapter": self.adapter, "noise": self.noise}
        return found if self.head is None else {**found, "head": self.head}

    def sha256(self) -> str:
        """Tells these weights from others: of all tensors by name, as float32, and of the tokens
        drafted where those are not all.
        """
        digest = hashlib.sha256()
        if self.drafted is not None:
            digest.update(self.drafted.vocabulary.sha256.encode())
        for part, module in sorted(self.modules.items()):
            for name, tensor in sorted(module.state_dict().items()):
                digest.update(f"{part}.{name}".encode())
                digest.update(tensor.detach().float().cpu().numpy().tobytes())
        return digest.hexdigest()

    def foresee(
        self,
        backbone: Backbone,
        states: Tensor | None,
        behind: Behind,
        token_ids: Tensor,
        u: Tensor,
        sampling: Sampling,
    ) -> Tensor:
        """Logits (B, L, V) of L noise rows in each of B branches above the head.

        states (B, L, D): final states of the rows; None where the base has none. behind: the text
        that the branches start behind. token_ids (B,): what the verifier picks there. u (B, L): the
        rows' noise. sampling: of the run, as it decides what the noise picks. The first row of
        O-PTP and of independent is for the verifier's very token: what it says is of no use.
        """
        first = self.config.replaced
        known = torch.full(u.shape, -1, dtype=torch.long, device=token_ids.device)
        known[:, first : first + 1] = token_ids[:, None]

        step = self.above(backbone, states, behind, u.shape[1])

        if self.config.variant == "independent":
            return self._over_all(step(known))
        own = self.config.own_noise(u)

        def pick(logits: Tensor) -> Tensor:
            return self._tokens(picks(logits, own, sampling))

        if states is not None:
            below = self.below(backbone, states)
            guess = pick(below) if first == 0 else self._tokens(below.argmax(-1))
            known[:, first + 1 :] = guess[:, first:-1]
        return self._over_all(self.told(settle(step, known, first, pick), own, sampling))

    def rows(self, backbone: Backbone) -> Tensor:
        """The rows (W, D) of the unembedding of the tokens that are drafted; W = V without a draft
        vocabulary.
        """
        return backbone.unembedding if self.drafted is None else self.drafted.rows

    def below(self, backbone: Backbone, states: Tensor) -> Tensor:
        """What noise rows with final states (..., D) say without a head: logits (..., W)."""
        return states @ self.rows(backbone).T

    def index(self, token_ids: Tensor) -> Tensor:
        """Where tokens stand among those drafted, OUTSIDE for others."""
        return token_ids if self.drafted is None else self.drafted.vocabulary.index(token_ids)

    def _tokens(self, index: Tensor) -> Tensor:
        return index if self.drafted is None else self.drafted.ids[index]

    def _over_all(self, logits: Tensor) -> Tensor:
        """Logits (..., V) of all tokens from those (..., W) of the ones drafted."""
        if self.drafted is None:
            return logits
        shape = (*logits.shape[:-1], self.drafted.vocabulary.size)
        whole = torch.full(shape, -torch.inf, dtype=logits.dtype, device=logits.device)
        whole[..., self.drafted.ids] = logits
        return whole

    def above(
        self, backbone: Backbone, states: Tensor | None, behind: Behind, length: int
    ) -> Callable[[Tensor], Tensor]:
        """A function from the tokens (B, L) that L = `length` rows are given, −1 for none, to their
        logits (B, L, W) of the tokens drafted. What is behind the rows is read once. Without rows
        in the base, the head reads the root's state in each row, and what it says is all its own:
        that state foretells the root's token, which is known.
        """
        head = self.head
        assert head is not None
        seen = head.read(behind.states.float(), _embedded(backbone, behind.following))
        rows = behind.root[:, None].expand(-1, length, -1) if states is None else states
        rows = rows.float()
        below = 0.0 if states is None else rows
        unembedding = self.rows(backbone)
        added = head.over(seen, rows)

        def step(given: Tensor) -> Tensor:
            refined = below + added(_embedded(backbone, given))
            return refined.to(unembedding) @ unembedding.T

        return step

    def told(self, logits: Tensor, u: Tensor, sampling: Sampling) -> Tensor:
        """What O-PTP says of rows that have read their noise u (B, L): which token it picks from
        their logits (B, L, W), which the other variants leave as they are.
        """
        if self.config.variant != "o-ptp":
            return logits
        assert self.head is not None
        return self.head.softly_picked(logits.float(), u, sampling)


def _embedded(backbone: Backbone, token_ids: Tensor) -> Tensor:
    """Embeddings (B, L, D) of tokens (B, L) in float32, 0 for −1."""
    found = backbone.model.get_input_embeddings()(token_ids.clamp(min=0)).float()
    return found * (token_ids >= 0)[:, :, None]


def build_head(config: PtpConfig, model: PreTrainedModel | None = None) -> PickHead | None:
    """An untrained head, where the drafter has one; for a model unless its weights follow."""
    if not config.head_layers:
        return None
    spread = 1.0 if model is None else spread_of(model)
    return PickHead(config.hidden, config.head_layers, config.head_width, spread)


def build_noise(
    config: PtpConfig, model: PreTrainedModel, generator: torch.Generator | None = None
) -> NoiseEmbedding:
    """An untrained embedding: of the size of the base's token embeddings, around their mean, where
    a frozen base reads a row as a token yet to come (ESP's mask).
    """
    noise = NoiseEmbedding(
        config.embedding, config.hidden, spread_of(model), config.anchors, generator
    )
    with torch.no_grad():
        noise.bias.copy_(_embeddings(model).float().mean(0))
    return noise


def spread_of(model: PreTrainedModel) -> float:
    """The standard deviation of the model's token embeddings."""
    return float(_embeddings(model).float().std())


def _embeddings(model: PreTrainedModel) -> Tensor:
    """The model's token embeddings (V, D)."""
    table = model.get_input_embeddings().weight
    assert isinstance(table, torch.Tensor)
    return table.detach()
