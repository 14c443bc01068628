"""Verification leaves the verifier's distribution as it is: exactly, and by chi-square."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtp import verify as verification
from mtp.decode import Decoding
from mtp.drafters.base import Context, Draft, Outcome, ProbeOutput
from mtp.models.backbone import Backbone
from mtp.records.trace import Kind
from mtp.sampling import (
    Noise,
    Sampling,
    Stream,
    cumulative,
    final_probabilities,
    pick,
    pick_from,
)
from mtp.tree import ROOT, DraftTree, chain
from mtp.verify import coupled, rejection, verify

V = 4
LENGTH = 3  # tokens whose joint is tested
DRAWS = 50_000  # of verification alone, over all shapes
DECODINGS = 5_000  # of a whole model, over all shapes
LEAST_CHANCE = 1e-4  # of a statistic at least this large when all is right

Text = tuple[int, ...]


# What is drafted, in tests by example and by chance


class Toy:
    """A model of random distributions (V,) after every text; only its last tokens count."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows: dict[Text, Tensor] = {}
        for length in range(LENGTH + 1):
            for text in itertools.product(range(V), repeat=length):
                logits = torch.randn(V, generator=generator, dtype=torch.float64)
                self.rows[text] = 0.92 * logits.softmax(dim=0) + 0.02  # no text is too rare
        self.edges = {text: cumulative(row) for text, row in self.rows.items()}
        self.best = {text: int(row.argmax()) for text, row in self.rows.items()}

    def __call__(self, text: Text) -> Tensor:
        return self.rows[text[-LENGTH:]]


P = Toy(1)
Q = Toy(2)

# Children of the root, then of each of them. "s" is sampled from q; "d" is a token that q and the
# place among the siblings decide.
Shape = tuple[tuple[str, tuple[str, ...]], ...]
SHAPES: dict[str, Shape] = {
    "sampled": (("s", ("s", "s")), ("s", ("s",))),
    "deterministic": (("d", ("d", "d")), ("d", ("d",))),
    "mixed": (("s", ("d", "s")), ("d", ("s",)), ("s", ())),
}


def draft(
    shape: Shape, text: Text, noise: Noise, position: int, q: Toy, most_depth: int = 2
) -> DraftTree:
    """The tree of that shape behind `text`, its sampled nodes drawn with the `draft` stream."""
    token_ids: list[int] = []
    parents: list[int] = []
    kinds: list[Kind] = []
    distributions: dict[int, Tensor] = {}

    def add(parent: int, path: Text, children: Sequence[str], depth: int) -> None:
        recent = path[-LENGTH:]
        for index, kind in enumerate(children):
            if kind == "s":
                distributions[parent] = q.rows[recent]
                u = noise.u(position + depth, "draft", index)
                token_ids.append(pick_from(u, q.edges[recent]))
            else:
                token_ids.append((q.best[recent] + index) % V)
            kinds.append("sampled" if kind == "s" else "deterministic")
            parents.append(parent)

    if most_depth >= 1:
        add(ROOT, text, [kind for kind, _ in shape], 0)
    if most_depth >= 2:
        for node, (_, children) in enumerate(shape):
            add(node, (*text, token_ids[node]), children, 1)
    size = len(token_ids)
    return DraftTree(
        token_ids=tuple(token_ids),
        parents=tuple(parents),
        log_q=(0.0,) * size,
        kind=tuple(kinds),
        origins=(("toy",),) * size,
        q=distributions,
    )


def rows_of(tree: DraftTree, text: Text, p: Toy) -> Callable[[int], Tensor]:
    """The verifier's distributions at the tree's rows."""
    return lambda row: p((*text, *(tree.token_ids[node] for node in tree.path(row))))


# Statistics


