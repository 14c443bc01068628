"""A drafter for one run, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mtp.drafters.ar import Autoregressive
from mtp.drafters.base import Drafter
from mtp.drafters.options import settle_options
from mtp.drafters.pld import PromptLookup
from mtp.models.backbone import Backbone

Maker = Callable[[Backbone, dict[str, Any]], Drafter]

MAKERS: dict[str, Maker] = {
    "ar": lambda backbone, options: Autoregressive(),
    "pld": lambda backbone, options: PromptLookup(**options),
}


def make_drafter(name: str, given: Mapping[str, object], backbone: Backbone) -> Drafter:
    """A drafter with these options. Raises InputError as `settle_options` does."""
    return MAKERS[name](backbone, settle_options(name, given))
