"""A question about noise: its context, the drafters that ship for it, records of its views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mtp.errors import InputError
from mtp.models.verifier import Verifier
from mtp.models.vocabulary import Vocabulary
from mtp.ptp.explore import MOST_PLACES, NOISES, NoiseExplorer
from mtp.ptp.files import load_ptp, shelved
from mtp.ptp.weights import VARIANTS, PtpWeights
from mtp.records.noise import DrafterFacts, NoiseRecord, NoiseView, Question, Sweep
from mtp.sampling import Noise, Sampling

SHOWN = 240  # bytes of the context that a view shows
COUNTED = 0.5  # of the time of a record that its tallies take


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
        raise InputError(
            f"The tokens foreseen are {question.places:g}; they can be from 2 to {longest}."
        )
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
    ids = vocabulary.encode(question.prompt, question.mode)
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
    swept: Sequence[int] | None = None,
) -> NoiseRecord | None:
    """The first view of a context with sweeps of the places `swept`, all if not given; None where
    it was stopped. Seeded: the same every time.
    """
    vocabulary = verifier.vocabulary
    ids = context_of(vocabulary, question)
    noise = noise_of(question, len(ids))
    view = explorer.view(noise)
    places = range(question.places) if swept is None else swept

    def counted(done: float) -> None:
        tell(COUNTED * done)

    def drawn(done: float) -> None:
        tell(COUNTED + (1 - COUNTED) * done)

    tallies = explorer.tallies(question.places, NOISES, question.seed, counted, stop)
    if tallies is None:
        return None
    sweeps = sweeps_of(explorer, noise, places, drawn, stop)
    if sweeps is None:
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
        sweeps=sweeps,
        noises=NOISES,
        tallies=tallies,
        drafters=facts_of(explorer),
    )


def with_view(
    record: NoiseRecord,
    explorer: NoiseExplorer,
    view: NoiseView,
    tell: Callable[[float], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
) -> NoiseRecord | None:
    """The record of the same context with another view, and its sweeps of all places; None where
    it was stopped.
    """
    sweeps = sweeps_of(explorer, view.noise, range(len(view.noise)), tell, stop)
    if sweeps is None:
        return None
    same = record.seeded and view.noise == record.view.noise
    return replace(record, view=view, sweeps=sweeps, seeded=same)


def sweeps_of(
    explorer: NoiseExplorer,
    noise: Sequence[float],
    places: Sequence[int],
    tell: Callable[[float], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, tuple[Sweep, ...]] | None:
    """Every drafter's sweeps of these places; None where it was stopped."""
    found: dict[str, tuple[Sweep, ...]] = {}
    for done, name in enumerate(explorer.drafters):
        found[name] = ()
        for one, place in enumerate(places):
            if stop():
                return None
            tell((done + one / len(places)) / len(explorer.drafters))
            found[name] += (explorer.sweep(name, noise, place),)
    return found


def facts_of(explorer: NoiseExplorer) -> dict[str, DrafterFacts]:
    """What a record keeps of the drafters behind it."""
    return {
        name: DrafterFacts(
            gains=one.config.expected(),
            replaced=one.config.replaced,
            weights_sha256=one.sha256(),
            temperature=one.config.temperature,
            rank=one.config.rank,
            head_layers=one.config.head_layers,
        )
        for name, one in explorer.drafters.items()
    }
