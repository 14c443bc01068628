"""Noise rows in training: windows of known tokens as noise, packed under one mask. PTP §4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as fn
from transformers import DynamicCache

from mtp.models.backbone import Backbone
from mtp.models.draft_vocabulary import OUTSIDE
from mtp.ptp.head import Behind, behind
from mtp.ptp.intervals import noise_inside, training_shares
from mtp.ptp.weights import PtpWeights
from mtp.sampling import Sampling, final_probabilities
from mtp.train.loop import in_products
from mtp.train.ptp_read import Read, layers_of


@dataclass(frozen=True)
class Windows:
    """Windows of L noise rows, N in each of B texts, one after another.

    place (B, N · L): row j of a window that starts behind root r reads the noise of token
    r + 1 + j at place r + j. mask (B, 1, N · L, S + N · L): a row sees the text up to its window's
    root and its own window up to itself. counted (B, N · L): rows whose noise is known.
    """

    place: Tensor
    mask: Tensor
    counted: Tensor
    length: int


def choose_windows(
    found: Read, count: int, length: int, generator: torch.Generator, easy: float = 1.0
) -> Windows:
    """`count` random windows in each text's answer; a window ends early with its text.

    A window starts at a place with a chance in proportion to `easy` + (1 − `easy`) times the base's
    doubt there: where one token is certain, there is no noise to read.
    """
    chance = found.places.cpu() * (easy + (1 - easy) * found.doubt.cpu().float())
    chance[chance.sum(1) == 0] = 1.0  # an answer without a known place; its rows do not count
    roots = torch.multinomial(chance, count, replacement=True, generator=generator)  # (B, N)
    return windows_behind(found, roots, length)


def windows_behind(found: Read, roots: Tensor, length: int) -> Windows:
    """A window of `length` rows behind each root (B, N) on the CPU."""
    batch, width = found.ids.shape
    count = roots.shape[1]
    reach = torch.arange(length)
    place = roots[:, :, None] + reach  # (B, N, L)
    known = found.places.cpu().gather(1, place.clamp(max=width - 1).flatten(1)).view_as(place)
    counted = (known & (place < width)).long().cumprod(dim=2).bool()
    sees_text = torch.arange(width) <= roots[:, :, None, None]  # (B, N, 1, S)
    sees_text = sees_text.expand(-1, -1, length, -1).flatten(1, 2)
    row = torch.arange(count * length)
    sees_rows = (row[:, None] // length == row // length) & (row[None] <= row[:, None])
    mask = torch.cat([sees_text, sees_rows.expand(batch, -1, -1)], dim=2)
    device = found.ids.device
    return Windows(
        place.clamp(max=width - 1).flatten(1).to(device),
        mask[:, None].to(device),
        counted.flatten(1).to(device),
        length,
    )


def noise_of(found: Read, windows: Windows, shares: Tensor) -> Tensor:
    """u (B, N · L) of the windows' tokens, each at a share (B, N · L) of its interval."""
    low, high = (end.gather(1, windows.place) for end in (found.low, found.high))
    return noise_inside(low, high, shares.to(low.device))


