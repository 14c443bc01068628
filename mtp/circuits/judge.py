"""Whether a sample is possible: its log-probabilities, and the marks against it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtp.circuits import marks
from mtp.circuits.circuit import UNKNOWN, Circuit
from mtp.circuits.inference import log_prob
from mtp.records.circuit import Marked, Sample, readable


@dataclass(frozen=True)
class Judge:
    """All that decides whether a sample is possible.

    pieces: the bytes of every token; ends: tokens that end the text; before: the context's last
    bytes; threshold: the log p below which a sample is unlikely; words: the known ones, if known.
    """

    circuit: Circuit
    pieces: tuple[bytes, ...]
    ends: tuple[int, ...]
    before: bytes
    threshold: float
    words: frozenset[str] | None

    def samples(self, tokens: Tensor, states: Tensor, scores: Tensor) -> tuple[Sample, ...]:
        """Windows (S, n), their latent states (S, L) and the verifier's log p (S, n), judged."""
        lengths = lengths_of(tokens, self.ends)
        after = torch.arange(tokens.shape[1])[None] >= lengths[:, None]
        log_q = log_prob(self.circuit, tokens.masked_fill(after, UNKNOWN)).tolist()
        log_p = scores.masked_fill(after, 0.0).sum(1).tolist()
        return tuple(
            self._sample(row, chosen, int(length), q, p)
            for row, chosen, length, q, p in zip(
                tokens.tolist(), states.tolist(), lengths, log_q, log_p, strict=True
            )
        )

    def _sample(
        self, tokens: list[int], states: list[int], length: int, log_q: float, log_p: float
    ) -> Sample:
        ended = tokens[length - 1] in self.ends
        text = tokens[: length - 1] if ended else tokens[:length]
        raw = b"".join(self.pieces[token] for token in text)
        found = [Marked("broken", readable(part)) for part in marks.broken_bytes(raw, ended)[:1]]
        if self.words is not None:
            unknown = marks.unknown_words(self.before, raw, ended, self.words)
            found += [Marked("word", word) for word in unknown]
        if log_p < self.threshold:
            found.append(Marked("unlikely"))
        shown = readable(raw + (self.pieces[tokens[length - 1]] if ended else b""))
        return Sample(
            tuple(tokens), tuple(states), shown, round(log_q, 4), round(log_p, 4), tuple(found)
        )


def lengths_of(tokens: Tensor, ends: tuple[int, ...]) -> Tensor:
    """How many tokens of each row (S, n) count: up to and with the first that ends the text."""
    ending = torch.isin(tokens, torch.tensor(ends, dtype=torch.long))
    first = ending.int().argmax(1) + 1
    return torch.where(ending.any(1), first, tokens.shape[1])
