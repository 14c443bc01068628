"""Circuit heads in training: which, how, on what windows, and how good they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from mtp.circuits.circuit import UNKNOWN
from mtp.circuits.heads import CircuitHead, HeadConfig, Inputs
from mtp.circuits.loss import loss_of_windows, window_targets
from mtp.circuits.shelf import label_of
from mtp.circuits.structure import CIRCUIT_NAMES, CircuitName
from mtp.errors import InputError
from mtp.models.backbone import Backbone
from mtp.models.draft_vocabulary import DraftVocabulary
from mtp.models.lora import LowRankAdapter
from mtp.models.top import check_top
from mtp.models.verifier import Verifier
from mtp.train.schedule import Schedule
from mtp.train.texts import Text, in_answers, padded


@dataclass(frozen=True)
class Spec:
    """Which circuit a head is: its kind, window n and rank r. Written btree:16:16, or ff:8."""

    circuit: CircuitName
    window: int
    rank: int

    @property
    def name(self) -> str:
        """What it is called in a run, such as ff-16 or btree-16-r8."""
        return label_of(self.circuit, self.window, self.rank, 0)


@dataclass(frozen=True, kw_only=True)
class Recipe(Schedule):
    """How heads are trained. A step takes `windows` random places in the answers of `texts`
    completions.

    `lora` is K, how many of the last layers get an adapter; `draft_vocabulary` tokens can be
    drafted, 0: all. `inputs` are low-rank expanders (of sizes `code` and `basis`) of the model's
    own output head, or full: an output head for every position and component. `temperature` is that
    of the texts where the model wrote them itself, 1 for texts of others.
    """

    MAY_BE_ZERO = ("seed", "draft_vocabulary", "lora")

    def __post_init__(self) -> None:
        """Raises InputError as `Schedule` does, and for unknown inputs."""
        super().__post_init__()
        if self.inputs not in get_args(Inputs):
            raise InputError(f"The inputs are {' or '.join(get_args(Inputs))}.")

    texts: int = 8
    context: int = 1024
    windows: int = 1024
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    code: int = 64
    basis: int = 32
    draft_vocabulary: int = 0
    lora: int = 0
    lora_rank: int = 16
    inputs: str = "low-rank"
    temperature: float = 1.0


def parse_spec(text: str) -> Spec:
    """Reads ff:8 or btree:16:16. Raises InputError for anything else."""
    circuit, *sizes = text.split(":")
    numbers = [int(size) for size in sizes if size.isdecimal()]
    if circuit not in CIRCUIT_NAMES or len(numbers) != len(sizes) or not 1 <= len(sizes) <= 2:
        raise InputError(
            f"A head is written CIRCUIT:WINDOW:RANK, such as btree:16:16 or ff:8; {text[:40]!r} is "
            f"not. The circuits are {', '.join(CIRCUIT_NAMES)}."
        )
    rank = numbers[1] if len(numbers) == 2 else 1
    return Spec(circuit, numbers[0], rank)


@dataclass(frozen=True)
class Trainee:
    """A head, and for K > 0 the adapter of the model's last K layers that drafts run with."""

    head: CircuitHead
    adapter: LowRankAdapter | None

    def parameters(self) -> list[nn.Parameter]:
        """All that is trained."""
        adapted = list(self.adapter.parameters()) if self.adapter is not None else []
        return [*self.head.parameters(), *adapted]

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        adapted = self.adapter.state_dict() if self.adapter is not None else None
        return {"head": self.head.state_dict(), "adapter": adapted}

    def begin_as(self, state: dict[str, Any]) -> None:
        """Takes on another run's head, and its adapter where it has one."""
        self.head.load_state_dict(state["head"])
        if self.adapter is not None and state["adapter"] is not None:
            self.adapter.load_state_dict(state["adapter"])

    def load(self, state: dict[str, Any]) -> None:
        """Takes on what a checkpoint kept."""
        self.head.load_state_dict(state["head"])
        if self.adapter is not None:
            self.adapter.load_state_dict(state["adapter"])


