"""Low-rank adapters that work on some rows of a forward only (LoRA, Hu et al. 2021, gated)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtp.errors import ModelError

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
PROJECTIONS = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
SHARING = (ATTENTION[:3], PROJECTIONS[4:6])  # maps of a layer that read the same rows
WEIGHTS_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"  # PEFT's names
_PREFIX = "base_model.model."


class LowRankAdapter(nn.Module):
    """y += (α / r) B A x for the linear maps named, in the layers given, on gated rows.

    B starts at zero: at first the adapter changes nothing. Raises ModelError for a model whose
    layers have no such maps.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Sequence[int],
        rank: int,
        alpha: float,
        targets: Sequence[str] = PROJECTIONS,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.layers = tuple(layers)
        self.rank, self.alpha, self.targets = rank, alpha, tuple(targets)
        self.names = [
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear)
            and name.rpartition(".")[2] in targets
            and _layer_of(name) in self.layers
        ]
        if len(self.names) != len(self.layers) * len(self.targets):
            raise ModelError(
                f"{type(model).__name__} has no {', '.join(targets)} in each of its layers; "
                "adapters need a Llama-shaped model."
            )
        maps = [model.get_submodule(name) for name in self.names]
        self.down = nn.ParameterList(
            torch.randn(rank, int(linear.in_features), generator=generator)  # type: ignore[arg-type]
            / int(linear.in_features) ** 0.5  # type: ignore[arg-type]
            for linear in maps
        )
        self.up = nn.ParameterList(
            torch.zeros(int(linear.out_features), rank)  # type: ignore[arg-type]
            for linear in maps
        )
        self._groups = _groups(self.names)
        self._ready: dict[torch.dtype, list[_Maps]] = {}
        self.register_load_state_dict_post_hook(lambda module, keys: module._ready.clear())

    @contextmanager
    def gate(self, model: nn.Module, first_row: int) -> Iterator[None]:
        """While entered, rows from `first_row` on of each forward of `model` run with the adapter;
        rows before it are computed as without.
        """
        hooks = []
        scale = self.alpha / self.rank
        modules = _modules_at(model, tuple(self.names))
        for group, maps in zip(
            self._groups, self._maps(next(model.parameters()).dtype), strict=True
        ):
            reader = _Reader(maps.down, self.rank, first_row)
            for place, index in enumerate(group):

                def add(
                    module: nn.Module,
                    inputs: tuple[Any, ...],
                    output: Tensor,
                    reader: _Reader = reader,
                    place: int = place,
                    up: Tensor = maps.up[place],
                ) -> None:
                    # In place: rows before the gate stay as they are, and nothing is copied.
                    low = reader.low(inputs[0], output.dtype)[place]
                    up = _as(output.dtype, up)
                    if len(output) == 1 or first_row == 0:
                        _rows(output, first_row).addmm_(low, up, alpha=scale)
                    else:  # the rows of several texts lie apart
                        rows = output[:, first_row:]
                        rows.add_((low @ up).view_as(rows), alpha=scale)

                hooks.append(modules[index].register_forward_hook(add))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _maps(self, dtype: torch.dtype) -> list[_Maps]:
        """The maps of each group in the model's precision; kept where nothing is trained."""
        if self.training:
            return self._cast(dtype)
        if dtype not in self._ready:
            with torch.inference_mode(False), torch.no_grad():
                self._ready[dtype] = self._cast(dtype, copy=True)
        return self._ready[dtype]

    def _cast(self, dtype: torch.dtype, copy: bool = False) -> list[_Maps]:
        return [
            _Maps(
                torch.cat([self.down[index] for index in group]).to(dtype).T,
                [self.up[index].to(dtype, copy=copy).T for index in group],
            )
            for group in self._groups
        ]

    def _apply(self, *args: Any, **kwargs: Any) -> LowRankAdapter:
        self._ready.clear()  # what was moved or cast
        super()._apply(*args, **kwargs)
        return self

    def train(self, mode: bool = True) -> LowRankAdapter:
        """As `nn.Module.train`; in evaluation the weights are taken not to change."""
        self._ready.clear()
        super().train(mode)
        return self


