"""One context, any noise: what drafters foresee from one call, beside what the verifier picks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mtp.errors import InputError
from mtp.models.backbone import Backbone, Block
from mtp.models.cache import PathCache
from mtp.models.vocabulary import Vocabulary
from mtp.ptp.weights import PtpWeights
from mtp.records.noise import Foreseen, NoiseView, Picked, Sweep
from mtp.sampling import Sampling, cumulative, final_probabilities, interval, pick_from
from mtp.tree import Probes, chain

STRIP = 8  # most probable tokens of a strip
SWEPT = 48  # values of a sweep
IMPOSSIBLE = 1e-3  # below this, the verifier's probability of a token calls it impossible


@dataclass(frozen=True)
class _Drafted:
    """Tokens (N,) and the drafter's probability of each, for each of several noises (S, N)."""

    tokens: list[list[int]]
    probabilities: list[list[float]]


class NoiseExplorer:
    """Holds a context read once; every question costs one or two forwards and no prefill.

    drafters: weights by name. Raises InputError for a context too long for the model.
    """

    def __init__(
        self,
        backbone: Backbone,
        vocabulary: Vocabulary,
        drafters: Mapping[str, PtpWeights],
        token_ids: Sequence[int],
        sampling: Sampling,
    ) -> None:
        self.backbone = backbone
        self.vocabulary = vocabulary
        self.drafters = dict(drafters)
        self.sampling = sampling
        self._root = int(token_ids[-1])
        self._cache = PathCache()
        backbone.prefill(list(token_ids[:-1]), self._cache)

    def view(self, noise: Sequence[float]) -> NoiseView:
        """Everything for one setting of the noise, u_1 … u_N. Raises InputError outside [0, 1)."""
        _check(noise)
        foreseen = {}
        for name in self.drafters:
            drafted = self._draft(name, [noise])
            foreseen[name] = self._judged(drafted.tokens[0], drafted.probabilities[0], noise)
        return NoiseView(tuple(noise), self._plain(noise), foreseen)

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
            probabilities=tuple(tuple(p[place:]) for p in drafted.probabilities),
        )

    def _draft(self, name: str, noise: Sequence[Sequence[float]]) -> _Drafted:
        """Tokens for each of S noises, all branches in one forward.

        C-PTP's first token is the verifier's own pick: the root's row gives its distribution.
        """
        weights = self.drafters[name]
        u = torch.tensor(noise, dtype=torch.float64, device=weights.noise.table.device)
        branches, length = u.shape
        branch = np.repeat(np.arange(branches), length)
        order = np.arange(branches * length)
        sees = (branch[:, None] == branch[None, :]) & (order[None, :] <= order[:, None])
        with torch.inference_mode():
            embeds = weights.noise(u.flatten())
        probes = Probes(
            owner=(-1,) * len(order),
            slot=tuple(int(place) for place in order % length),
            embeds=embeds,
            sees=sees,
            adapter=weights.adapter,
        )
        logits = self.backbone.forward(Block(self._root, probes=probes), self._cache).logits
        self._cache.keep(())
        rows = logits[1:].view(branches, length, -1)
        if weights.config.variant != "c-ptp":
            best = rows.float().softmax(-1).max(-1)
            return _Drafted(best.indices.tolist(), best.values.tolist())
        first = logits[:1].expand(branches, 1, -1)
        p = final_probabilities(torch.cat([first, rows[:, :-1]], 1), self.sampling)
        edges = cumulative(p)
        tokens = torch.searchsorted(edges, u[:, :, None].contiguous(), right=True)
        return _Drafted(tokens[:, :, 0].tolist(), p.gather(2, tokens)[:, :, 0].tolist())

    def _judged(
        self, tokens: Sequence[int], probabilities: Sequence[float], noise: Sequence[float]
    ) -> tuple[Foreseen, ...]:
        """The verifier's view of drafted tokens, each behind the drafted ones before it."""
        p = final_probabilities(self._rows(tokens[:-1]), self.sampling)
        edges = cumulative(p)
        return tuple(
            Foreseen(
                id=token,
                text=self.vocabulary.text_of(token),
                probability=probability,
                verifier=float(p[place, token]),
                picked=pick_from(noise[place], edges[place]) == token,
            )
            for place, (token, probability) in enumerate(zip(tokens, probabilities, strict=True))
        )

    def _plain(self, noise: Sequence[float]) -> tuple[Picked, ...]:
        """Plain sampling with this noise, one forward a token."""
        tokens: list[int] = []
        found = []
        for u in noise:
            p = final_probabilities(self._rows(tokens)[-1], self.sampling)
            edges = cumulative(p)
            token = pick_from(u, edges)
            likely = sorted({token, *p.topk(min(STRIP, len(p))).indices.tolist()})
            strip = tuple((self.vocabulary.text_of(one), *interval(one, edges)) for one in likely)
            text = self.vocabulary.text_of(token)
            found.append(Picked(token, text, u, interval(token, edges), strip))
            tokens.append(token)
        return tuple(found)

    def _rows(self, tokens: Sequence[int]) -> Tensor:
        """The verifier's logits (1 + T, V) behind the root and each of these tokens."""
        block = Block(self._root, chain(list(tokens), "plain"))
        logits = self.backbone.forward(block, self._cache).logits
        self._cache.keep(())
        return logits


def impossible_pairs(foreseen: Sequence[Foreseen]) -> float:
    """The share of adjacent tokens of which the verifier finds the second one impossible behind
    the first: its probability there is below 1e-3.
    """
    later = foreseen[1:]
    return sum(one.verifier < IMPOSSIBLE for one in later) / len(later) if later else 0.0


def _check(noise: Sequence[float]) -> None:
    if not noise or not all(0 <= u < 1 for u in noise):
        raise InputError("Noise values are numbers from 0 to below 1, one at least.")
