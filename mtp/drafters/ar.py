"""Plain decoding: no draft, one token a forward. The measure of all others."""

from __future__ import annotations

from mtp.drafters.base import Context, Draft, Outcome, ProbeOutput


class Autoregressive:
    """Drafts nothing."""

    name = "ar"
    hidden_layers: tuple[int, ...] = ()

    def propose(self, context: Context) -> Draft:
        """An empty draft."""
        return Draft(why_empty="Plain decoding never drafts.")

    def observe(self, outcome: Outcome, probes: ProbeOutput | None) -> None:
        """Nothing to learn."""
