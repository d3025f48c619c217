"""Why a region is wrong: hypotheses that compete for the energy of its local residual.

Each hypothesis predicts the device's tensor from the local reference (gain, offset, clipping, coarse step,
permutation, transpose), or says where the error is (rows, columns, channels). It scores the share of the residual's
energy, above the healthy noise, that it accounts for; a place also pays for the share of the tensor that it covers.
Less than 40 % is "unknown": no cause is better than a wrong one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.assignment import best_assignment
from tidegauge.compare.places import MOVED, PLACES
from tidegauge.compare.residual import Cause, Evidence, evidence
from tidegauge.compare.types import CauseName

Array = NDArray[Any]
Float = NDArray[np.float32]

__all__ = ["Cause", "Evidence", "evidence", "find_cause", "find_clipping"]

EXPLAINED = 0.4
#: A prediction of values says more than a place: it wins unless a place explains this much more.
_PLACE_MARGIN = 0.08
#: Rounding to another side than the nearest code is named where it explains so much, since it is so plain.
_PLAIN = 0.9
#: Of codes off by one for no reason, three of four are further off than this; this share must be.
_WHOLE, _MOSTLY = 0.75, 0.5
#: A code off by one whose value was near the middle of two may look off by two: in so few cases.
_TIED = 0.02
#: A gain nearer to 1 than this moves most codes by none or one.
_SMALL = 0.1


def find_cause(case: Evidence) -> Cause:
    """The best-supported cause of a faulty tensor."""
    plain = _plain(case)
    if plain is not None:
        return plain
    side = _other_side(case)
    if side is not None:
        return side
    # A fault behind a healthy layer acts on rounded values, one inside it on those before rounding.
    cases = [case, _rounded(case)] if case.exact else [case]
    values = [found for each in cases for test in (*_VALUES, *MOVED) if (found := test(each)) is not None]
    places = [found for test in PLACES if (found := test(case)) is not None]
    value = max(values, key=_score, default=None)
    place = max(places, key=_score, default=None)
    if value is None or (place is not None and _score(place) > _score(value) + _PLACE_MARGIN):
        value = place
    if value is None or _score(value) < EXPLAINED:
        return _scattered(case) or Cause("unknown", None, "no simple pattern accounts for the error")
    return value


def find_clipping(case: Evidence) -> Cause:
    """The cause of a tensor whose values, though computed right, don't fit its code range."""
    low, high = case.encoding.value_range
    above = float(np.square(np.maximum(case.local - high, 0), dtype=np.float64).sum())
    below = float(np.square(np.maximum(low - case.local, 0), dtype=np.float64).sum())
    words = []
    if above > 0.01 * below:
        share, peak = float((case.local > high).mean()), float(case.local.max())
        words.append(f"{share:.1%} of the values are above {high:.4g}, the most it can hold (up to {peak:.4g})")
    if below > 0.01 * above:
        share, peak = float((case.local < low).mean()), float(case.local.min())
        words.append(f"{share:.1%} of the values are below {low:.4g}, the least it can hold (down to {peak:.4g})")
    name: CauseName = "saturation_high" if above >= below else "saturation_low"
    return Cause(name, case.explained(case.clipped(case.local)), " and ".join(words))


def _score(cause: Cause) -> float:
    return cause.explained if cause.explained is not None else 0.0


def _plain(case: Evidence) -> Cause | None:
    bad = int(case.device.size - np.isfinite(case.device).sum())
    if bad:
        return Cause("non_finite", None, f"{bad} of {case.device.size} values are NaN or infinite", float(bad))
    low, high = float(case.device.min()), float(case.device.max())
    if low == high and float(case.local.min()) != float(case.local.max()):
        if low == 0.0:
            return Cause("all_zero", 1.0, f"all {case.device.size} values are zero", 0.0)
        if case.encoding.integer and int(case.codes.flat[0]) in case.encoding.code_range:
            top = int(case.codes.flat[0]) == case.encoding.code_range[1]
            where = "top" if top else "bottom"
            return Cause(
                "saturation_high" if top else "saturation_low", 1.0, f"all values sit at the {where}, {low:.4g}", low
            )
        return Cause("constant", 1.0, f"all {case.device.size} values are {low:.6g}", low)
    return None


