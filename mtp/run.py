"""A run from its settings: what a person chooses, checked and turned into a decoding."""

from __future__ import annotations

from collections.abc import Callable

from mtp.decode import Decoding, Request, check_length, software
from mtp.drafters.build import make_drafter, weights_of
from mtp.drafters.options import settle_options
from mtp.errors import InputError
from mtp.models.verifier import Verifier
from mtp.models.vocabulary import check_prompt
from mtp.records.settings import Settings
from mtp.records.trace import Mode, Run
from mtp.sampling import Noise, Sampling
from mtp.verify import VERIFICATIONS, Verification


def check_settings(settings: Settings) -> tuple[Mode, Verification, Sampling]:
    """Checks all that needs no model, so that none is fetched or loaded for a wrong setting.

    Returns the mode, the verification and the sampling. Raises InputError with a sentence.
    """
    if settings.verification not in VERIFICATIONS:
        raise InputError(
            f"The verification is {settings.verification[:40]!r}; it can be "
            f"{' or '.join(VERIFICATIONS)}."
        )
    if settings.mode not in ("chat", "raw"):
        raise InputError(f"The mode is {settings.mode[:40]!r}; it can be chat or raw.")
    check_prompt(settings.prompt)
    settle_options(settings.drafter, settings.drafter_options)
    check_length(settings.max_new_tokens)
    Noise(settings.seed)
    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p)
    return settings.mode, settings.verification, sampling


def start(
    verifier: Verifier,
    settings: Settings,
    stop: Callable[[], bool] = lambda: False,
    brief: bool = False,
) -> tuple[Decoding, Run]:
    """A decoding ready to iterate over, and the record of what was asked. brief: as in `Decoding`.

    Raises InputError with a sentence for any setting that is not allowed.
    """
    mode, verification, sampling = check_settings(settings)
    vocabulary, backbone = verifier.vocabulary, verifier.backbone
    options = settle_options(settings.drafter, settings.drafter_options)
    prompt_ids = vocabulary.encode(settings.prompt, mode)
    if vocabulary.stop_ids.intersection(settings.forced_ids):
        raise InputError("The followed token ends the text; nothing comes after it.")
    prompt_ids += settings.forced_ids
    request = Request(
        prompt_ids=tuple(prompt_ids),
        sampling=sampling,
        seed=settings.seed,
        verification=verification,
        max_new_tokens=settings.max_new_tokens,
        stop_ids=vocabulary.stop_ids,
    )
    drafter = make_drafter(settings.drafter, options, verifier, sampling)
    decoding = Decoding(backbone, vocabulary, drafter, request, stop, brief)
    run = Run(
        model=verifier.name,
        weights_sha256=verifier.weights_sha256,
        drafter=settings.drafter,
        drafter_options=options,
        mode=mode,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=settings.seed,
        verification=verification,
        device=verifier.device,
        dtype=verifier.dtype,
        prompt=settings.prompt,
        prompt_tokens=tuple(vocabulary.token_text(token) for token in prompt_ids),
        max_new_tokens=settings.max_new_tokens,
        software=software(),
        branch=settings.branch,
        drafter_weights=weights_of(drafter),
    )
    return decoding, run
