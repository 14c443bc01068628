"""A circuit on a context, looked at: beliefs with and without evidence, samples, verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mtp.circuits import marks, shelf
from mtp.circuits.circuit import Circuit
from mtp.circuits.conditioning import clamp, condition, latent_marginals, token_marginals
from mtp.circuits.head_files import load_card
from mtp.circuits.inference import log_prob
from mtp.circuits.information import coarsen, mutual_information, pair_joint
from mtp.circuits.judge import Judge, lengths_of
from mtp.circuits.sampling import draw, sample
from mtp.circuits.structure import CIRCUIT_NAMES, build
from mtp.errors import InputError
from mtp.models.catalog import ENTRIES
from mtp.models.continuations import Continuations
from mtp.models.lora import LowRankAdapter
from mtp.models.verifier import Verifier
from mtp.models.vocabulary import check_prompt
from mtp.records.circuit import (
    Beliefs,
    CircuitView,
    LatentView,
    Numbers,
    Pair,
    PositionView,
    Question,
    Share,
)
from mtp.sampling import Noise

SAMPLES = 20  # joint ones, and as many independent ones
VERIFIER_SAMPLES = 200
PERCENTILE = 0.01  # of the verifier's own samples; what it finds less likely is marked
TOP, TOP_OF_COMPONENT = 6, 4  # tokens that a view keeps of a distribution
KEEP = 255  # tokens a position that mutual information is computed over
TOP_PAIRS = 5  # pairs of tokens that are told of two positions
CONTEXT_BYTES = 160  # of the context's end
BITS = np.log(2)
ROUNDING_BITS = 1e-9  # mutual information below this is what rounding leaves of none


def check_question(question: Question, model: str) -> None:
    """Checks all that needs no model, so that none is fetched in vain. Raises InputError."""
    check_prompt(question.prompt)
    if question.answer.strip():
        check_prompt(question.answer)
    if question.mode not in ("chat", "raw"):
        raise InputError(f"The mode is {question.mode[:40]!r}; it can be chat or raw.")
    Noise(question.seed)
    if question.circuit not in CIRCUIT_NAMES:
        raise InputError(
            f"The circuit is {question.circuit[:40]!r}; it can be {', '.join(CIRCUIT_NAMES)}."
        )
    if question.rank < 0 or question.lora < 0:
        raise InputError("Rank and K are whole numbers from 0; rank 0 is the highest there is.")
    entry = ENTRIES.get(model)
    if entry is not None and entry.sha256 and not shelf.heads_for(entry.sha256):
        raise InputError(_none_for(model, shelved()))


def shelved() -> dict[str, list[str]]:
    """Which circuits there are for which model, such as {"byte": ["btree-16", "cp-8"]}."""
    found: dict[str, list[str]] = {}
    for head in shelf.shelved():
        model = Path(str(load_card(head.folder).get("model", "?"))).name
        found.setdefault(model, []).append(head.label)
    return found


def explore(
    verifier: Verifier,
    question: Question,
    tell: Callable[[float], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
) -> CircuitView | None:
    """The view that a question asks for; None where it was stopped. Seeded: same view every time.

    Raises InputError for a circuit that is not there, a prompt that is no good or too long.
    """
    heads = shelf.heads_for(verifier.weights_sha256)
    if not heads:
        raise InputError(_none_for(verifier.name, shelved()))
    rank = 0 if question.circuit == "ff" else question.rank  # FF has one component a position
    chosen = shelf.choose(
        heads, question.circuit, question.window, question.lora, verifier.name, rank
    )
    loaded = shelf.load(chosen.folder, verifier)
    head, layers = loaded.head.head, chosen.config.lora
    vocabulary = verifier.vocabulary
    ids = vocabulary.encode(question.prompt, question.mode)
    ids += vocabulary.encode_answer(question.answer)
    temperature = head.config.temperature
    window = head.structure.window
    context = Continuations(verifier.backbone, ids, window, stop, temperature, layers)
    if stop():
        return None
    with torch.inference_mode():
        made = head(_final(context, loaded.adapter, layers).float().cpu()[None])
    numbers = Numbers(*(part[0].numpy() for part in (made.inputs, made.root, made.transitions)))
    circuit = circuit_of(head.structure.circuit, numbers)
    generator = torch.Generator().manual_seed(question.seed)
    drafted = head.vocabulary.ids
    own = _verifier_log_p(context, generator, vocabulary.stop_ids, tell, stop)
    if own is None:
        return None
    joint = sample(circuit, SAMPLES, generator)
    single = token_marginals(circuit).expand(SAMPLES, -1, -1)
    drawn = [joint.tokens[:, 0], draw(single, generator)]
    states = [joint.states[:, 0], torch.zeros(SAMPLES, 0, dtype=torch.long)]
    said = b"".join(vocabulary.bytes_of(token) for token in ids[-CONTEXT_BYTES:])
    judge = Judge(
        circuit,
        tuple(vocabulary.bytes_of(int(token)) for token in drafted),
        tuple(np.flatnonzero(np.isin(drafted, list(vocabulary.stop_ids))).tolist()),
        said,
        float(np.quantile(own, PERCENTILE)),
        marks.known_words(verifier.name),
    )
    judged = []
    for tokens, latents in zip(drawn, states, strict=True):
        scores = context.score(torch.from_numpy(drafted)[tokens])
        judged.append(judge.samples(tokens, latents, scores))
    kept = KEEP if circuit.vocabulary > 2 * KEEP else None
    return CircuitView(
        model=verifier.name,
        weights_sha256=verifier.weights_sha256,
        dtype=verifier.dtype,
        device=verifier.device,
        mode=question.mode,
        prompt=question.prompt,
        answer=question.answer,
        seed=question.seed,
        circuit=head.structure.circuit,
        window=window,
        rank=head.structure.rank,
        lora=layers,
        context=said[-CONTEXT_BYTES:].decode("utf-8", errors="ignore"),
        pieces=judge.pieces,
        ends=judge.ends,
        beliefs=beliefs(circuit),
        information=information(circuit, kept),
        kept=kept,
        joint=judged[0],
        independent=judged[1],
        verifier_log_p=tuple(round(value, 3) for value in own),
        threshold=judge.threshold,
        known_words=None if judge.words is None else len(judge.words),
        numbers=numbers,
        temperature=temperature,
    )


def _final(context: Continuations, adapter: LowRankAdapter | None, layers: int) -> Tensor:
    """The hidden state (D,) that the head reads: the last token's, behind the adapted layers."""
    if adapter is None:
        return context.hidden
    return context.backbone.top(context.entering[None], layers, adapter)[0, -1]


