"""How noise rows are trained, and a drafter before its training (PTP §4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from mtp.errors import InputError
from mtp.models.backbone import Backbone
from mtp.models.draft_vocabulary import DraftVocabulary
from mtp.models.lora import LowRankAdapter
from mtp.models.verifier import Verifier
from mtp.ptp.embedding import EMBEDDINGS
from mtp.ptp.weights import VARIANTS, DraftRows, PtpConfig, PtpWeights, build_head, build_noise
from mtp.sampling import Sampling
from mtp.train.completions import read_header
from mtp.train.loop import check_products
from mtp.train.muon import Muon
from mtp.train.schedule import Schedule, check_rising
from mtp.train.texts import Text, draft_vocabulary


@dataclass(frozen=True, kw_only=True)
class Recipe(Schedule):
    """How noise rows are trained.

    A step takes `rows` noise rows in each of `texts` completions. Windows grow through `lengths`:
    to the next one when the noise is read (`Quality.passes`, with `gate`), or when the length's
    share of the budget is used up; the i-th length's share is proportional to i. `discount` weighs
    offset j by discount^j. Windows start where the base is unsure more often, `easy` as often where
    it is not at all. With a pick head of `head_layers`, which reads `head_context` rows before the
    root, the rows below it are trained as well, with a share `below` of the loss; it drafts of the
    `draft_vocabulary` tokens most frequent in the answers, or of all for 0. Matrix products of a
    step are taken in float32, or in bfloat16 where the processor is faster at that.
    """

    variant: str = "o-ptp"
    embedding: str = "binary"
    anchors: int = 3
    rank: int = 32
    head_layers: int = 0
    head_width: int = 0
    head_context: int = 0
    draft_vocabulary: int = 0
    below: float = 0.3
    texts: int = 8
    context: int = 1024
    rows: int = 256
    lengths: tuple[int, ...] = (1, 2, 4, 8, 16)
    easy: float = 0.2
    gate: float = 0.95
    discount: float = 0.95
    learning_rate: float = 4e-3
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    products: str = "float32"

    MAY_BE_ZERO = (
        "seed", "top_k", "rank", "head_layers", "head_width", "head_context", "draft_vocabulary",
        "below",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Raises InputError as `Schedule` does, and for unknown variants, embeddings, lengths."""
        super().__post_init__()
        if self.variant not in VARIANTS:
            raise InputError(f"The variant is one of {', '.join(VARIANTS)}.")
        if self.embedding not in EMBEDDINGS:
            raise InputError(f"The embedding is one of {', '.join(EMBEDDINGS)}.")
        check_rising(self.lengths)
        if self.head_layers and self.variant != "c-ptp" and self.lengths[0] == 1:
            raise InputError("A pick head is told the first token; windows begin with 2 or more.")
        width = self.head_width
        if width and (not self.head_layers or width % 2 or (width > 64 and width % 64)):
            raise InputError(
                "The head width is a multiple of 64, or an even number below; with head layers."
            )
        if self.draft_vocabulary and not self.head_layers:
            raise InputError("A draft vocabulary needs a pick head; rows alone draft any token.")
        if not self.rank and not self.head_layers:
            raise InputError("A PTP drafter has an adapter, a pick head, or both.")
        check_products(self.products)
        Sampling(self.temperature, self.top_k, self.top_p)

    @property
    def sampling(self) -> Sampling:
        """What the noise means: the final distribution it picks from."""
        return Sampling(self.temperature, self.top_k, self.top_p)


def check_corpus(paths: Sequence[Path], verifier: Verifier, sampling: Sampling) -> None:
    """Raises InputError for completions not sampled from the base itself with this sampling: on
    other text the noise of the tokens is not uniform, and a drafter learns little.
    """
    for path in paths:
        header = read_header(path)
        if header is None:
            raise InputError(f"{path} has no header; `python -m mtp train corpus` writes one.")
        wanted = {
            "weights_sha256": verifier.weights_sha256,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
        }
        for name, value in wanted.items():
            if header.get(name) != value:
                raise InputError(
                    f"The completions in {path} were sampled with {name} {header.get(name)}; this "
                    f"training needs {value}: the base's own samples at its temperature."
                )


def build(
    recipe: Recipe, verifier: Verifier, vocabulary: DraftVocabulary | None = None
) -> PtpWeights:
    """Adapter, embedding and head before training; functions of the seed. vocabulary: what the
    head drafts of, all tokens for None. Raises InputError for a base whose logits are not its final
    states times its unembedding.
    """
    backbone = verifier.backbone
    _check_unembedding(backbone)
    config = PtpConfig(
        variant=recipe.variant,  # type: ignore[arg-type]
        base_sha256=verifier.weights_sha256,
        hidden=backbone.hidden_size,
        temperature=recipe.temperature,
        embedding="constant" if recipe.variant == "independent" else recipe.embedding,  # type: ignore[arg-type]
        anchors=recipe.anchors,
        top_k=recipe.top_k,
        top_p=recipe.top_p,
        longest=recipe.lengths[-1],
        rank=recipe.rank,
        head_layers=recipe.head_layers,
        head_width=recipe.head_width,
        head_context=recipe.head_context,
        draft_vocabulary=0 if vocabulary is None else len(vocabulary),
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    adapter = None
    if recipe.rank:
        layers = range(int(backbone.config.num_hidden_layers))
        adapter = LowRankAdapter(
            backbone.model, layers, recipe.rank, recipe.rank, generator=generator
        ).to(backbone.device)
    noise = build_noise(config, backbone.model, generator).to(backbone.device)
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        head = build_head(config, backbone.model)
    if head is not None:
        head.to(backbone.device)
    drafted = None if vocabulary is None else DraftRows.of(vocabulary, backbone)
    return PtpWeights(config, adapter, noise, head, drafted)


@torch.no_grad()
def _check_unembedding(backbone: Backbone) -> None:
    ids = torch.tensor([[token % backbone.vocabulary_size for token in (5, 7, 11)]])
    out = backbone.model(input_ids=ids.to(backbone.device), output_hidden_states=True)
    said = (out.hidden_states[-1] @ backbone.unembedding.T).float()
    if (said - out.logits.float()).abs().max() > 0.05 * said.std():
        raise InputError(
            f"The logits of {type(backbone.model).__name__} are scaled, capped or shifted behind "
            "its unembedding; noise rows need a Llama-shaped model."
        )


def vocabulary_of(
    recipe: Recipe, verifier: Verifier, training: Sequence[Text]
) -> DraftVocabulary | None:
    """What a recipe's head drafts of; None for all tokens."""
    if not recipe.draft_vocabulary:
        return None
    return draft_vocabulary(training, verifier.backbone.vocabulary_size, recipe.draft_vocabulary)


def optimizers_of(weights: PtpWeights, recipe: Recipe) -> list[Optimizer]:
    """Muon for the matrices of adapter and head, AdamW for norms and noise embeddings."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    if weights.adapter is not None:
        matrices += weights.adapter.parameters()
        others += weights.noise.parameters()
    if weights.head is not None:
        for parameter in weights.head.parameters():
            (matrices if parameter.ndim == 2 else others).append(parameter)
    return [
        Muon(matrices, recipe.learning_rate, weight_decay=0.0),
        AdamW(others, recipe.learning_rate, (0.9, 0.95), weight_decay=0.0),
    ]
