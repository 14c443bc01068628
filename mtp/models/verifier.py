"""A verifier: a loaded model with its vocabulary, ready to decode."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mtp.models.backbone import Backbone
from mtp.models.load import best_device, load_model, parse_dtype, preferred_dtype
from mtp.models.vocabulary import Vocabulary


@dataclass(frozen=True)
class Verifier:
    """What runs share: loaded once, used by one run at a time."""

    name: str
    weights_sha256: str
    backbone: Backbone
    vocabulary: Vocabulary

    @property
    def dtype(self) -> str:
        """The precision's name, such as float32."""
        return str(self.backbone.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        """The device's kind and, for a GPU, its name."""
        device = self.backbone.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def load_verifier(
    name: str,
    dtype: str | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> Verifier:
    """Loads a model that is here, on the GPU if there is one, in the precision it does well.

    Raises ModelError as `load_model` and `Backbone.check` do, InputError for an unknown dtype.
    """
    chosen = device or best_device()
    precision = parse_dtype(dtype) if dtype else preferred_dtype(chosen, name)
    model, tokenizer, sha256 = load_model(
        name, precision, chosen, trust_remote_code=trust_remote_code
    )
    backbone = Backbone(model)
    backbone.check()
    ends = model.generation_config.eos_token_id if model.generation_config else None
    stop_ids = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    return Verifier(name, sha256, backbone, Vocabulary(tokenizer, stop_ids))
