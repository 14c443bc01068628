"""One forward of a `transformers` causal LM over a cached prefix and a block of rows."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtp.errors import InputError, ModelError
from mtp.models.cache import PathCache
from mtp.models.top import Gate, check_top, run_top
from mtp.records.trace import Kind
from mtp.tree import DraftTree, Probes, Templates, chain

PREFILL_CHUNK = 512  # rows a forward; between chunks a run can be stopped
_LAYER_TYPES = ("full_attention", "sliding_attention")
# Root mean square error over the logits' spread. Rounding alone gives 1e-4 in float32 and up to
# 0.15 in bfloat16; a mask or position that is ignored gives 0.5 and more.
_CHECK_TOLERANCE = {torch.bfloat16: 0.25, torch.float16: 0.05}
_CHECK_TOLERANCE_FULL = 0.01
# Seven tokens go before the block: at a text's first places half precision is off by up to 0.4 of
# the logits' spread in some models, behind them by less than 0.1.
_CHECK_TOKENS = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)
# Siblings before the checked nodes: they push a node's row that far from its position, so that
# distances counted in rows (ALiBi) show: MPT is then off by 0.4 and more, without them by 0.07.
_CHECK_ASIDE = 32


@dataclass(frozen=True)
class Block:
    """What one forward runs: the root, the tree's nodes, then the probes."""

    root: int
    tree: DraftTree = field(default_factory=DraftTree)
    probes: Probes | None = None
    hidden_layers: tuple[int, ...] = ()
    """Which hidden states to return: 0 is the embeddings, −1 the last, after the final norm."""

    def __len__(self) -> int:
        return 1 + len(self.tree) + (len(self.probes) if self.probes is not None else 0)


@dataclass(frozen=True)
class Rows:
    """What a forward returns: logits (T, V) and, by layer asked for, hidden states (T, D)."""

    logits: Tensor
    hidden: Mapping[int, Tensor]


