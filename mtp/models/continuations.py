"""What a model itself says after a context: its own continuations, and its verdict on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from mtp.errors import InputError
from mtp.models.backbone import PREFILL_CHUNK, Backbone

SPREAD_BYTES = 128 * 2**20  # of keys and values of one layer, while a batch of rows meets them


class Continuations:
    """A context that was run once; continuations of it are drawn and scored in batches.

    hidden (D,): the last token's final hidden state, after the final norm; entering (T, D): all
    tokens' states that enter the last `layers` layers. Distributions are at `temperature`, above 0.
    Raises InputError for an empty context, or one that leaves no room for `length` tokens.
    """

    def __init__(
        self,
        backbone: Backbone,
        token_ids: Sequence[int],
        length: int,
        stop: Callable[[], bool] = lambda: False,
        temperature: float = 1.0,
        layers: int = 0,
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
        entering = []
        for start in range(0, len(token_ids), PREFILL_CHUNK):
            if start and stop():
                break
            chunk = torch.tensor([list(token_ids[start : start + PREFILL_CHUNK])])
            out = self._run(chunk, self._cache, hidden=True)
            entering.append(out.hidden_states[-1 - layers][0])
        self.hidden: Tensor = out.hidden_states[-1][0, -1]
        self.entering: Tensor = torch.cat(entering)
        self._first = self._log_probs(out.logits[0, -1])  # (V,)
        self._rows = max(1, SPREAD_BYTES // self._spread_bytes())  # of one forward

    def sample(
        self,
        count: int,
        generator: torch.Generator,
        stop: Callable[[], bool] = lambda: False,
    ) -> tuple[Tensor, Tensor]:
        """Draws (S, n) token ids, with the log-probability of each (S, n).

        Fewer than n columns come back once `stop()` is true.
        """
        pieces = torch.arange(count).split(self._rows)
        caches = [self._behind() for _ in pieces]
        log_probs = self._first.expand(count, -1)
        tokens, logs = [], []
        for step in range(self.length):
            drawn = torch.multinomial(log_probs.exp(), 1, generator=generator)  # (S, 1)
            tokens.append(drawn)
            logs.append(log_probs.gather(1, drawn))
            if step + 1 == self.length or stop():
                break
            log_probs = torch.empty_like(log_probs, memory_format=torch.contiguous_format)
            for piece, cache in zip(pieces, caches, strict=True):
                log_probs[piece] = self._log_probs(self._run(drawn[piece], cache).logits[:, -1])
        return torch.cat(tokens, 1), torch.cat(logs, 1)

    def score(self, windows: Tensor) -> Tensor:
        """Log-probability of each token (S, n) given the context and the tokens before it."""
        return torch.cat([self._scored(part) for part in windows.split(self._rows)])

    def _scored(self, windows: Tensor) -> Tensor:
        first = self._first[windows[:, 0]][:, None]
        if windows.shape[1] == 1:
            return first
        said = self._log_probs(self._run(windows[:, :-1], self._behind()).logits)
        rest = said.gather(2, windows[:, 1:, None])[..., 0]
        return torch.cat([first, rest], 1)

    def _behind(self) -> DynamicCache:
        """A cache for rows that go on behind the context."""
        cache = DynamicCache()
        cache.layers = [_Behind(layer) for layer in self._layers()]
        return cache

    def _spread_bytes(self) -> int:
        """Of a layer's keys and values, for one row: as many heads as queries have."""
        heads = int(self.backbone.config.num_attention_heads)
        keys = [layer.keys for layer in self._layers() if layer.keys is not None]
        return 2 * heads * max(one[0, 0].nbytes for one in keys)

    def _layers(self) -> list[CacheLayerMixin]:
        """The context's keys and values. `Backbone` takes no model that caches anything else."""
        return [layer for layer in self._cache.layers if isinstance(layer, CacheLayerMixin)]

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


class _Behind(DynamicLayer):
    """A layer's rows behind a context that all of a batch share. The context is held once and
    spread over the batch only while the layer runs.
    """

    def __init__(self, context: CacheLayerMixin) -> None:
        super().__init__()
        self._context = context

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Appends the rows' states; returns those of context and rows (S, heads, P + T, D)."""
        keys, values = super().update(key_states, value_states)
        return _joined(self._context.keys, keys), _joined(self._context.values, values)

    def get_seq_length(self) -> int:
        """Cached positions, the context's among them."""
        return self._context.get_seq_length() + super().get_seq_length()


def _joined(shared: Tensor | None, own: Tensor) -> Tensor:
    if shared is None:  # a layer that shares another's keys
        return own
    return torch.cat([shared.expand(len(own), -1, -1, -1), own], dim=-2)
