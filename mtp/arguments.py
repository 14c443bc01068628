"""What commands share: their arguments of model and sampling, what these mean, files written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mtp.errors import InputError
from mtp.models.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from mtp.models.verifier import Verifier
    from mtp.records.settings import Settings


def add_model(parser: argparse.ArgumentParser) -> None:
    """The options that name a model."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a name, folder or Hugging Face id")
    parser.add_argument("--dtype", help="float64, float32 or bfloat16; chosen for the processor")
    parser.add_argument("--device", help="cpu or cuda; the GPU if there is one")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run program code that comes with a model"
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The options of a run but its prompt and drafter."""
    parser.add_argument("--raw", action="store_true", help="no chat template around the prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.7, help="0 is greedy")
    parser.add_argument("--top-k", type=int, default=0, help="0 is off")
    parser.add_argument("--top-p", type=float, default=1.0, help="1 is off")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--verification", default="coupled", help="coupled or rejection")


def tell_progress() -> Callable[[str, float | None], None]:
    """Progress on standard error: one line rewritten on a terminal, one line a stage elsewhere."""
    terminal = sys.stderr.isatty()
    last = ""

    def tell(text: str, fraction: float | None) -> None:
        nonlocal last
        if terminal:
            bar = "" if fraction is None else f" {fraction:4.0%}"
            print(f"\r\x1b[K{text}{bar}", end="", file=sys.stderr, flush=True)
            if fraction == 1.0:
                print(file=sys.stderr)
        elif text.split(":")[0] != last.split(":")[0]:
            print(text, file=sys.stderr, flush=True)
        last = text

    return tell


def load(chosen: argparse.Namespace) -> Verifier:
    """The verifier, fetched first where the weights are not here."""
    from mtp.models import catalog
    from mtp.models.fetch import fetch

    if chosen.model in catalog.ENTRIES and not catalog.is_ready(chosen.model):
        fetch(chosen.model, tell_progress())
    from mtp.models.verifier import load_verifier

    return load_verifier(chosen.model, chosen.dtype, chosen.device, chosen.trust_remote_code)


def settings_from(
    chosen: argparse.Namespace, prompt: str, drafter: str, options: dict[str, str]
) -> Settings:
    """A run's settings."""
    from mtp.records.settings import Settings

    return Settings(
        prompt=prompt,
        drafter=drafter,
        drafter_options=options,
        mode="raw" if chosen.raw else "chat",
        temperature=chosen.temperature,
        top_k=chosen.top_k,
        top_p=chosen.top_p,
        seed=chosen.seed,
        verification=chosen.verification,
        max_new_tokens=chosen.max_new_tokens,
    )


def pairs_from(given: Sequence[str]) -> dict[str, str]:
    """K=V arguments as a dictionary."""
    pairs = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise InputError(f"--option takes NAME=VALUE; {text[:60]!r} is not of that form.")
        pairs[key] = value
    return pairs


def write(path: Path, text: str) -> None:
    """Writes a file. Raises InputError where that cannot be done."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from error