class Backbone:
    """A causal LM that takes tree-shaped blocks. Counts its forwards and rows.

    Raises ModelError for an architecture whose attention a tree mask does not reach.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        self.device = model.device
        self.dtype = model.dtype
        self.templates = Templates()
        self.forwards = 0
        self.rows = 0
        self.seconds = 0.0  # inside the model; on CUDA only what it takes to launch
        self.layer_types = _layer_types(self.config)
        self.window: int | None = getattr(self.config, "sliding_window", None)
        self.context_limit: int | None = _context_limit(self.config)
        # transformers 5.24 renamed the argument; models from elsewhere may keep the old name.
        named = inspect.signature(type(model).forward).parameters
        self.cache_name = "cache" if "cache" in named else "past_key_values"
        self._additive = getattr(self.config, "_attn_implementation", "eager") == "eager"

    @property
    def vocabulary_size(self) -> int:
        """V, the width of the logits."""
        return int(self.config.vocab_size)

    @property
    def hidden_size(self) -> int:
        """D, the width of hidden states and embeddings."""
        return int(self.config.hidden_size)

    @property
    def embeddings(self) -> Tensor:
        """The table of token embeddings (V, D)."""
        weight = self.model.get_input_embeddings().weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def unembedding(self) -> Tensor:
        """The matrix (V, D) that turns final hidden states into logits."""
        weight = self.model.get_output_embeddings().weight
        assert isinstance(weight, Tensor)
        return weight

    def embed(self, token_ids: Sequence[int]) -> Tensor:
        """Token embeddings (T, D) as the model's first layer meets them."""
        ids = torch.tensor(list(token_ids), dtype=torch.long, device=self.device)
        with torch.inference_mode():
            return self.model.get_input_embeddings()(ids)

    def prefill(
        self,
        token_ids: Sequence[int],
        cache: PathCache,
        hidden_layers: tuple[int, ...] = (),
        stop: Callable[[], bool] = lambda: False,
    ) -> Mapping[int, Tensor]:
        """Runs a plain sequence into the cache; returns the hidden states by layer asked for
        (T, D); none for an empty sequence.

        Returns early, with what it has, once `stop()` is true.
        """
        found: dict[int, list[Tensor]] = {}
        for start in range(0, len(token_ids), PREFILL_CHUNK):
            if stop():
                break
            chunk = token_ids[start : start + PREFILL_CHUNK]
            line = chain(chunk[1:], "prompt")
            rows = self._run(Block(chunk[0], line, None, hidden_layers), cache, last_logits=1)
            cache.keep(range(len(chunk)))
            for layer, states in rows.hidden.items():
                found.setdefault(layer, []).append(states)
        return {layer: torch.cat(parts) for layer, parts in found.items()}

    def forward(self, block: Block, cache: PathCache) -> Rows:
        """Runs the block behind the cached prefix; `cache.keep` then settles which rows stay."""
        return self._run(block, cache, last_logits=0)

    def top(
        self,
        states: Tensor,
        layers: int,
        adapter: Gate | None = None,
        cache: PathCache | None = None,
    ) -> Tensor:
        """Runs the last `layers` layers and the final norm on hidden states (B, T, D) that entered
        them, a plain sequence behind the cached rows; returns (B, T, D).

        `hidden_layers` counts so that states L − K enter the last K of L layers. The rows stay in
        the cache until its `keep`. Gradients flow. Raises ModelError as `check_top` does.
        """
        check_top(self.model, layers)
        behind = cache.length if cache is not None else 0
        given = {} if cache is None else {self.cache_name: cache}
        return run_top(self.model, states, layers, adapter, behind, given)

    def _run(self, block: Block, cache: PathCache, last_logits: int) -> Rows:
        tree, probes = block.tree, block.probes
        template = self.templates.get(tree, probes)
        positions = template.offsets + cache.length  # (T,)
        if self.context_limit is not None and int(positions.max()) >= self.context_limit:
            raise InputError(
                f"The text would pass this model's {self.context_limit} positions. "
                "Use a shorter prompt or fewer new tokens."
            )
        self.forwards += 1
        self.rows += len(block)
        ids = torch.tensor([block.root, *tree.token_ids], device=self.device)
        inputs: dict[str, Tensor] = {"input_ids": ids[None]}
        gate = nullcontext()
        if probes is not None:
            embeds = torch.cat([self.embed(ids.tolist()), probes.embeds.to(self.dtype)])
            inputs = {"inputs_embeds": embeds[None]}
            if probes.adapter is not None:
                gate = probes.adapter.gate(self.model, first_row=len(ids))  # type: ignore[assignment]
        with torch.inference_mode(), gate:
            begin = time.perf_counter()
            out = self.model(
                **inputs,
                position_ids=positions[None].to(self.device),
                attention_mask=self._masks(template.mask, positions, cache.length),
                **{self.cache_name: cache},
                use_cache=True,
                output_hidden_states=bool(block.hidden_layers),
                logits_to_keep=last_logits,
            )
            self.seconds += time.perf_counter() - begin
        hidden = {layer: out.hidden_states[layer][0] for layer in block.hidden_layers}
        return Rows(out.logits[0], hidden)

    def _masks(
        self, block_mask: Tensor, positions: Tensor, prefix: int
    ) -> Tensor | dict[str, Tensor] | None:
        """The block's mask behind the prefix, (1, 1, T, P + T); one a layer type where it mixes.

        None for a single row that sees all: without a mask, attention does not copy grouped heads.
        """
        rows = len(block_mask)
        if rows == 1 and self.layer_types == ("full_attention",):
            return None
        full = torch.ones(rows, prefix + rows, dtype=torch.bool)
        full[:, prefix:] = block_mask
        masks = {}
        for layer_type in self.layer_types:
            mask = full
            if layer_type == "sliding_attention":
                assert self.window is not None
                key_positions = torch.cat([torch.arange(prefix), positions])
                mask = full & (positions[:, None] - key_positions[None, :] < self.window)
            masks[layer_type] = self._as_given(mask)
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _as_given(self, mask: Tensor) -> Tensor:
        mask = mask.to(self.device)[None, None]
        if not self._additive:
            return mask
        lowest = torch.finfo(self.dtype).min
        return torch.zeros(mask.shape, dtype=self.dtype, device=self.device).masked_fill(
            ~mask, lowest
        )

    def check(self) -> None:
        """Compares a branching block with the model's own forwards of its paths, no cache or mask.

        Architectures that ignore the mask or the position ids (ALiBi, recurrent layers, chunked
        attention) are found by what they compute, not by name. Raises ModelError for them.
        """
        tokens = [token % self.vocabulary_size for token in _CHECK_TOKENS]
        start = len(tokens) - 5  # the block's root; then three nodes and what stands aside
        aside, size = _CHECK_ASIDE, _CHECK_ASIDE + 3
        kind: Kind = "deterministic"
        tree = DraftTree(
            token_ids=(tokens[-1],) * aside + tuple(tokens[start + 1 : -1]),
            parents=(-1,) * aside + (-1, -1, aside),
            log_q=(0.0,) * size,
            kind=(kind,) * size,
            origins=(("check",),) * size,
        )
        name = type(self.model).__name__
        try:
            cache = PathCache()
            self.prefill(tokens[:start], cache)
            together = self.forward(Block(tokens[start], tree), cache).logits
            for node in range(aside, len(tree)):
                path = tokens[: start + 1] + [tree.token_ids[n] for n in tree.path(node)]
                ids = torch.tensor([path], device=self.device)
                with torch.inference_mode():
                    alone = self.model(input_ids=ids, use_cache=False).logits[0, -1].float()
                gap = alone - together[node + 1].float()
                error = float(gap.square().mean().sqrt() / alone.std())
                if not error < _CHECK_TOLERANCE.get(self.dtype, _CHECK_TOLERANCE_FULL):
                    raise ModelError(
                        f"{name} cannot verify a draft tree: a branching block gives other logits "
                        f"than its paths one by one (off by {error:.2g} of their spread). "
                        "Models with full or sliding-window attention and position ids work."
                    )
        except (TypeError, ValueError, AttributeError, RuntimeError, AssertionError) as error:
            raise ModelError(
                f"{name} does not take a tree-shaped attention mask with a cache: "
                f"{str(error).splitlines()[0][:160] if str(error) else type(error).__name__}. "
                "Models with full or sliding-window attention and position ids work."
            ) from error


def _layer_types(config: object) -> tuple[str, ...]:
    """The distinct attention types of the layers; raises ModelError for one not known here."""
    named = getattr(config, "layer_types", None)
    # GPT-Neo's local layers count their window in rows, which `check` is too short to show.
    named = named or [kind for kind in getattr(config, "attention_layers", ()) if kind == "local"]
    if not named:
        windowed = getattr(config, "sliding_window", None) is not None
        return ("sliding_attention",) if windowed else ("full_attention",)
    types = tuple(dict.fromkeys(named))
    for layer_type in types:
        if layer_type not in _LAYER_TYPES:
            raise ModelError(
                f"This model has layers of the kind '{layer_type}', which cannot take a draft "
                "tree's mask; full and sliding-window attention can."
            )
    return types


def _context_limit(config: object) -> int | None:
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    return int(limit) if limit else None