def draw_windows(
    found: Read, rows: int, length: int, generator: torch.Generator, easy: float = 1.0
) -> tuple[Windows, Tensor]:
    """About `rows` noise rows of training in each text: windows as `choose_windows` gives, and
    their noise (B, N · L), at training's shares of its intervals.
    """
    windows = choose_windows(found, max(1, rows // length), length, generator, easy)
    shares = training_shares(windows.place.numel(), generator).view_as(windows.place)
    return windows, noise_of(found, windows, shares)


@dataclass(frozen=True)
class Predicted:
    """Logits (B, N · L, W) of noise rows: in training for the tokens drafted, else for all.

    logits: what the drafter says in the end. picked_from: the distributions its head picks from;
    below: what the rows say without the head. Both are None where there is no head.
    """

    logits: Tensor
    picked_from: Tensor | None = None
    below: Tensor | None = None


def predict(
    backbone: Backbone,
    weights: PtpWeights,
    found: Read,
    windows: Windows,
    noise: Tensor,
) -> Predicted:
    """What the noise rows foresee, as in decoding: where there is a head, its rows are given their
    own picks. Logits of all tokens. The cache of `found` is left as it was.
    """
    states = _states(backbone, weights, found, windows, noise)
    if weights.head is None:
        assert states is not None
        return Predicted(weights.below(backbone, states))
    text, rows, tokens, u = _branches(weights, found, windows, noise, states)
    logits = weights.foresee(backbone, rows, text, tokens[:, 0], u, weights.config.sampling)
    return Predicted(logits.view(*noise.shape, -1))


def predict_forced(
    backbone: Backbone,
    weights: PtpWeights,
    found: Read,
    windows: Windows,
    noise: Tensor,
    products: str = "float32",
) -> Predicted:
    """What the noise rows foresee where the head's rows are given the text's own tokens before
    their places, as the noise of a drafter that is right so far picks them. Gradients reach all
    that is trained.

    products: precision of the matrix products, forward and backward. The cache of `found` is left
    as it was.
    """
    with in_products(products, backbone.device):
        states = _states(backbone, weights, found, windows, noise)
        below = None if states is None else weights.below(backbone, states).float()
        if weights.head is None:
            assert below is not None
            return Predicted(below)
        text, rows, tokens, u = _branches(weights, found, windows, noise, states)
        config = weights.config
        logits = weights.above(backbone, rows, text, windows.length)(config.given(tokens)).float()
    said = weights.told(logits, config.own_noise(u), config.sampling)
    shape = (*noise.shape, -1)
    return Predicted(said.view(shape), logits.view(shape), below)


def _states(
    backbone: Backbone, weights: PtpWeights, found: Read, windows: Windows, noise: Tensor
) -> Tensor | None:
    """Final states (B, N · L, D) of the noise rows; None without an adapter."""
    if weights.adapter is None:
        return None
    assert found.cache is not None
    cache = DynamicCache()
    for index, (keys, values) in enumerate(layers_of(found.cache)):
        cache.update(keys, values, index)
    with weights.adapter.gate(backbone.model, 0):
        out = backbone.model.base_model(
            inputs_embeds=weights.noise(noise).to(backbone.dtype),
            position_ids=windows.place,
            attention_mask=windows.mask,
            use_cache=True,
            **{backbone.cache_name: cache},
        )
    states: Tensor = out.last_hidden_state
    return states


def _branches(
    weights: PtpWeights, found: Read, windows: Windows, noise: Tensor, states: Tensor | None
) -> tuple[Behind, Tensor | None, Tensor, Tensor]:
    """What a head is given of each of B · N windows: the text behind it, its rows' states
    (B · N, L, D), the tokens (B · N, L) whose noise they read, and that noise.
    """
    length = windows.length
    roots = windows.place[:, ::length]  # (B, N)
    text = behind(found.states, found.ids, roots, weights.config.head_context)
    rows = None if states is None else states.reshape(-1, length, states.shape[2])
    tokens = targets(found, windows, shift=0).tokens
    return text, rows, tokens.view(-1, length), noise.view(-1, length)


@dataclass(frozen=True)
class Targets:
    """tokens (B, N · L): what each row is to foresee; counted: rows for which that is known."""

    tokens: Tensor
    counted: Tensor


def targets(found: Read, windows: Windows, shift: int) -> Targets:
    """shift 0 (O-PTP, independent): the token whose noise a row reads; 1 (C-PTP): the next one."""
    width = found.ids.shape[1]
    at = windows.place + 1 + shift
    inside = at < width
    tokens = found.ids.gather(1, at.clamp(max=width - 1))
    return Targets(tokens.clamp(min=0), windows.counted & inside & (tokens >= 0))


def loss_of(
    weights: PtpWeights,
    found: Read,
    windows: Windows,
    predicted: Predicted,
    discount: float,
    below: float,
) -> Tensor:
    """Mean loss of the counted rows, those at offset j weighed by discount^j; in nats.

    O-PTP and independent: cross-entropy with the token. C-PTP: KL divergence from the base's own
    final distribution to the row's, both at the training temperature. With a head, whatever it
    picks from is held to that distribution as well, and what rows say below it counts a share.
    """
    config = weights.config
    categorical = config.picks_with_noise

    def divergence(logits: Tensor, first: int = 0) -> Tensor:
        wanted = targets(found, windows, shift=1 - config.replaced)
        each = _divergence(found, windows, logits, weights)
        return _mean(each, wanted.counted, windows, discount, first)

    def own_loss(logits: Tensor, first: int = 0) -> Tensor:
        if categorical:
            return divergence(logits)
        return token_loss(found, windows, logits, discount, first, weights.index)

    if predicted.picked_from is None:
        return own_loss(predicted.logits)
    loss = divergence(predicted.picked_from, config.replaced)
    if config.variant == "o-ptp":
        loss = loss + own_loss(predicted.logits, config.replaced)
    if predicted.below is not None and below:
        loss = loss + below * own_loss(predicted.below)
    return loss


def token_loss(
    found: Read,
    windows: Windows,
    logits: Tensor,
    discount: float,
    first: int = 0,
    index: Callable[[Tensor], Tensor] = lambda token_ids: token_ids,
) -> Tensor:
    """Mean cross-entropy, in nats, of the tokens whose noise the rows read, from logits
    (B, N · L, W): rows from offset `first` on, those at offset j weighed by discount^j. index:
    where tokens stand among the W; those OUTSIDE are not counted.
    """
    told = targets(found, windows, shift=0)
    wanted = index(told.tokens)
    there = wanted != OUTSIDE
    each = fn.cross_entropy(
        logits.flatten(0, 1).float(), wanted.clamp(min=0).flatten(), reduction="none"
    )
    return _mean(each.view_as(wanted), told.counted & there, windows, discount, first)


def _mean(each: Tensor, counted: Tensor, windows: Windows, discount: float, first: int) -> Tensor:
    offset = torch.arange(each.shape[1], device=each.device) % windows.length
    weight = discount**offset * (offset >= first) * counted
    return (weight * each).sum() / weight.sum().clamp(min=1)


def _divergence(found: Read, windows: Windows, logits: Tensor, weights: PtpWeights) -> Tensor:
    """KL divergence (B, N · L) from the base's distribution of the token that a row foresees, among
    the tokens drafted, to that of logits (B, N · L, W), both at the training temperature; in nats.
    Neither is cut to top-k or top-p: that is done to what was learnt when a token is picked.
    """
    config = weights.config
    place = windows.place + (1 - config.replaced)
    inside = place.clamp(max=found.ids.shape[1] - 1)
    rows = None if weights.drafted is None else weights.drafted.rows
    whole = Sampling(config.temperature)
    p = final_probabilities(found.logits_at(inside, rows), whole, torch.float32)
    log_q = (logits.float() / (config.temperature or 1.0)).log_softmax(-1)
    return (torch.xlogy(p, p) - p * log_q).sum(-1)
