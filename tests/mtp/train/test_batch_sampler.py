"""Continuous batching gives each row what plain sampling gives."""

import numpy as np
import pytest
import torch

from mtp.errors import InputError, ModelError
from mtp.sampling import Noise, Sampling, final_probabilities, pick
from mtp.train.batch_sampler import Job, complete, pick_rows
from tests.mtp.train.tiny import VOCABULARY, tiny_llama

ENDS = frozenset(range(0, 24))
JOBS = [Job(i, (1, 2, 3, *range(4, 5 + i % 5)), seed=100 + i) for i in range(9)]


def sample_plainly(model, job, sampling, limit):
    ids = list(job.prompt_ids)
    noise = Noise(job.seed)
    while len(ids) < len(job.prompt_ids) + limit:
        logits = model(torch.tensor([ids])).logits[0, -1]
        ids.append(pick(noise.u(len(ids), "pick"), final_probabilities(logits, sampling)))
        if ids[-1] in ENDS:
            break
    return ids[len(job.prompt_ids) :]


def run(model, jobs, sampling, batch=4, limit=10):
    made = complete(
        model,
        jobs,
        sampling,
        batch=batch,
        max_new_tokens=limit,
        max_length=30,
        end_ids=ENDS,
    )
    return {completion.index: completion.ids for completion in made}


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(0.0), Sampling(0.8, top_k=20), Sampling(1.2, top_p=0.7)]
)
def test_rows_equal_plain_sampling(sampling):
    model = tiny_llama()
    with torch.inference_mode():
        expected = {job.index: sample_plainly(model, job, sampling, 10) for job in JOBS}
    assert run(model, JOBS, sampling) == expected
    assert len({len(ids) for ids in expected.values()}) > 1 or sampling.greedy


def test_the_batch_does_not_matter_and_the_model_is_left_as_it_was():
    model = tiny_llama()
    before = model.config._attn_implementation
    results = [run(model, JOBS, Sampling(1.0), batch) for batch in (1, 3, 20)]
    assert results[0] == results[1] == results[2]
    assert model.config._attn_implementation == before


def test_prompts_that_share_nothing():
    model = tiny_llama()
    jobs = [Job(0, (5,), 1), Job(1, (9, 8), 2), Job(2, (5,), 3)]
    with torch.inference_mode():
        expected = {job.index: sample_plainly(model, job, Sampling(1.0), 10) for job in jobs}
    assert run(model, jobs, Sampling(1.0), batch=2) == expected
    assert run(model, [], Sampling(1.0)) == {}


def test_first_tokens_follow_the_models_distribution():
    model = tiny_llama()
    jobs = [Job(i, (7, 8, 9), seed=i) for i in range(4000)]
    firsts = [ids[0] for ids in run(model, jobs, Sampling(0.7), batch=500, limit=1).values()]
    with torch.inference_mode():
        p = final_probabilities(model(torch.tensor([[7, 8, 9]])).logits[0, -1], Sampling(0.7))
    expected = 4000 * p.numpy()
    common = expected >= 5
    counts = np.bincount(firsts, minlength=VOCABULARY)
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    chi = ((observed - wanted) ** 2 / wanted).sum()
    freedom = len(wanted) - 1
    assert chi < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("vocabulary", [5, 256, 700])
def test_two_level_search_equals_pick(vocabulary):
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(400, vocabulary, generator=generator)
    logits[:, 2] = -torch.inf
    u = torch.rand(400, generator=generator, dtype=torch.float64)
    u[0], u[1] = 0.0, 1 - 2.0**-24
    sampling = Sampling(0.7)
    rows = pick_rows(u, logits, sampling)
    wanted = [
        pick(float(x), final_probabilities(y, sampling)) for x, y in zip(u, logits, strict=True)
    ]
    assert (rows != torch.tensor(wanted)).sum() <= 1  # float32 weights may round over an edge
    assert not (rows == 2).any()


def test_a_prompt_without_room_is_refused():
    with pytest.raises(InputError, match="Prompt 4 has 30 tokens"):
        run(tiny_llama(), [Job(4, tuple(range(30)), 0)], Sampling(1.0))


def test_layers_that_are_not_full_attention_are_refused():
    model = tiny_llama()
    model.config.layer_types = ["sliding_attention", "full_attention"]
    with pytest.raises(ModelError, match="sliding_attention"):
        run(model, JOBS, Sampling(1.0))
