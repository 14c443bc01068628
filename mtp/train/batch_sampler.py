"""Sampling many completions at once: continuous batching over a cache with a position a row."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from mtp.errors import InputError
from mtp.sampling import Noise, Sampling, final_probabilities
from mtp.train.row_cache import ATTENTION, RowCache, require_full_attention

# Tokens a block of the two-level search in `pick_rows`: near the square root of a subword
# vocabulary, so that both levels are short.
BLOCK = 256


@dataclass(frozen=True)
class Job:
    """One completion to make: token ids of its prompt, and the seed of its noise."""

    index: int
    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Completion:
    """The tokens sampled for a job, the end token last where the model ended."""

    index: int
    ids: list[int]


@dataclass
class _Row:
    job: Job
    noise: Noise
    position: int  # of the token the next step runs
    ids: list[int] = field(default_factory=list)

    def token(self) -> int:
        """The token at `position`: of the prompt while it lasts, then the newest pick."""
        prompt = self.job.prompt_ids
        return prompt[self.position] if self.position < len(prompt) else self.ids[-1]


@torch.inference_mode()
def complete(
    model: PreTrainedModel,
    jobs: Iterable[Job],
    sampling: Sampling,
    *,
    batch: int,
    max_new_tokens: int,
    max_length: int,
    end_ids: frozenset[int],
) -> Iterator[Completion]:
    """Yields the completions of `jobs` as they end, in no order.

    Each is what plain sampling with the job's seed gives: token t is Pick with that seed's noise
    at position t. A row whose completion ends takes the next job at once; its prompt's own tokens
    then ride in the steps of the others. The beginning that the first two prompts share is run
    once and copied.
    Raises InputError for a prompt that leaves no room for `max_new_tokens` in `max_length` tokens,
    ModelError for a model whose layers are not all full attention.
    """
    require_full_attention(model)
    waiting = iter(jobs)
    first = list(itertools.islice(waiting, 2))
    waiting = itertools.chain(first, waiting)
    shared = _shared_start([job.prompt_ids for job in first])
    prefix = DynamicCache()
    if shared:
        model(input_ids=_ids([shared], model), cache=prefix, use_cache=True)
    before = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    try:
        yield from _run(
            model, waiting, sampling, batch, max_new_tokens, max_length, end_ids, shared, prefix
        )
    finally:
        model.set_attn_implementation(before)


def _run(
    model: PreTrainedModel,
    waiting: Iterator[Job],
    sampling: Sampling,
    batch: int,
    max_new_tokens: int,
    max_length: int,
    end_ids: frozenset[int],
    shared: tuple[int, ...],
    prefix: DynamicCache,
) -> Iterator[Completion]:
    cache = RowCache(model.config.num_hidden_layers, batch, max_length)
    rows: list[_Row | None] = [None] * batch
    spent = False  # no job is waiting any more
    while True:
        for place in range(batch):
            if rows[place] is None and not spent:
                job = next(waiting, None)
                spent = job is None
                if job is not None:
                    rows[place] = _start(job, place, cache, shared, prefix, max_new_tokens)
        live = [(place, row) for place, row in enumerate(rows) if row is not None]
        if not live:
            return
        tokens = torch.zeros(batch, dtype=torch.long)
        positions = torch.zeros(batch, dtype=torch.long)
        for place, row in live:
            tokens[place], positions[place] = row.token(), row.position
        positions = positions.to(model.device)
        logits = model(
            input_ids=tokens[:, None].to(model.device),
            position_ids=positions[:, None],
            attention_mask=cache.stand_at(positions),
            cache=cache,
            use_cache=True,
        ).logits[:, 0]  # (B, V)
        for _, row in live:
            row.position += 1
        picking = [(p, r) for p, r in live if r.position >= len(r.job.prompt_ids)]
        if not picking:
            continue
        u = torch.tensor([row.noise.u(row.position, "pick") for _, row in picking])
        picks = pick_rows(u.to(torch.float64), logits[[p for p, _ in picking]], sampling)
        for (place, row), token in zip(picking, picks.tolist(), strict=True):
            row.ids.append(token)
            if token in end_ids or len(row.ids) == max_new_tokens:
                rows[place] = None
                yield Completion(row.job.index, row.ids)


def _start(
    job: Job,
    place: int,
    cache: RowCache,
    shared: tuple[int, ...],
    prefix: DynamicCache,
    max_new_tokens: int,
) -> _Row:
    """The row of a new job, its part of the shared beginning already in the cache."""
    room = cache.row_layers[0].length
    if len(job.prompt_ids) + max_new_tokens > room:
        raise InputError(
            f"Prompt {job.index} has {len(job.prompt_ids)} tokens; with {max_new_tokens} new "
            f"tokens at most {room - max_new_tokens} fit."
        )
    known = _common(shared, job.prompt_ids[:-1])
    if known:
        cache.start_row(place, prefix, known)
    return _Row(job, Noise(job.seed), position=known)


def pick_rows(u: Tensor, logits: Tensor, sampling: Sampling) -> Tensor:
    """Pick for each row: u (B,) float64 and logits (B, V) to token ids (B,).

    Equal to `mtp.sampling.pick` but for rounding at the edges. The plain case keeps float32
    weights and finds the token in two levels, block of the vocabulary, then token in it, because
    a float64 cumulative sum over a subword vocabulary would cost a quarter of a step.
    """
    if sampling.greedy:
        return logits.argmax(dim=-1)
    if sampling.top_k > 0 or sampling.top_p < 1:
        return _search(u, final_probabilities(logits, sampling))
    weights = (logits.float() / sampling.temperature).softmax(dim=-1)  # (B, V)
    blocks = -(-weights.shape[-1] // BLOCK)
    lacking = blocks * BLOCK - weights.shape[-1]
    padded = torch.nn.functional.pad(weights, (0, lacking)) if lacking else weights
    padded = padded.view(-1, blocks, BLOCK)
    masses = padded.sum(dim=-1).double()  # (B, blocks)
    edges = masses.cumsum(dim=-1)
    target = u[:, None].to(edges.device) * edges[:, -1:]
    block = (edges <= target).sum(dim=-1, keepdim=True).clamp_max(blocks - 1)  # (B, 1)
    before = (edges - masses).gather(1, block)
    inside = padded.gather(1, block[:, :, None].expand(-1, 1, BLOCK))[:, 0].double()
    share = (target - before) / masses.gather(1, block)
    return block[:, 0] * BLOCK + _search(share[:, 0], inside)


def _search(u: Tensor, weights: Tensor) -> Tensor:
    """min{j : F_j > u} for weights (B, V) of any sum; the last weight above 0 if rounding leaves
    none."""
    edges = weights.cumsum(dim=-1)
    edges = edges / edges[:, -1:]
    found = torch.searchsorted(edges, u[:, None].to(edges.device), right=True)[:, 0]
    last = weights.shape[-1] - 1 - (weights > 0).flip(-1).to(torch.uint8).argmax(dim=-1)
    return torch.minimum(found, last)


def _shared_start(prompts: list[tuple[int, ...]]) -> tuple[int, ...]:
    """What all prompts begin with, short of any prompt's last token."""
    if not prompts:
        return ()
    shared = prompts[0][:-1]
    for ids in prompts[1:]:
        shared = shared[: _common(shared, ids[:-1])]
    return shared


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _ids(rows: list[tuple[int, ...]], model: PreTrainedModel) -> Tensor:
    return torch.tensor(rows, dtype=torch.long, device=model.device)
