"""`train corpus`: completions sampled from any causal LM, as training data made from nothing."""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from mtp.decode import software
from mtp.errors import InputError
from mtp.models.load import DTYPES, load_model
from mtp.sampling import Sampling
from mtp.train import prompts
from mtp.train.batch_sampler import Job, complete
from mtp.train.completions import Header, Record, append, open_for_appending

SAVE_SECONDS = 30.0  # an interruption loses at most this much finished text
# A corpus may hold this many prompts, so that (seed, index) -> run seed never repeats, and a
# seed this many values, so that run seeds stay exact in JSON (53 bits).
MAX_PROMPTS = 2**32
MAX_CORPUS_SEED = 2**21 - 1
PROMPT_ROOM = 128  # tokens kept for a prompt, chat template included


@dataclass(frozen=True)
class Teacher:
    """A model to sample from: what it is called, the hash of its weights, and its end tokens."""

    name: str
    weights_sha256: str
    model: PreTrainedModel
    tokenizer: Tokenizer
    end_ids: frozenset[int]


@dataclass(frozen=True)
class Plan:
    """What to sample: settings, prompts from `seed`, and when to stop taking new prompts."""

    sampling: Sampling
    seed: int = 0
    max_new_tokens: int = 220
    batch: int = 128
    count: int | None = None  # prompts in all, those already in the file included
    minutes: float | None = None

    def __post_init__(self) -> None:
        """Raises InputError for numbers outside what is allowed."""
        if not 0 <= self.seed <= MAX_CORPUS_SEED:
            raise InputError(f"The seed is {self.seed}; it can be from 0 to {MAX_CORPUS_SEED}.")
        for name, value in [
            ("batch", self.batch),
            ("number of new tokens", self.max_new_tokens),
            ("count", self.count if self.count is not None else 1),
            ("number of minutes", self.minutes if self.minutes is not None else 1),
        ]:
            if value <= 0:
                raise InputError(f"The {name} is {value}; it must be above 0.")


def run_seed(seed: int, index: int) -> int:
    """The seed of completion `index`: `generate` with it gives the same text."""
    return seed * MAX_PROMPTS + index


def load_teacher(source: str, dtype: str) -> Teacher:
    """Loads a model by name, local folder or Hugging Face id. Raises ModelError as `load_model`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer, sha256 = load_model(source, DTYPES[dtype], device)
    folder = Path(source).expanduser()
    name = folder.resolve().name if folder.is_dir() else source
    return Teacher(name, sha256, model, tokenizer, end_ids(model, tokenizer))


def end_ids(model: PreTrainedModel, tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that end a completion, by the generation settings, else by the tokenizer."""
    given = model.generation_config.eos_token_id if model.generation_config else None
    if given is None:
        given = tokenizer.eos_token_id
    return frozenset([given] if isinstance(given, int) else given or [])


def header(teacher: Teacher, plan: Plan) -> Header:
    """The first line of the corpus that `plan` makes with `teacher`."""
    return Header(
        model=teacher.name,
        weights_sha256=teacher.weights_sha256,
        temperature=plan.sampling.temperature,
        top_k=plan.sampling.top_k,
        top_p=plan.sampling.top_p,
        dtype=str(teacher.model.dtype).removeprefix("torch."),
        seed=plan.seed,
        max_new_tokens=plan.max_new_tokens,
        prompts=f"mtp.train.prompts {prompts.VERSION}",
        software=software(),
    )


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> tuple[int, ...]:
    """Token ids of one user turn and the start of the answer; the bare prompt where the
    tokenizer has no chat template."""
    if tokenizer.chat_template is None:
        return tuple(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    return tuple(tokenizer(cast(str, text), add_special_tokens=False)["input_ids"])


def make_corpus(
    teacher: Teacher, plan: Plan, out: Path, report: Callable[[str], None] = lambda line: None
) -> int:
    """Appends completions to `out` until the plan's count or minutes are reached; returns how
    many. A restart makes the missing ones only, and each is the same as without a break.

    Raises InputError where `out` holds another corpus.
    """
    done = open_for_appending(out, header(teacher, plan))
    started = time.monotonic()
    deadline = started + 60 * plan.minutes if plan.minutes is not None else float("inf")
    fresh: list[Record] = []
    saved, made, tokens = started, 0, 0
    for completion in complete(
        teacher.model,
        _jobs(teacher, plan, done, deadline),
        plan.sampling,
        batch=plan.batch,
        max_new_tokens=plan.max_new_tokens,
        max_length=PROMPT_ROOM + plan.max_new_tokens,
        end_ids=teacher.end_ids,
    ):
        text = teacher.tokenizer.decode(completion.ids, skip_special_tokens=True)
        index = completion.index
        prompt = prompts.prompt(plan.seed, index)
        fresh.append(
            Record(prompt, completion.ids, cast(str, text), index, run_seed(plan.seed, index))
        )
        made += 1
        tokens += len(completion.ids)
        now = time.monotonic()
        if now - saved > SAVE_SECONDS:
            append(out, fresh)
            fresh, saved = [], now
            rate = tokens / (now - started)
            report(f"{len(done) + made} completions, {tokens} tokens now, {rate:.0f} tokens/s")
    append(out, fresh)
    return made


def _jobs(teacher: Teacher, plan: Plan, done: set[int], deadline: float) -> Iterator[Job]:
    """The prompts not yet answered, in order, until the count or the deadline."""
    for index in itertools.count():
        if index == (plan.count or MAX_PROMPTS) or time.monotonic() > deadline:
            return
        if index not in done:
            ids = encode_prompt(teacher.tokenizer, prompts.prompt(plan.seed, index))
            yield Job(index, ids, run_seed(plan.seed, index))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `train corpus`."""
    parser.add_argument("--model", required=True, help="a name, folder or Hugging Face id")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file; goes on if there")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-new-tokens", type=int, default=220)
    parser.add_argument("--batch", type=int, default=128, help="completions sampled at once")
    parser.add_argument("--count", type=int, help="completions in all; default: no limit")
    parser.add_argument("--minutes", type=float, help="take no new prompts after this time")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")


def run(args: argparse.Namespace) -> int:
    """Makes or goes on with a corpus; returns the exit status 0."""
    plan = Plan(
        sampling=Sampling(args.temperature, args.top_k, args.top_p),
        seed=args.seed,
        max_new_tokens=args.max_new_tokens,
        batch=args.batch,
        count=args.count,
        minutes=args.minutes,
    )
    teacher = load_teacher(args.model, args.dtype)
    made = make_corpus(
        teacher, plan, args.out, lambda line: print(line, file=sys.stderr, flush=True)
    )
    print(f"{made} completions added to {args.out}", file=sys.stderr)
    return 0
