"""Acceptance of a trained drafter on held-out prompts, for its card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtp.models.verifier import Verifier
from mtp.records.settings import Settings
from mtp.run import start
from mtp.sampling import Sampling
from mtp.verify import VERIFICATIONS

NEW_TOKENS = 128


def acceptance(
    verifier: Verifier,
    drafter: str,
    options: Mapping[str, Any],
    prompts: Sequence[str],
    sampling: Sampling,
) -> dict[str, Any]:
    """By verification: tokens a call over all prompts, and quartiles over prompts of accepted
    drafts a call.
    """
    found: dict[str, Any] = {
        "prompts": len(prompts),
        "temperature": sampling.temperature,
        "new_tokens": NEW_TOKENS,
    }
    for verification in VERIFICATIONS:
        calls, tokens, each = 0, 0, []
        for seed, prompt in enumerate(prompts):
            settings = Settings(
                prompt=prompt,
                drafter=drafter,
                drafter_options=options,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                seed=seed,
                verification=verification,
                max_new_tokens=NEW_TOKENS,
            )
            decoding, run = start(verifier, settings, brief=True)
            for _ in decoding:
                pass
            summary = decoding.trace(run).summary
            calls += summary.verifier_calls
            tokens += summary.new_tokens
            each.append(summary.accepted_per_call)
        found[verification] = {
            "tokens_per_call": round(tokens / calls, 3),
            "accepted_per_call_quartiles": [
                round(float(value), 3) for value in np.quantile(each, [0.25, 0.5, 0.75])
            ],
        }
    return found