def circuit_of(name: str, numbers: Numbers) -> Circuit:
    """The circuit of these parameters in float64, normalised again, as a batch of one."""
    structure = build(name, *numbers.inputs.shape[:2])

    def normalised(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.float64))[None].log_softmax(-1)

    inputs, root = normalised(numbers.inputs), normalised(numbers.root)
    return Circuit(structure, inputs, root, normalised(numbers.transitions))


def beliefs(circuit: Circuit, log_evidence: float = 0.0, before: Circuit | None = None) -> Beliefs:
    """What a circuit (a batch of one) says of its latents and positions.

    `before`: the same circuit without the evidence, to tell what the evidence changed.
    """
    states = latent_marginals(circuit)[0].exp()  # (L, r)
    latents = tuple(
        LatentView(
            latent.parent,
            latent.start,
            latent.stop,
            _rounded(states[latent.index]),
            tuple(_rounded(row) for row in circuit.weights(latent.index)[0].exp()),
        )
        for latent in circuit.structure.latents
    )
    marginals = token_marginals(circuit)[0].exp()  # (n, v)
    old = None if before is None else token_marginals(before)[0].exp()
    inputs = circuit.inputs[0].exp()  # (n, r, v)
    positions = tuple(
        PositionView(
            owner,
            _top(marginals[place], TOP, None if old is None else old[place]),
            tuple(_top(row, TOP_OF_COMPONENT) for row in inputs[place]),
        )
        for place, owner in enumerate(circuit.structure.owners)
    )
    return Beliefs(latents, positions, log_evidence)


def given(
    circuit: Circuit, tokens: Sequence[int] = (), clamped: tuple[int, int] | None = None
) -> tuple[Circuit, float]:
    """The circuit given the window's first tokens and one latent's state, and their joint natural
    log-probability. Raises InputError as `condition` and `clamp` do.
    """
    windows = torch.tensor([list(tokens)], dtype=torch.long)
    if clamped is None:
        return condition(circuit, windows), float(log_prob(circuit, windows))
    if clamped[1] < 0:
        raise InputError(f"States are counted from 0; {clamped[1]} is none.")
    held = clamp(circuit, *clamped)
    prior = float(latent_marginals(circuit)[0, clamped[0], clamped[1]])
    return condition(held, windows), prior + float(log_prob(held, windows))


