"""A question about noise: its context, the drafters that ship for it, its first view's record."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from mtp.errors import InputError
from mtp.models.verifier import Verifier
from mtp.models.vocabulary import Mode, Vocabulary
from mtp.ptp.explore import MOST_PLACES, NOISES, NoiseExplorer
from mtp.ptp.files import load_ptp, shelved
from mtp.ptp.weights import VARIANTS, PtpWeights
from mtp.records.noise import DrafterFacts, NoiseRecord, Question
from mtp.sampling import Noise, Sampling

SHOWN = 240  # bytes of the context that a view shows


def explorer_of(
    verifier: Verifier, question: Question, stop: Callable[[], bool] = lambda: False
) -> NoiseExplorer:
    """The question's context with every variant that ships for the verifier, of each the drafter
    that was trained for the nearest temperature.

    Raises InputError for a prompt that is no good or too long, or another number of places.
    """
    sampling = Sampling(question.temperature, question.top_k, question.top_p)
    drafters: dict[str, PtpWeights] = {}
    for variant in VARIANTS:
        folder = shelved(variant, verifier, sampling)
        if folder is not None:
            drafters[variant] = load_ptp(folder, verifier)
    longest = min((one.config.longest for one in drafters.values()), default=MOST_PLACES)
    if not 2 <= question.places <= longest:
        raise InputError(f"The places are {question.places}; they can be from 2 to {longest}.")
    return NoiseExplorer(
        verifier.backbone,
        verifier.vocabulary,
        drafters,
        context_of(verifier.vocabulary, question),
        sampling,
        stop,
    )


def context_of(vocabulary: Vocabulary, question: Question) -> list[int]:
    """The prompt's tokens and those of the answer so far."""
    ids = vocabulary.encode(question.prompt, cast(Mode, question.mode))
    return ids + vocabulary.encode_answer(question.answer)


def noise_of(question: Question, length: int) -> tuple[float, ...]:
    """The noise that a run with the question's seed meets behind a context of this length."""
    noise = Noise(question.seed)
    return tuple(noise.u(length + place, "pick") for place in range(question.places))


def record(
    verifier: Verifier,
    question: Question,
    explorer: NoiseExplorer,
    tell: Callable[[float], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
) -> NoiseRecord | None:
    """The first view of a context; None where it was stopped. Seeded: the same every time."""
    vocabulary = verifier.vocabulary
    ids = context_of(vocabulary, question)
    noise = noise_of(question, len(ids))
    view = explorer.view(noise)
    tallies = explorer.tallies(question.places, NOISES, question.seed, tell, stop)
    if tallies is None:
        return None
    said = b"".join(vocabulary.bytes_of(token) for token in ids)[-SHOWN:]
    return NoiseRecord(
        model=verifier.name,
        weights_sha256=verifier.weights_sha256,
        dtype=verifier.dtype,
        device=verifier.device,
        question=question,
        context=said.decode("utf-8", errors="ignore"),
        view=view,
        sweeps={name: explorer.sweep(name, noise, 0) for name in explorer.drafters},
        noises=NOISES,
        tallies=tallies,
        drafters=facts_of(explorer),
    )


def facts_of(explorer: NoiseExplorer) -> dict[str, DrafterFacts]:
    """What a record keeps of the drafters behind it."""
    return {
        name: DrafterFacts(
            one.config.expected(), one.config.replaced, one.sha256(), one.config.temperature
        )
        for name, one in explorer.drafters.items()
    }