@dataclass(frozen=True)
class _Maps:
    """Of maps that read the same rows: all A, (in, n · rank), and each B, (rank, out)."""

    down: Tensor
    up: list[Tensor]


class _Reader:
    """A x of maps that read the same rows, in one product when the first of them runs."""

    def __init__(self, down: Tensor, rank: int, first_row: int) -> None:
        self._down = down
        self._rank = rank
        self._first = first_row
        self._of: Tensor | None = None
        self._low: tuple[Tensor, ...] = ()

    def low(self, inputs: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """A x (rows, rank) of each map, for the gated rows of their inputs."""
        if self._of is not inputs:
            low = _as(dtype, _rows(inputs, self._first) @ self._down)
            one = low.shape[1] == self._rank
            self._of, self._low = inputs, (low,) if one else low.split(self._rank, dim=1)
        return self._low


def _rows(x: Tensor, first: int) -> Tensor:
    """Rows from `first` on of all texts (B, T, D), as (rows, D); a view where B is 1."""
    if len(x) == 1:
        return x[0, first:] if first else x[0]
    return (x[:, first:] if first else x).flatten(0, 1)


def _as(dtype: torch.dtype, x: Tensor) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


_modules: WeakKeyDictionary[nn.Module, dict[tuple[str, ...], list[nn.Module]]] = WeakKeyDictionary()


def _modules_at(model: nn.Module, names: tuple[str, ...]) -> list[nn.Module]:
    """A model's modules of these names; looked up once, as a drafter enters its gate every step."""
    known = _modules.setdefault(model, {})
    if names not in known:
        known[names] = [model.get_submodule(name) for name in names]
    return known[names]


def _groups(names: Sequence[str]) -> list[list[int]]:
    """The maps' places in `names`, those together that read the same rows."""
    groups: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        block, _, own = name.rpartition(".")
        shared = next((str(group) for group in SHARING if own in group), own)
        groups.setdefault(f"{block} {shared}", []).append(index)
    return list(groups.values())


def save_adapter(
    adapter: LowRankAdapter, folder: Path, base: str, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Writes the adapter in PEFT's layout; `base` names the model it belongs to."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, down, up in zip(adapter.names, adapter.down, adapter.up, strict=True):
        tensors[f"{_PREFIX}{name}.lora_A.weight"] = down.detach().to("cpu", dtype).contiguous()
        tensors[f"{_PREFIX}{name}.lora_B.weight"] = up.detach().to("cpu", dtype).contiguous()
    save_file(tensors, folder / WEIGHTS_FILE)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(adapter.targets),
        "layers_to_transform": list(adapter.layers),
        "inference_mode": True,
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def load_adapter(folder: Path, model: PreTrainedModel) -> LowRankAdapter:
    """Reads an adapter for this model, float32. Raises ModelError for files that do not fit."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        adapter = LowRankAdapter(
            model,
            config["layers_to_transform"],
            config["r"],
            config["lora_alpha"],
            config["target_modules"],
        )
        tensors = load_file(folder / WEIGHTS_FILE)
        with torch.no_grad():
            for name, down, up in zip(adapter.names, adapter.down, adapter.up, strict=True):
                down.copy_(tensors[f"{_PREFIX}{name}.lora_A.weight"])
                up.copy_(tensors[f"{_PREFIX}{name}.lora_B.weight"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"The adapter in {folder} cannot be read: {error}.") from error
    return adapter.to(model.device).eval()


def _layer_of(name: str) -> int:
    """The number of the layer a module's name is in; −1 outside the layers."""
    parts = name.split(".")
    at = parts.index("layers") + 1 if "layers" in parts else len(parts)
    return int(parts[at]) if at < len(parts) and parts[at].isdecimal() else -1
