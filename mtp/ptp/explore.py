"""One context, any noise: what drafters foresee from a call each, and what the verifier picks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mtp.errors import InputError
from mtp.models.backbone import Backbone, Block, Rows
from mtp.models.cache import PathCache
from mtp.models.vocabulary import Vocabulary
from mtp.ptp.head import Behind, behind
from mtp.ptp.weights import PtpWeights
from mtp.records.noise import (
    IMPOSSIBLE,
    PLAIN,
    Foreseen,
    NoiseView,
    Picked,
    Sweep,
    Tally,
)
from mtp.records.trace import Kind
from mtp.sampling import (
    Sampling,
    cumulative,
    final_probabilities,
    interval,
    pick_from,
    picks_from,
)
from mtp.tree import DraftTree, Probes

STRIP = 8  # most probable tokens of a strip
SWEPT = 48  # values of a sweep
DIGITS = 4  # of a probability in it
NOISES = 40  # draws of a tally
MOST_PLACES = 16
TALLIED = 2**22  # probabilities that a tally holds at once, 32 MB


@dataclass(frozen=True)
class _Drafted:
    """For each of S noises: tokens (N,), the drafter's probability of each, its confidence."""

    tokens: list[list[int]]
    probabilities: list[list[float]]
    confidences: list[list[float]]


class _Known:
    """The verifier's distribution (V,) and its cumulative sums behind texts met so far."""

    def __init__(self) -> None:
        self.at: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def learn(self, texts: Sequence[Sequence[int]], p: Tensor) -> None:
        """Takes up distributions p (S, 1 + T, V) behind 0 … T tokens of S texts."""
        for text, rows, edges in zip(texts, p, cumulative(p), strict=True):
            for length in range(len(text) + 1):
                self.at.setdefault(tuple(text[:length]), (rows[length], edges[length]))