def chance_of(found: Counter[Text], expected: Mapping[Text, float]) -> float:
    """The chi-square test's p-value of counts against exact probabilities; rare cells pooled."""
    total = found.total()
    assert sum(expected.values()) == pytest.approx(1)
    assert set(found) <= set(expected)
    statistic, cells, rare_found, rare_expected = 0.0, 0, 0.0, 0.0
    for text, probability in expected.items():
        if total * probability < 5:
            rare_found += found[text]
            rare_expected += total * probability
            continue
        statistic += (found[text] - total * probability) ** 2 / (total * probability)
        cells += 1
    if rare_expected > 0:
        statistic += (rare_found - rare_expected) ** 2 / rare_expected
        cells += 1
    assert cells > 20  # else the test says little
    half = torch.tensor([(cells - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def joint(p: Mapping[Text, Tensor]) -> dict[Text, float]:
    """The exact probability of every text of LENGTH tokens."""
    return {
        text: math.prod(float(p[text[:end]][text[end]]) for end in range(LENGTH))
        for text in itertools.product(range(V), repeat=LENGTH)
    }


class FreshNoise(Noise):
    """Another number each time it is asked; much faster than noise that can be asked again."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        object.__setattr__(self, "draw", random.Random(seed).random)

    def u(self, position: int, stream: Stream, index: int = 0) -> float:
        return float(self.__dict__["draw"]())


def draw_text(shape: Shape, noise: Noise) -> Text:
    """LENGTH tokens by drafting and verifying, without a model."""
    text: Text = ()
    while len(text) < LENGTH:
        tree = draft(shape, text, noise, len(text), Q, LENGTH - 1 - len(text))
        verdict = rejection(tree, rows_of(tree, text, P), noise, len(text))
        text += tuple(decision.token for decision in verdict.decisions)
    return text


# Exactly


class FixedNoise(Noise):
    """Noise that says what it is told, by stream."""

    def __init__(self, **by_stream: float) -> None:
        super().__init__(0)
        object.__setattr__(self, "by_stream", by_stream)

    def u(self, position: int, stream: Stream, index: int = 0) -> float:
        return float(self.__dict__["by_stream"][stream])


def law_of_one_row(tree: DraftTree, p: Tensor) -> Tensor:
    """The distribution (V,) of the token that one row of children puts into the text."""
    nearly_one = 1 - 2.0**-24
    law, left = torch.zeros(V, dtype=torch.float64), 1.0
    verdict = rejection(
        tree, lambda row: p, FixedNoise(accept=nearly_one, residual=0.0, pick=0.0), 0
    )
    for node, (_, chance) in verdict.trials.items():
        law[tree.token_ids[node]] += left * chance
        left *= 1 - chance
    residual, u = torch.zeros(V, dtype=torch.float64), 0.0
    while u < 1:  # from one token's interval to the next
        noise = FixedNoise(accept=nearly_one, residual=u, pick=u)
        last = rejection(tree, lambda row: p, noise, 0).decisions[0]
        if last.source == "draft":
            break
        residual[last.token] = last.interval[1] - u
        u = last.interval[1]
    return law + left * residual


@pytest.mark.parametrize(
    "kinds", [kinds for size in (1, 2, 3) for kinds in itertools.product("sd", repeat=size)]
)
def test_one_row_is_lossless_for_every_draw_of_its_siblings(kinds: tuple[str, ...]) -> None:
    p, q = P((0,)), Q((0,))
    places = [place for place, kind in enumerate(kinds) if kind == "s"]
    fixed = (2, 0, 3)
    law = torch.zeros(V, dtype=torch.float64)
    for drawn in itertools.product(range(V), repeat=len(places)):
        by_place = dict(zip(places, drawn, strict=True))
        tree = DraftTree(
            token_ids=tuple(by_place.get(place, fixed[place]) for place in range(len(kinds))),
            parents=(ROOT,) * len(kinds),
            log_q=(0.0,) * len(kinds),
            kind=tuple("sampled" if kind == "s" else "deterministic" for kind in kinds),
            origins=(("toy",),) * len(kinds),
            q={ROOT: q},
        )
        law += math.prod(float(q[token]) for token in drawn) * law_of_one_row(tree, p)
    torch.testing.assert_close(law, p, atol=1e-12, rtol=0)


def test_a_draft_that_is_certain_stands_and_one_that_is_impossible_falls() -> None:
    certain = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    for seed in range(200):
        for kind in ("sampled", "deterministic"):
            q = [torch.full((V,), 0.25)] if kind == "sampled" else None
            stood = rejection(chain([1], "toy", q=q), lambda row: certain, Noise(seed), 0)
            assert stood.accepted == (0,)
            fell = rejection(chain([2], "toy", q=q), lambda row: certain, Noise(seed), 0)
            assert fell.accepted == () and fell.decisions[0].token == 1


def test_a_drafter_that_is_right_is_never_rejected() -> None:
    for seed in range(300):
        noise = Noise(seed)
        tree = draft(SHAPES["sampled"], (), noise, 0, P)
        assert len(rejection(tree, rows_of(tree, (), P), noise, 0).accepted) == 2


def test_rejection_records_its_trials() -> None:
    outcomes = set()
    for seed in range(60):
        noise = Noise(seed)
        tree = draft(SHAPES["mixed"], (), noise, 5, Q)
        verdict = rejection(tree, rows_of(tree, (), P), noise, 5)
        assert len(verdict.decisions) == len(verdict.accepted) + 1
        assert [d.source for d in verdict.decisions[:-1]] == ["draft"] * len(verdict.accepted)
        assert verdict.decisions[-1].source == "verifier"
        visited = (ROOT, *verdict.accepted)
        for row, decision in zip(visited, verdict.decisions, strict=True):
            assert decision.row == row
            low, high = decision.interval
            assert low <= decision.u < high
        for node, (u, chance) in verdict.trials.items():
            assert tree.parents[node] in visited
            assert 0 <= chance <= 1
            assert (u < chance) == (node in verdict.accepted)
            before = [n for n in tree.children[tree.parents[node]] if n < node]
            assert all(n in verdict.trials and n not in verdict.accepted for n in before)
        outcomes.add(len(verdict.accepted))
    assert outcomes == {0, 1, 2}


@pytest.mark.parametrize("shape", SHAPES)
def test_coupled_picks_what_plain_sampling_picks(shape: str) -> None:
    stood = 0
    for seed in range(100):
        noise = Noise(seed)
        plain: Text = ()
        while len(plain) < LENGTH:
            plain += (pick(noise.u(7 + len(plain), "pick"), P(plain)),)
        tree = draft(SHAPES[shape], (), noise, 7, Q)
        verdict = coupled(tree, rows_of(tree, (), P), noise, 7)
        tokens = tuple(decision.token for decision in verdict.decisions)
        assert tokens == plain[: len(tokens)]
        assert [tree.token_ids[node] for node in verdict.accepted] == list(tokens[:-1])
        assert verdict.trials == {}
        for depth, decision in enumerate(verdict.decisions):
            low, high = decision.interval
            assert decision.u == noise.u(7 + depth, "pick")
            assert low <= decision.u < high
        stood += len(verdict.accepted)
    assert 20 < stood < 200


def test_without_a_draft_both_rules_are_plain_sampling() -> None:
    for seed in range(50):
        for rule in verification.VERIFICATIONS:
            verdict = verify(rule, DraftTree(), lambda row: P(()), Noise(seed), 3)
            assert [d.token for d in verdict.decisions] == [pick(Noise(seed).u(3, "pick"), P(()))]


# By chance


def test_the_joint_of_three_tokens_by_verification_alone() -> None:
    found: Counter[Text] = Counter()
    exact = joint(P.rows)
    for number, shape in enumerate(SHAPES.values()):
        noise = FreshNoise(number)
        draws = len(range(number, DRAWS, len(SHAPES)))
        texts = Counter(draw_text(shape, noise) for _ in range(draws))
        assert chance_of(texts, exact) > LEAST_CHANCE
        found += texts
    assert found.total() == DRAWS
    assert chance_of(found, exact) > LEAST_CHANCE


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [("_residual", "sampled"), ("_without", "deterministic"), ("_residual", "mixed")],
)
def test_the_chi_square_finds_a_rule_without_a_residual(
    wrong: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, wrong, lambda r, other: r)
    noise = FreshNoise(0)
    found = Counter(draw_text(SHAPES[shape], noise) for _ in range(3000))
    assert chance_of(found, joint(P.rows)) < LEAST_CHANCE**2


class Shaped:
    """A drafter of trees of one of the shapes, from a table."""

    name = "shaped"
    hidden_layers: tuple[int, ...] = ()

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def propose(self, context: Context) -> Draft:
        text = tuple(context.token_ids[context.prompt_length :])
        position = len(context.token_ids)
        return Draft(draft(self.shape, text, context.noise, position, Q, context.most_depth))

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        pass


def test_the_joint_of_three_tokens_by_whole_decoding(
    tiny: Callable[[str], PreTrainedModel], write: Callable[..., Decoding]
) -> None:
    model = tiny("llama-four")
    sampling = Sampling(temperature=4.0)  # flat, so that every text comes up
    p = {}
    for length in range(LENGTH):
        for text in itertools.product(range(V), repeat=length):
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([[1, *text]])).logits[0, -1]
            p[text] = final_probabilities(logits, sampling)
    backbone, shapes = Backbone(model), list(SHAPES.values())
    found: Counter[Text] = Counter()
    stood: Counter[str] = Counter()
    for seed in range(DECODINGS):
        decoding = write(
            backbone,
            Shaped(shapes[seed % len(shapes)]),
            prompt_ids=(1,),
            sampling=sampling,
            seed=seed,
            verification="rejection",
            max_new_tokens=LENGTH,
        )
        found[tuple(decoding.output_ids)] += 1
        stood.update(status for step in decoding.steps for status in step.tree.status)
    assert chance_of(found, joint(p)) > LEAST_CHANCE
    assert stood["accepted"] > DECODINGS / 2 and stood["rejected"] > DECODINGS / 2
