"""How well a PTP drafter reads its noise, on held-out texts: accuracy, gains, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mtp.models.backbone import Backbone
from mtp.ptp.weights import PtpWeights
from mtp.sampling import Sampling
from mtp.train.ptp_read import Read, read
from mtp.train.ptp_rows import Windows, choose_windows, noise_of, predict, targets
from mtp.train.texts import Text

ROWS = 8  # texts a forward
BINS = 12  # of the calibration
COUNT = 16  # windows a text
MARGIN = 0.02  # between shares that differ clearly


@dataclass(frozen=True)
class Quality:
    """Shares over held-out windows with known, uniform noise.

    accuracy[j]: row j right, at `PtpConfig.offset(j)`. `gated` is the first row whose drafter has
    to read its noise: a head is told the verifier's own pick, offset 1. shuffled: right there when
    the noise that the rows read is another draw's. ceiling: what a drafter blind to its noise can
    reach there, the mean of the base's largest probability; None for C-PTP, which picks with the
    noise of the very token whatever it has read. leading: mean number of right tokens from the
    start, without one that the head is told.
    gains: H(b). stands: calibration.
    """

    accuracy: tuple[float, ...]
    gated: int
    shuffled: float
    ceiling: float | None
    leading: float
    gains: tuple[float, ...]
    stands: tuple[tuple[float, float], ...]
    windows: int

    def passes(self, gate: float) -> bool:
        """Whether the noise is read: the gated offset right as often as `gate`, clearly more often
        than a blind drafter can be, and no more often than that with another's noise.
        """
        right, blind = self.accuracy[self.gated], self.ceiling
        if blind is None:
            return right >= gate and self.shuffled <= right - MARGIN
        return right >= gate and right >= blind + MARGIN and self.shuffled <= blind + MARGIN


@torch.no_grad()
def measure(
    backbone: Backbone,
    weights: PtpWeights,
    texts: Sequence[Text],
    sampling: Sampling,
    length: int,
    seed: int = 0,
) -> Quality:
    """Measures windows of `length` rows in every text."""
    generator = torch.Generator().manual_seed(seed)
    # C-PTP's last row cannot be judged (see `_judged`), so there is one more.
    asked = length + int(weights.config.picks_with_noise)
    right: list[Tensor] = []
    sure: list[Tensor] = []
    counts: list[Tensor] = []
    shuffled, ceiling, asked_there = 0.0, 0.0, 0
    gated = int(weights.head is not None)
    free = weights.config.replaced * gated  # rows that the verifier's own token replaces
    for start in range(0, len(texts), ROWS):
        found = read(backbone, texts[start : start + ROWS], sampling)
        windows = choose_windows(found, COUNT, asked, generator)
        shares = torch.rand(windows.place.shape, generator=generator, dtype=torch.float64)
        noise = noise_of(found, windows, shares)
        logits = predict(backbone, weights, found, windows, noise).logits
        hit, confidence, counted = _judged(weights, found, windows, logits, sampling, noise)
        hit[:, :free] = True
        right.append(hit[:, :length])
        sure.append(confidence[:, :length])
        counts.append(counted[:, :length])
        other = torch.rand(noise.shape, generator=generator, dtype=noise.dtype).to(noise.device)
        logits = predict(backbone, weights, found, windows, other).logits
        # C-PTP picks with the token's own noise as ever; what its rows have read is another draw's.
        missed, _, _ = _judged(weights, found, windows, logits, sampling, noise)
        there = counted[:, gated] if length > gated else counted[:, 0] & False
        shuffled += float((missed[:, min(gated, length - 1)] & there).sum())
        roots = windows.place.view(-1, windows.length)[:, 0].view(len(found.ids), -1)
        at = (roots + gated).clamp(max=found.ids.shape[1] - 1)
        best = 1 - found.doubt.gather(1, at)
        ceiling += float((best.flatten() * there).sum())
        asked_there += int(there.sum())
    hits, confidences, known = torch.cat(right), torch.cat(sure), torch.cat(counts)
    accuracy = (hits & known).sum(0) / known.sum(0).clamp(min=1)
    replaced = weights.config.replaced
    whole = known.all(1)
    lead = (hits & known)[:, free:].long().cumprod(1).sum(1).double()
    return Quality(
        accuracy=tuple(round(float(value), 4) for value in accuracy),
        gated=min(gated, length - 1),
        shuffled=round(shuffled / max(1, asked_there), 4),
        ceiling=None
        if weights.config.picks_with_noise
        else round(ceiling / max(1, asked_there), 4),
        leading=round(float(lead[whole].mean()) if bool(whole.any()) else 0.0, 4),
        gains=_gains(hits[whole], replaced),
        stands=_calibration(hits, confidences, known, replaced),
        windows=int(known[:, 0].sum()),
    )


def _judged(
    weights: PtpWeights,
    found: Read,
    windows: Windows,
    logits: Tensor,
    sampling: Sampling,
    noise: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Right or not, the confidence, and counted or not, of each row: (windows, L) each.

    C-PTP picks its token with the noise of the token after the one whose noise the row read: the
    next row's, so that its last offset is not judged.
    """
    shape, config = (-1, windows.length), weights.config
    wanted = targets(found, windows, shift=1 - config.replaced)
    u = config.own_noise(noise.view(shape)).view_as(noise)
    drafts = config.drafts(logits, u, sampling)
    counted = wanted.counted.view(shape)
    if config.picks_with_noise:  # the token's noise must be known too: it is that of the next row
        following = windows.counted.view(shape).roll(-1, dims=1)
        following[:, -1] = False
        counted = counted & following
    return (drafts.tokens == wanted.tokens).view(shape), drafts.sure.view(shape), counted


def _gains(hits: Tensor, replaced: int) -> tuple[float, ...]:
    """H(b), b = 1 … L, of whole windows (N, L): right tokens in a row behind the replaced ones."""
    if not len(hits):
        return ()
    useful = hits[:, replaced:].long().cumprod(1).double().mean(0).cumsum(0).tolist()
    return tuple(round(value, 4) for value in [0.0] * replaced + useful)


def _calibration(
    hits: Tensor, sure: Tensor, known: Tensor, replaced: int
) -> tuple[tuple[float, float], ...]:
    """Confidence against the share that stood, of rows before which all useful ones were right."""
    useful, counted = hits[:, replaced:], known[:, replaced:]
    before = torch.ones_like(useful)
    before[:, 1:] = useful[:, :-1].long().cumprod(1).bool()
    asked = before & counted
    confidence = sure[:, replaced:][asked].double().cpu().numpy()
    stood = useful[asked].double().cpu().numpy()
    if len(confidence) < 10 * BINS:
        return ()
    edges = np.quantile(confidence, np.linspace(0, 1, BINS + 1))
    places = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, BINS - 1)
    pairs = []
    highest = 0.0
    for place in range(BINS):
        mine = places == place
        if mine.any():
            highest = max(highest, float(stood[mine].mean()))
            pairs.append((round(float(confidence[mine].mean()), 4), round(highest, 4)))
    return tuple(dict(pairs).items())
