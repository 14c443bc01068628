"""What came out of comparing a run's text with plain sampling under the same noise."""

from __future__ import annotations

from dataclasses import dataclass

from mtp.records.trace import TokenText

# Rounding in another block width moves float32 logits by about 7e-5 on SmolLM2.
NEAR_EDGE = 2e-5  # of noise, between u and the edge of its interval
NEAR_GAP = 1e-3  # of logits, between the two largest, when greedy


@dataclass(frozen=True)
class Parting:
    """The first place where two texts differ, and how near to a tie either pick was."""

    index: int
    """0-based, in new tokens."""
    drafted: TokenText
    plain: TokenText
    margin: float
    """The smaller of the two picks' margins: noise to the edge, or logit gap when greedy."""
    near_tie: bool


@dataclass(frozen=True)
class Comparison:
    """One precision's verdict: how many tokens were compared and where the texts part, if so."""

    dtype: str
    tokens: int
    parting: Parting | None

    @property
    def equal(self) -> bool:
        """Whether the texts agree token for token."""
        return self.parting is None
