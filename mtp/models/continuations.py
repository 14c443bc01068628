"""What a model itself says after a context: its own continuations, and its verdict on others."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from mtp.errors import InputError
from mtp.models.backbone import PREFILL_CHUNK, Backbone


class Continuations:
    """A context that was run once; continuations of it are drawn and scored in batches.

    hidden (D,): the last token's final hidden state, after the final norm. Distributions are at
    `temperature`, above 0. Raises InputError for an empty context, or one that leaves no room for
    `length` tokens.
    """

    def __init__(
        self,
        backbone: Backbone,
        token_ids: Sequence[int],
        length: int,
        stop: Callable[[], bool] = lambda: False,
        temperature: float = 1.0,
    ) -> None:
        limit = backbone.context_limit
        if not token_ids:
            raise InputError("The context has no tokens.")
        if limit is not None and len(token_ids) + length > limit:
            raise InputError(
                f"The context has {len(token_ids)} tokens and the window {length}; this model "
                f"takes {limit} positions together. Use a shorter prompt."
            )
        self.backbone = backbone
        self.length = length
        self.temperature = temperature
        self._cache = DynamicCache()
        for start in range(0, len(token_ids), PREFILL_CHUNK):
            if start and stop():
                break
            chunk = torch.tensor([list(token_ids[start : start + PREFILL_CHUNK])])
            out = self._run(chunk, self._cache, hidden=True)
        self.hidden: Tensor = out.hidden_states[-1][0, -1]
        self._first = self._log_probs(out.logits[0, -1])  # (V,)

    def sample(
        self,
        count: int,
        generator: torch.Generator,
        stop: Callable[[], bool] = lambda: False,
    ) -> tuple[Tensor, Tensor]:
        """Draws (S, n) token ids, with the log-probability of each (S, n).

        Fewer than n columns come back once `stop()` is true.
        """
        cache = self._repeated(count)
        log_probs = self._first.expand(count, -1)
        tokens, logs = [], []
        for step in range(self.length):
            drawn = torch.multinomial(log_probs.exp(), 1, generator=generator)  # (S, 1)
            tokens.append(drawn)
            logs.append(log_probs.gather(1, drawn))
            if step + 1 == self.length or stop():
                break
            log_probs = self._log_probs(self._run(drawn, cache).logits[:, -1])
        return torch.cat(tokens, 1), torch.cat(logs, 1)

    def score(self, windows: Tensor) -> Tensor:
        """Log-probability of each token (S, n) given the context and the tokens before it."""
        first = self._first[windows[:, 0]][:, None]
        if windows.shape[1] == 1:
            return first
        said = self._log_probs(self._run(windows[:, :-1], self._repeated(len(windows))).logits)
        rest = said.gather(2, windows[:, 1:, None])[..., 0]
        return torch.cat([first, rest], 1)

    def _repeated(self, count: int) -> DynamicCache:
        cache = copy.deepcopy(self._cache)
        cache.batch_repeat_interleave(count)
        return cache

    def _run(self, ids: Tensor, cache: DynamicCache, hidden: bool = False):  # type: ignore[no-untyped-def]
        with torch.inference_mode():
            return self.backbone.model(
                input_ids=ids.to(self.backbone.device),
                use_cache=True,
                output_hidden_states=hidden,
                **{self.backbone.cache_name: cache},
            )

    def _log_probs(self, logits: Tensor) -> Tensor:
        """Natural logs in float64 on the CPU, where generators with a seed draw the same
        everywhere.
        """
        return (logits.cpu().double() / self.temperature).log_softmax(-1)