class NoiseExplorer:
    """Holds a context read once: no question needs a prefill. What a drafter foresees is one
    forward of the base; what the verifier thinks of it, and what plain sampling writes, are others.

    drafters: weights by name. Raises InputError for a context too long for the model.
    """

    def __init__(
        self,
        backbone: Backbone,
        vocabulary: Vocabulary,
        drafters: Mapping[str, PtpWeights],
        token_ids: Sequence[int],
        sampling: Sampling,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.backbone = backbone
        self.vocabulary = vocabulary
        self.drafters = dict(drafters)
        self.sampling = sampling
        self._root = int(token_ids[-1])
        self._last: list[int] = []  # plain sampling's tokens at the last view
        self._blind: dict[tuple[str, int], Rows] = {}
        self._cache = PathCache()
        widest = max((one.config.head_context for one in drafters.values()), default=0)
        asked = (-1,) if widest else ()
        found = backbone.prefill(list(token_ids[:-1]), self._cache, asked, stop)
        none = torch.zeros(0, backbone.hidden_size, dtype=backbone.dtype, device=backbone.device)
        self._states = found.get(-1, none)[-widest:]  # of the rows before the root, for heads
        self._ids = torch.tensor(list(token_ids), device=backbone.device)[-len(self._states) - 1 :]

    def view(self, noise: Sequence[float]) -> NoiseView:
        """Everything for one setting of the noise, u_1 … u_N. Raises InputError outside [0, 1).

        One forward a drafter (for one that reads no noise in the first view only), one for the
        verifier's view of all drafts, and one more, at most, for each token of plain sampling
        behind a text that no draft foresaw.
        """
        _check(noise)
        drafted = {name: self._draft(name, [noise]) for name in self.drafters}
        known = _Known()
        if drafted:
            tokens = torch.tensor([one.tokens[0][:-1] for one in drafted.values()])
            known.learn(tokens.tolist(), self._chains(tokens))
        plain = self._plain(noise, known)
        foreseen = {name: self._judged(name, one, noise, known) for name, one in drafted.items()}
        return NoiseView(tuple(noise), plain, foreseen)

    def sweep(self, name: str, noise: Sequence[float], place: int) -> Sweep:
        """The noise at `place` (0-based) swept over [0, 1), the others as they are; one call.

        Raises InputError for noise outside [0, 1), another place or an unknown drafter.
        """
        _check(noise)
        if not 0 <= place < len(noise):
            raise InputError(f"The place is {place}; it can be from 0 to {len(noise) - 1}.")
        if name not in self.drafters:
            raise InputError(f"There is no drafter {name[:40]!r} for this context.")
        values = (np.arange(SWEPT) + 0.5) / SWEPT
        rows = [[*noise[:place], float(u), *noise[place + 1 :]] for u in values]
        drafted = self._draft(name, rows)
        return Sweep(
            place=place,
            noise=tuple(float(u) for u in values),
            texts=tuple(
                tuple(self.vocabulary.text_of(token) for token in tokens[place:])
                for tokens in drafted.tokens
            ),
            probabilities=tuple(
                tuple(round(one, DIGITS) for one in p[place:]) for p in drafted.probabilities
            ),
        )

    def told(self, name: str) -> bool:
        """Whether a drafter's first token is the verifier's own pick, which it is told: that of
        C-PTP and of drafters with a head.
        """
        weights = self.drafters[name]
        return weights.head is not None or weights.config.picks_with_noise

    def _draft(self, name: str, noise: Sequence[Sequence[float]]) -> _Drafted:
        """Tokens for each of S noises, all branches in one forward."""
        weights = self.drafters[name]
        u = torch.tensor(noise, dtype=torch.float64, device=weights.noise.table.device)
        branches, length = u.shape
        out = self._forward(name, u)
        p_root = final_probabilities(out.logits[0], self.sampling)
        first = picks_from(u[:, 0], cumulative(p_root))
        if weights.head is None:
            rows = out.logits[1:].view(-1, length, out.logits.shape[1]).expand(branches, -1, -1)
        else:
            states = None
            if weights.adapter is not None:
                found = out.hidden[-1][1:]
                states = found.view(-1, length, found.shape[1]).expand(branches, -1, -1)
            with torch.inference_mode():
                text = self._behind(out.hidden[-1][:1], weights).expand(branches)
                rows = weights.foresee(self.backbone, states, text, first, u, self.sampling)
        if not self.told(name):
            drafts = weights.config.drafts(rows, u, self.sampling)
            return _Drafted(drafts.tokens.tolist(), drafts.likely.tolist(), drafts.sure.tolist())
        replaced = weights.config.replaced
        foreseen = rows[:, replaced : length - 1 + replaced]
        drafts = weights.config.drafts(foreseen, u[:, 1:], self.sampling)
        # The root's own row gives the first token's distribution.
        ones = torch.ones(branches, 1, dtype=torch.float64, device=u.device)
        return _Drafted(
            torch.cat([first[:, None], drafts.tokens], 1).tolist(),
            torch.cat([p_root[first][:, None].double(), drafts.likely.double()], 1).tolist(),
            torch.cat([ones, drafts.sure.double()], 1).tolist(),
        )

    def _forward(self, name: str, u: Tensor) -> Rows:
        """The base's forward of the root and, with an adapter, of rows that read u (S, N): S
        branches. What does not read its noise says the same each time: one branch, run once.
        """
        weights = self.drafters[name]
        blind = weights.adapter is None or weights.config.embedding == "constant"
        known = (name, u.shape[1])
        if blind and known in self._blind:
            return self._blind[known]
        probes = None if weights.adapter is None else _rows_of(weights, u[:1] if blind else u)
        asked = (-1,) if weights.head is not None else ()
        block = Block(self._root, probes=probes, hidden_layers=asked)
        out = self.backbone.forward(block, self._cache)
        self._cache.keep(())
        if blind:
            self._blind[known] = out
        return out

    def _behind(self, root: Tensor, weights: PtpWeights) -> Behind:
        """What a drafter's head reads of the context: root (1, D) is the final state behind it."""
        states = torch.cat([self._states, root])
        at = torch.tensor([[len(states) - 1]], device=root.device)
        return behind(states[None], self._ids[None], at, weights.config.head_context)

    def _judged(
        self, name: str, drafted: _Drafted, noise: Sequence[float], known: _Known
    ) -> tuple[Foreseen, ...]:
        """The verifier's view of drafted tokens, each behind the drafted ones before it."""
        tokens = drafted.tokens[0]
        chance, told = self.drafters[name].config.chance, self.told(name)
        found = []
        for place, token in enumerate(tokens):
            p, edges = known.at[tuple(tokens[:place])]
            found.append(
                Foreseen(
                    id=token,
                    text=self.vocabulary.text_of(token),
                    probability=drafted.probabilities[0][place],
                    chance=chance(drafted.confidences[0][place]),
                    verifier=float(p[token]),
                    picked=pick_from(noise[place], edges) == token,
                    told=told and place == 0,
                )
            )
        return tuple(found)

    def tallies(
        self,
        places: int,
        count: int = NOISES,
        seed: int = 0,
        tell: Callable[[float], None] = lambda done: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, Tally] | None:
        """How plain sampling and each drafter do over `count` draws of noise; None if stopped."""
        u = torch.rand(
            count, places, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        at_once = max(1, TALLIED // (places * self.backbone.vocabulary_size))
        names = (PLAIN, *self.drafters)
        right = dict.fromkeys(names, 0)
        impossible = dict.fromkeys(names, 0)
        for first in range(0, count, at_once):
            part = u[first : first + at_once]
            for done, name in enumerate(names):
                tell((first + done / len(names) * len(part)) / count)
                tokens = self._written(name, part, stop)
                if tokens is None:
                    return None
                p = self._chains(tokens[:, :-1])
                ids = tokens.to(p.device)
                again = picks_from(part, cumulative(p))
                later = p[:, 1:].gather(2, ids[:, 1:, None])
                first_drafted = int(name != PLAIN and self.told(name))
                same = (again == ids)[:, first_drafted:]
                right[name] += int(same.long().cumprod(1).sum())
                impossible[name] += int((later < IMPOSSIBLE).sum())
        pairs = max(1, count * (places - 1))
        return {
            name: Tally(round(right[name] / count, 4), round(impossible[name] / pairs, 4))
            for name in names
        }

    def _written(self, name: str, u: Tensor, stop: Callable[[], bool]) -> Tensor | None:
        """What plain sampling or a drafter writes with noise u (S, N): tokens (S, N); None where
        it was stopped.
        """
        if name != PLAIN:
            return None if stop() else torch.tensor(self._draft(name, u.tolist()).tokens)
        plain = torch.zeros(len(u), 0, dtype=torch.long)
        for place in range(u.shape[1]):
            if stop():
                return None
            token = picks_from(u[:, place], cumulative(self._chains(plain)[:, place]))
            plain = torch.cat([plain, token[:, None].cpu()], 1)
        return plain

    def _chains(self, tokens: Tensor) -> Tensor:
        """The verifier's final distributions (S, 1 + T, V) behind the root and each token of
        S texts (S, T), all texts in one forward.
        """
        count, length = tokens.shape
        parents = [node - 1 if node % length else -1 for node in range(count * length)]
        size = len(parents)
        kind: Kind = "deterministic"
        tree = DraftTree(
            token_ids=tuple(tokens.flatten().tolist()),
            parents=tuple(parents),
            log_q=(0.0,) * size,
            kind=(kind,) * size,
            origins=((PLAIN,),) * size,
        )
        logits = self.backbone.forward(Block(self._root, tree), self._cache).logits
        self._cache.keep(())
        p = final_probabilities(logits, self.sampling)
        rows = p[1:].view(count, length, p.shape[1])
        return torch.cat([p[:1].expand(count, 1, -1), rows], 1)

    def _plain(self, noise: Sequence[float], known: _Known) -> tuple[Picked, ...]:
        """Plain sampling with this noise. Where the distribution behind the text so far is not
        known yet, a forward brings it, and those behind the tokens of the last time as well.
        """
        tokens: list[int] = []
        found = []
        for place, u in enumerate(noise):
            if tuple(tokens) not in known.at:
                guess = torch.tensor([[*tokens, *self._last[place : len(noise) - 1]]])
                known.learn(guess.tolist(), self._chains(guess))
            p, edges = known.at[tuple(tokens)]
            token = pick_from(u, edges)
            likely = sorted({token, *p.topk(min(STRIP, len(p))).indices.tolist()})
            strip = tuple((self.vocabulary.text_of(one), *interval(one, edges)) for one in likely)
            text = self.vocabulary.text_of(token)
            found.append(Picked(token, text, u, interval(token, edges), strip))
            tokens.append(token)
        self._last = tokens
        return tuple(found)


def _rows_of(weights: PtpWeights, u: Tensor) -> Probes:
    """Noise rows for u (S, N): S branches behind the root."""
    branches, length = u.shape
    branch = np.repeat(np.arange(branches), length)
    order = np.arange(branches * length)
    sees = (branch[:, None] == branch[None, :]) & (order[None, :] <= order[:, None])
    with torch.inference_mode():
        embeds = weights.noise(u.flatten())
    return Probes(
        owner=(-1,) * len(order),
        slot=tuple(int(place) for place in order % length),
        embeds=embeds,
        sees=sees,
        adapter=weights.adapter,
    )


def _check(noise: Sequence[float]) -> None:
    if not noise or not all(0 <= u < 1 for u in noise):
        raise InputError("Noise values are numbers from 0 to below 1, one at least.")