def information(circuit: Circuit, kept: int | None = None) -> tuple[tuple[float, ...], ...]:
    """Mutual information of positions in bits (n, n), entropies on the diagonal; over the `kept`
    most probable tokens and the rest as one, which is a lower bound.
    """
    table = mutual_information(coarsen(circuit, kept).circuit if kept else circuit)[0] / BITS
    table = table.masked_fill(table < ROUNDING_BITS, 0.0)
    return tuple(_rounded(row) for row in table)


def top_pairs(
    circuit: Circuit, first: int, second: int, kept: int | None = None
) -> tuple[Pair, ...]:
    """The most probable pairs of tokens at two positions, first < second, of the `kept` most
    probable tokens of each. Raises InputError for positions that are none.
    """
    if not 0 <= first < second < circuit.structure.window:
        raise InputError(f"There are no positions {first + 1} and {second + 1} in this window.")
    coarse = coarsen(circuit, kept) if kept else None
    joint = pair_joint(coarse.circuit if coarse else circuit, first, second)[0]
    left, right = joint.sum(1), joint.sum(0)  # (v,), the rest among them
    told = joint[:-1, :-1] if coarse else joint
    found = told.flatten().topk(min(TOP_PAIRS, told.numel()))
    pairs = []
    for p, place in zip(found.values.tolist(), found.indices.tolist(), strict=True):
        one, other = divmod(place, told.shape[1])
        apart = float(left[one] * right[other])
        if coarse:
            one, other = int(coarse.tokens[0, first, one]), int(coarse.tokens[0, second, other])
        pairs.append(Pair((one, other), *_rounded(torch.tensor([p, apart]))))
    return tuple(pair for pair in pairs if pair.p > 0)


def draw_one(
    circuit: Circuit, seed: int, number: int
) -> tuple[tuple[int, ...], tuple[int, ...], float]:
    """Tokens, latent states and log q of a joint sample; seed and number decide which."""
    chosen = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)
    generator = torch.Generator().manual_seed(int(chosen[0] >> np.uint64(1)))
    drawn = sample(circuit, 1, generator)
    tokens = drawn.tokens[:, 0]
    return (
        tuple(tokens[0].tolist()),
        tuple(drawn.states[0, 0].tolist()),
        float(log_prob(circuit, tokens)),
    )


def _verifier_log_p(
    context: Continuations,
    generator: torch.Generator,
    stop_ids: frozenset[int],
    tell: Callable[[float], None],
    stop: Callable[[], bool],
) -> list[float] | None:
    """Log-probability of the verifier's own samples, each up to its end; None if stopped."""
    done = 0

    def step() -> bool:
        nonlocal done
        done += 1
        tell(done / context.length)
        return stop()

    tokens, logs = context.sample(VERIFIER_SAMPLES, generator, step)
    if stop():
        return None
    after = torch.arange(tokens.shape[1])[None] >= lengths_of(tokens, tuple(stop_ids))[:, None]
    values: list[float] = logs.masked_fill(after, 0.0).sum(1).tolist()
    return values


def _top(probabilities: Tensor, count: int, old: Tensor | None = None) -> tuple[Share, ...]:
    """The most probable tokens; none of probability zero."""
    found = probabilities.topk(min(count, len(probabilities)))
    before = [None] * len(found.indices) if old is None else _rounded(old[found.indices])
    triples = zip(found.indices.tolist(), _rounded(found.values), before, strict=True)
    return tuple(Share(token, p, was) for token, p, was in triples if p > 0)


def _rounded(row: Tensor) -> tuple[float, ...]:
    return tuple(float(f"{value:.5g}") for value in row.tolist())


def _none_for(model: str, there: dict[str, list[str]]) -> str:
    known = "; ".join(f"{name}: {', '.join(labels)}" for name, labels in there.items()) or "none"
    return (
        f"There are no circuits for the model {model[:80]} yet. Trained circuits, by model: "
        f"{known}. Choose another model under Model and sampling, or look at a recorded view."
    )