def _gain(case: Evidence) -> Cause | None:
    inner = _inside(case)
    local, device = case.local[inner].astype(np.float64), case.device[inner].astype(np.float64)
    energy = float(np.dot(local, local))
    if local.size < 3 or energy <= local.size * case.floor:
        return None
    gain = float(np.dot(local, device) / energy)
    explained = case.explained(case.clipped(case.local * np.float32(gain)))
    if case.exact and 0.0 < abs(gain - 1) < _SMALL:
        explained, gain = _searched(case, explained, gain)
    return Cause("gain", explained, f"gain {gain:.4g}{_known_gain(gain)}", gain)


def _searched(case: Evidence, explained: float, gain: float) -> tuple[float, float]:
    """A small gain changes few codes, and least squares on codes misjudge it: the best of gains around theirs, and
    around the one that first moves a code as small as the smallest that moved."""
    best = (explained, gain)
    starts = [gain]
    moved = np.abs(case.local[case.residual != 0]) * case.encoding.scale
    if moved.size:
        first = float(np.quantile(moved, 0.02))
        starts += [1 + sign * 0.5 / max(first, 1.0) for sign in (1, -1)]
    for start in starts:
        for width in (0.3, 0.1, 0.03):
            around = (best[1] if best[0] > explained else start) - 1
            for k in range(-3, 4):
                other = 1 + around * (1 + k * width)
                best = max(best, (case.explained(case.clipped(case.local * np.float32(other))), other))
    return best


def _known_gain(gain: float) -> str:
    for number, words in ((255.0, "×255"), (1 / 255.0, "÷255"), (256.0, "×256"), (1 / 256.0, "÷256")):
        if abs(gain / number - 1) < 0.001:
            return f" ({words})"
    return " (the sign is flipped)" if gain < 0 else ""


def _offset(case: Evidence) -> Cause | None:
    inner = _inside(case)
    if inner.sum() < 3:
        return None
    error = case.error[inner]
    offsets = {float(np.median(error)), float(error.mean(dtype=np.float64))} - {0.0}
    if not offsets:
        return None
    explained, offset = max((case.explained(case.clipped(case.local + np.float32(by))), by) for by in offsets)
    by = offset / case.encoding.step if case.encoding.integer else 0.0
    steps = f" ({by:+.0f} steps)" if abs(by) >= 100 else f" ({by:+.3g} steps)" if by else ""
    return Cause("offset", explained, f"offset {offset:+.4g}{steps}", offset)


def _inside(case: Evidence) -> NDArray[np.bool_]:
    """Where the device's code is not at an end of its range: clipping must not bend a fit."""
    if not case.encoding.integer:
        return np.ones(case.codes.shape, bool)
    low, high = int(case.codes.min()), int(case.codes.max())
    ends = case.encoding.code_range
    inner = np.ones(case.codes.shape, bool)
    if low == ends[0]:
        inner &= case.codes != low
    if high == ends[1]:
        inner &= case.codes != high
    return inner


def _saturation(case: Evidence) -> Cause | None:
    """All values past a bound sit at the device's highest (or lowest) value: cut off there, or thrown there."""
    high, low = float(case.device.max()), float(case.device.min())
    top, above = _thrown(case, case.device == high, high, 1)
    bottom, below = _thrown(case, case.device == low, low, -1)
    if above <= 0 and below <= 0:
        return None
    both = case.explained(np.clip(case.local, low, high)) if above > 0 and below > 0 else 0.0
    name: CauseName = "saturation_high" if above >= below else "saturation_low"
    share, end = (top, high) if above >= below else (bottom, low)
    where = "top" if above >= below else "bottom"
    detail = f"{share:.1%} of the values sit at the {where}, {end:.4g}"
    if both > max(above, below):
        detail = f"{top:.1%} of the values sit at the top, {high:.4g}, and {bottom:.1%} at the bottom, {low:.4g}"
    return Cause(name, max(above, below, both), detail, end)


def _thrown(case: Evidence, at_end: NDArray[np.bool_], end: float, sign: int) -> tuple[float, float]:
    """The share of values at an end, and how much of the error the best bound explains."""
    moved = at_end & (np.abs(case.error) > 2 * np.sqrt(max(case.floor, 0.0)))
    if moved.sum() < (1 if case.exact else 3):
        return 0.0, 0.0
    signed = sign * case.local
    bounds = {float(np.quantile(signed[moved], q)) for q in (0.0, 0.01, 0.05)}
    best = max(case.explained(np.where(signed >= bound, np.float32(end), case.local)) for bound in bounds)
    return float(at_end.mean()), best


#: Codes of a healthy layer lie on a coarser grid by chance with a probability of 2 to the minus this. Only layers that
#: are found wrong are asked, and the grid must explain their error besides: ten logits without their two lowest bits
#: are enough.
_NO_CHANCE = 16


