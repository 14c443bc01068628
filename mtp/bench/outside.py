"""Baselines from outside: `transformers`' own `generate`, plain, with prompt lookup, assisted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from mtp.errors import InputError
from mtp.models.verifier import Verifier
from mtp.records.settings import Settings
from mtp.sampling import Sampling

ASSISTED = "hf-assisted"
OUTSIDE = ("hf", "hf-pld", ASSISTED)
LOOKUP_TOKENS = 10  # as many as our own prompt lookup drafts by default


@dataclass(frozen=True)
class OutsideRun:
    """Token ids written, seconds to the first of them and after, and how many came after.

    `ticks` holds, for each time new tokens appeared, the seconds since the first did and how many
    there were by then.
    """

    ids: tuple[int, ...]
    seconds_first: float
    seconds_rest: float
    rest: int
    ticks: tuple[tuple[float, int], ...]


class _Clock(BaseStreamer):
    """Notes when new tokens appear; the first of them mark the end of generate's prefill."""

    def __init__(self) -> None:
        self.prompt_seen = False
        self.times: list[tuple[float, int]] = []

    def put(self, value: torch.Tensor) -> None:
        """Called by generate with the prompt, then with new tokens as they come."""
        if not self.prompt_seen:
            self.prompt_seen = True
            return
        before = self.times[-1][1] if self.times else 0
        self.times.append((time.perf_counter(), before + value.numel()))

    def end(self) -> None:
        """Called by generate when it is done."""


class _StopWhen(StoppingCriteria):
    """Ends generate between two tokens once `stop()` is true."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self.stop = stop

    def __call__(
        self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object
    ) -> torch.Tensor:
        """One flag a sequence."""
        return torch.full((len(input_ids),), self.stop(), device=input_ids.device)


def generate_outside(
    name: str,
    verifier: Verifier,
    settings: Settings,
    assistant: Any | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> OutsideRun:
    """Runs `generate` on the same prompt and settings, with its own random numbers.

    Speed is counted after the first tokens appear, as ours is after the prefill.
    Raises InputError for `hf-assisted` without an assistant model.
    """
    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p)
    prompt = verifier.vocabulary.encode(settings.prompt, settings.mode)
    ids = torch.tensor([prompt], device=verifier.backbone.device)
    options: dict[str, Any] = {
        "do_sample": not sampling.greedy,
        "max_new_tokens": settings.max_new_tokens,
        "eos_token_id": sorted(verifier.vocabulary.stop_ids) or None,
        "pad_token_id": min(verifier.vocabulary.stop_ids, default=0),
    }
    if not sampling.greedy:
        options |= {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
        }
    if name == "hf-pld":
        options["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
    elif name == ASSISTED:
        if assistant is None:
            raise InputError("hf-assisted needs a draft model of the same vocabulary.")
        options["assistant_model"] = assistant
    clock = _Clock()
    torch.manual_seed(settings.seed)
    begin = time.perf_counter()
    with torch.inference_mode():
        out = verifier.backbone.model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            streamer=clock,
            stopping_criteria=StoppingCriteriaList([_StopWhen(stop)]),
            **options,
        )
    end = time.perf_counter()
    new = out[0, ids.shape[1] :].tolist()
    first, first_count = clock.times[0] if clock.times else (end, 0)
    ticks = tuple((at - first, min(count, len(new))) for at, count in clock.times)
    return OutsideRun(tuple(new), first - begin, end - first, max(0, len(new) - first_count), ticks)
