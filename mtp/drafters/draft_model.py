"""A small autoregressive draft model of the same vocabulary (Leviathan et al. 2023)."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from mtp.drafters.base import Context, Draft, Outcome, ProbeOutput
from mtp.errors import InputError
from mtp.models.backbone import Backbone, Block
from mtp.models.cache import PathCache
from mtp.models.verifier import Verifier, load_verifier
from mtp.models.vocabulary import Vocabulary
from mtp.records.trace import DrafterWeights
from mtp.sampling import Stream, final_probabilities, pick
from mtp.tree import chain


class DraftModel:
    """Drafts a chain of `length` tokens, each drawn from the draft model's own distribution.

    Under `coupled` with the verifier's noise, x_j = Pick(u_{t+j}, q(· | x_<j)), under `rejection`
    with the `draft` stream. The draft model keeps a cache of its own and reads only what is new.
    trained: what it is called in a record.
    """

    name = "draft-model"
    hidden_layers: tuple[int, ...] = ()

    def __init__(
        self,
        backbone: Backbone,
        vocabulary_size: int,
        length: int = 5,
        trained: DrafterWeights | None = None,
    ) -> None:
        self.backbone = backbone
        self.trained = trained
        self.vocabulary_size = vocabulary_size
        """V of the verifier: the width of q."""
        self.length = length
        self._cache = PathCache()
        self._read: list[int] = []
        """Tokens in the cache."""

    def propose(self, context: Context) -> Draft:
        """The chain, with the distribution each token was drawn from."""
        rows = 1 + self.length
        length = min(self.length, context.most_depth)
        limit = self.backbone.context_limit
        if limit is not None:  # the last drafted token is not run
            length = min(length, limit - len(context.token_ids) + 1)
        if context.most_depth < 1:
            return Draft(budget_rows=rows, why_empty="One token is left to write.")
        if length < 1:
            return Draft(
                budget_rows=rows,
                why_empty=f"The text is longer than the {limit:,} tokens the draft model reads.",
            )
        stream: Stream = "pick" if context.verification == "coupled" else "draft"
        tokens: list[int] = []
        given: list[Tensor] = []
        logits = self._catch_up(list(context.token_ids))
        while True:
            q = final_probabilities(self._fitted(logits), context.sampling)  # (V,)
            u = context.noise.u(len(context.token_ids) + len(tokens), stream)
            tokens.append(pick(u, q))
            given.append(q)
            if len(tokens) == length:
                break
            logits = self._run([tokens[-1]])
        log_q = [float(q[token].log()) for token, q in zip(tokens, given, strict=True)]
        return Draft(
            tree=chain(tokens, self.name, log_q, given),
            budget_rows=rows,
            insight={"kind": "draft-model", "cached": len(self._read)},
        )

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        """Nothing to learn: the next draft starts from the text itself."""

    def _catch_up(self, token_ids: list[int]) -> Tensor:
        """Reads what is new in the text; returns the logits (V of the draft model,) behind it."""
        same = 0
        for mine, theirs in zip(self._read, token_ids[:-1], strict=False):
            if mine != theirs:
                break
            same += 1
        self._forget(same)
        new = token_ids[same:]
        if len(new) > self.length + 2:  # the first time, the prompt
            self.backbone.prefill(new[:-1], self._cache)
            self._read += new[:-1]
            new = new[-1:]
        return self._run(new)

    def _run(self, tokens: list[int]) -> Tensor:
        """Runs tokens behind the cached ones and keeps them; returns the last one's logits."""
        rows = self.backbone.forward(Block(tokens[0], chain(tokens[1:], self.name)), self._cache)
        self._cache.keep(range(len(tokens)))
        self._read += tokens
        return rows.logits[-1]

    def _forget(self, kept: int) -> None:
        """Takes drafted tokens that fell out of the cache."""
        del self._read[kept:]
        self._cache.length = kept
        self._cache.keep(())  # drops the rows behind

    def _fitted(self, logits: Tensor) -> Tensor:
        """The logits at the verifier's width: one vocabulary's tables may be padded differently."""
        missing = self.vocabulary_size - len(logits)
        if missing <= 0:
            return logits[: self.vocabulary_size]
        return torch.cat([logits, logits.new_full((missing,), -math.inf)])


def load_draft_model(name: str, verifier: Verifier) -> Verifier:
    """The small model for this verifier, in its precision and on its device.

    Raises InputError for another vocabulary, ModelError as `load_verifier` does.
    """
    small = _loaded(name, verifier.dtype, str(verifier.backbone.device))
    check_same_vocabulary(name, small.vocabulary, verifier.vocabulary)
    return small


def check_same_vocabulary(name: str, drafted: Vocabulary, verified: Vocabulary) -> None:
    """Raises InputError where two tokenizers give tokens other ids."""
    mine, theirs = drafted.tokenizer.get_vocab(), verified.tokenizer.get_vocab()
    if mine != theirs:
        shared = len(mine.items() & theirs.items())
        raise InputError(
            f"{name[:80]} has another vocabulary than the verifier: {shared:,} of {len(theirs):,} "
            "tokens agree. A draft model must have the same one."
        )


@lru_cache(maxsize=1)
def _loaded(name: str, dtype: str, device: str) -> Verifier:
    """The last draft model used stays loaded, as every run asks for it again."""
    return load_verifier(name, dtype, device)