def _coarse_step(case: Evidence) -> Cause | None:
    if not case.encoding.integer:
        return None
    used, counts = np.unique(case.codes, return_counts=True)
    if used.size < 2:
        return None
    used = used.astype(np.int64)
    base = int(used[np.argmax(counts)])
    ends = case.encoding.code_range
    free = (used > ends[0]) & (used < ends[1])  # codes clipped to an end may be off the grid
    factor = int(np.gcd.reduce(np.abs(used[free] - base))) if free.any() else 0
    others = case.codes.size - int(counts.max())
    if factor < 2 or others * np.log2(factor) < _NO_CHANCE:
        return None
    grid = factor * case.encoding.step
    origin = (base - case.encoding.zero_point) / case.encoding.scale
    # The bits may be lost before the result is rounded, or after it: `find_cause` tries an exact case both ways itself.
    explained = max(
        case.explained(case.clipped(whole((each.local - origin) / grid) * grid + origin))
        for each in ((case,) if case.exact else (case, _rounded(case)))
        for whole in (np.rint, np.floor)
    )
    detail = f"only one code in {factor} is used ({used.size} different codes)"
    return Cause("coarse_step", explained, detail, float(factor))


def _permutation(case: Evidence) -> Cause | None:
    channels = case.device.shape[0]
    if channels < 2 or channels > 1024:
        return None
    order = _match_channels(case)
    moved = np.flatnonzero(order != np.arange(channels))
    if moved.size == 0:
        return None
    explained = case.explained(case.clipped(case.local[order]))
    pairs = ", ".join(f"{c}←{order[c]}" for c in moved[:6]) + (", …" if moved.size > 6 else "")
    return Cause("channel_permutation", explained, f"{moved.size} of {channels} channels swapped ({pairs})")


def _match_channels(case: Evidence) -> NDArray[np.intp]:
    """For each device channel the reference channel that it holds: least squares over all assignments."""
    channels = case.device.shape[0]
    device = case.device.reshape(channels, -1)
    local = case.local.reshape(channels, -1)
    stride = max(1, device.shape[1] // 8192)
    device, local = device[:, ::stride].astype(np.float64), local[:, ::stride].astype(np.float64)
    cost = (device**2).sum(1)[:, None] + (local**2).sum(1)[None, :] - 2 * device @ local.T
    cost[np.arange(channels), np.arange(channels)] -= 1e-9 * float(np.abs(cost).max())  # equal channels stay in place
    return best_assignment(cost)


def _transpose(case: Evidence) -> Cause | None:
    channels, height, width = case.device.shape
    if height < 2 or width < 2:
        return None
    turned = case.local.transpose(0, 2, 1)
    prediction = turned if height == width else np.ascontiguousarray(turned).reshape(channels, height, width)
    return Cause("transpose_hw", case.explained(prediction), "height and width are swapped")


def _rounded(case: Evidence) -> Evidence:
    """The same with the local values as healthy codes hold them."""
    held = case.encoding.values(case.encoding.codes(case.local))
    return replace(case, local=held)


def _other_side(case: Evidence) -> Cause | None:
    """Rounded down or up instead of to the nearest code."""
    if not case.exact:
        return None
    for rint, words in ((np.floor, "down"), (np.ceil, "up"), (np.trunc, "towards zero")):
        values = case.local.astype(np.float64) * case.encoding.scale
        prediction = (rint(values) / case.encoding.scale).astype(np.float32)
        explained = case.explained(prediction)
        if explained > _PLAIN:
            return Cause("rounding", explained, f"values are rounded {words} instead of to the nearest code")
    return None


def _scattered(case: Evidence) -> Cause | None:
    """Codes off by one here and there, wherever the values lie between two codes.

    Codes off only where a value is near the middle of two come from a shift by less than a code: no rounding.
    """
    if not case.exact:
        return None
    wrong = case.residual != 0
    apart = np.abs(case.residual[wrong]) * case.encoding.scale
    if not apart.size or float((apart > 1.5).mean()) > _TIED:
        return None
    exact = np.clip(
        case.local[wrong].astype(np.float64) * case.encoding.scale + case.encoding.zero_point, *case.encoding.code_range
    )
    if float((np.abs(case.codes[wrong] - exact) > _WHOLE).mean()) < _MOSTLY:
        return None
    return Cause("rounding", 1.0, f"{wrong.mean():.2%} of the codes are off by one, spread over the tensor")


_VALUES = (_gain, _offset, _saturation, _coarse_step, _permutation, _transpose)