def build(spec: Spec, recipe: Recipe, verifier: Verifier, vocabulary: DraftVocabulary) -> Trainee:
    """A head, and an adapter for K > 0, before training, float32; functions of the seed."""
    backbone = verifier.backbone
    config = HeadConfig(
        circuit=spec.circuit,
        window=spec.window,
        rank=spec.rank,
        hidden=backbone.hidden_size,
        vocabulary=backbone.vocabulary_size,
        draft_vocabulary=len(vocabulary),
        base_sha256=verifier.weights_sha256,
        code=recipe.code,
        basis=recipe.basis,
        inputs=recipe.inputs,  # type: ignore[arg-type]
        lora=recipe.lora,
        temperature=recipe.temperature,
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    head = CircuitHead(config, backbone.unembedding, vocabulary, generator).to(backbone.device)
    if recipe.lora == 0:
        return Trainee(head, None)
    check_top(backbone.model, recipe.lora)
    depth = int(backbone.config.num_hidden_layers)
    layers = range(depth - recipe.lora, depth)
    adapter = LowRankAdapter(
        backbone.model, layers, recipe.lora_rank, recipe.lora_rank, generator=generator
    )
    return Trainee(head, adapter.to(backbone.device))


def drafted_in(state: Mapping[str, Any], verifier: Verifier) -> DraftVocabulary:
    """The draft vocabulary of a run's checkpoint."""
    return DraftVocabulary(state["draft_vocabulary"].numpy(), verifier.backbone.vocabulary_size)


@dataclass(frozen=True)
class Windows:
    """Places in a batch of texts from which a window is predicted.

    entering (B, S, D): what enters the last K layers, or for K = 0 final states. places (B, S):
    True where a token of an answer is predicted; there are N. targets (N, n): draft indices,
    UNKNOWN from the text's end on, or from a token that cannot be drafted.
    """

    entering: Tensor
    places: Tensor
    targets: Tensor

    def states(self, trainee: Trainee, backbone: Backbone) -> Tensor:
        """Final states (N, D) as the trainee's adapter makes them, float32."""
        if trainee.adapter is None:
            return self.entering[self.places]
        layers = len(trainee.adapter.layers)
        return backbone.top(self.entering, layers, trainee.adapter)[self.places].float()


@torch.no_grad()
def windows_of(
    verifier: Verifier,
    texts: Sequence[Text],
    vocabulary: DraftVocabulary,
    longest: int,
    lora: int,
) -> Windows:
    """Windows of up to `longest` tokens of all places in the answers."""
    backbone = verifier.backbone
    ids = padded(texts)
    targets = window_targets(vocabulary.index(ids), ids.shape[1], longest, None)
    places = in_answers(texts, ids.shape[1]) & (targets[:, :, 0] != UNKNOWN)
    inputs = ids.clamp(min=0).to(backbone.device)
    found = backbone.model.base_model(
        input_ids=inputs, use_cache=False, output_hidden_states=bool(lora)
    )
    entering = found.hidden_states[-1 - lora] if lora else found.last_hidden_state.float()
    return Windows(entering, places, targets[places].to(backbone.device))


@torch.no_grad()
def evaluate(trainee: Trainee, backbone: Backbone, parts: Sequence[Windows]) -> dict[str, Any]:
    """Of whole windows: `joint`, mean log-likelihood in nats; `cross_entropy`, CE_k by position.

    Windows that the text's end cuts short are left out, and those with a token that cannot be
    drafted, which the circuit gives no probability.
    """
    window = trainee.head.config.window
    total, count = torch.zeros(window, dtype=torch.float64), 0
    for part in parts:
        whole_ones = (part.targets[:, :window] != UNKNOWN).all(1)
        if whole_ones.any():
            states = part.states(trainee, backbone)[whole_ones]
            found = loss_of_windows(trainee.head, states, part.targets[whole_ones, :window])
            total += found.cross_entropy.cpu().double() * int(whole_ones.sum())
            count += int(whole_ones.sum())
    mean = total / max(1, count)
    return {
        "joint": -float(mean.sum()),
        "cross_entropy": [round(float(value), 4) for value in mean],
        "windows": count,
    }
