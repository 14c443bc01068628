"""Everything a person chooses about a run, apart from the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mtp.records.trace import Branch, Mode, Run


@dataclass(frozen=True)
class Settings:
    """What was asked, not yet checked.

    `forced_ids` are tokens taken as already written behind the prompt: a branch that is followed.
    """

    prompt: str
    drafter: str = "pld"
    drafter_options: Mapping[str, Any] = field(default_factory=dict)
    mode: Mode = "chat"
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    verification: str = "coupled"
    max_new_tokens: int = 64
    forced_ids: tuple[int, ...] = ()
    branch: Branch | None = None

    def plain(self) -> Settings:
        """The same run by plain sampling: no drafts, the same noise."""
        return replace(self, drafter="ar", drafter_options={}, verification="coupled")


def settings_of(run: Run) -> Settings:
    """The settings that make a recorded run again."""
    forced = run.branch.forced if run.branch else 0
    ids = [token.id for token in run.prompt_tokens]
    return Settings(
        prompt=run.prompt,
        drafter=run.drafter,
        drafter_options=run.drafter_options,
        mode=run.mode,
        temperature=run.temperature,
        top_k=run.top_k,
        top_p=run.top_p,
        seed=run.seed,
        verification=run.verification,
        max_new_tokens=run.max_new_tokens,
        forced_ids=tuple(ids[len(ids) - forced :]),
        branch=run.branch,
    )
