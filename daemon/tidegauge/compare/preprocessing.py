"""Why the input tensor on the device is not the recorded one: what pre-processing does wrong, by name.

The device's input is compared with the recorded one put into other orders (channels, layout, mirrored, moved) and, in
each order, scaled and shifted as a normalisation would. The simplest of these that accounts for nearly all of the
difference is named; where none does, nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare.assignment import best_assignment
from tidegauge.compare.residual import Cause, Evidence
from tidegauge.compare.types import CauseName

Float = NDArray[np.float32]
Real = NDArray[np.float64]

#: A cause must account for so much of the difference, and a simpler one wins unless it accounts for this much less.
_PLAIN, _SIMPLER = 0.9, 0.02
#: Factors that pre-processing is known to apply twice or to leave out.
_FACTORS = (
    (255.0, "×255"),
    (1 / 255.0, "÷255"),
    (256.0, "×256"),
    (1 / 256.0, "÷256"),
    (128.0, "×128"),
    (127.5, "×127.5"),
)
#: A factor is one of these, or one common to all channels, to within this share.
_SAME = 0.02
#: Of up to so many channels every order is tried; of more, the one that least squares assign.
_FEW_CHANNELS = 4
#: A picture that was moved must still show this share of itself.
_OVERLAP = 0.4
#: Two pictures may have some likeness, in light and in what they show; from here on they are taken for one.
_ALIKE = 0.6
#: Fewer values than this within the code range fit no line.
_LEAST = 16


@dataclass(frozen=True)
class _Order:
    """The recorded tensor in another order. `valid`: where it tells anything of the device's tensor."""

    name: CauseName | None
    detail: str
    values: Float
    valid: NDArray[np.bool_] | None = None


def find_preprocessing(case: Evidence, recorded: Float) -> Cause | None:
    """The cause, of an input tensor `case` as the device holds it; None where no known one explains it.

    `recorded`: the recorded tensor, not clipped, with the shape of `case.device`.
    """
    found: list[tuple[int, Cause]] = []
    for rank, order in enumerate(_orders(case, recorded)):
        inside = _inside(case) if order.valid is None else _inside(case) & order.valid
        for steps, cause in _scaled(case, order, inside):
            found.append((2 * steps + (order.name is not None) * (3 + min(rank, 1)), cause))
    best = max((_share(cause) for _, cause in found), default=0.0)
    if best < _PLAIN:
        return None
    near = [(cost, -_share(cause), cause) for cost, cause in found if _share(cause) >= max(_PLAIN, best - _SIMPLER)]
    return min(near, key=lambda item: item[:2])[2]


def _share(cause: Cause) -> float:
    return cause.explained if cause.explained is not None else 0.0


def _inside(case: Evidence) -> NDArray[np.bool_]:
    """Where the device's value is none of an end of the code range, at which others may have been cut off."""
    if not case.encoding.integer:
        return np.isfinite(case.device)
    low, high = case.encoding.code_range
    return (case.codes > low) & (case.codes < high)


# --- in which order ------------------------------------------------------------------------------------------------


def _orders(case: Evidence, recorded: Float) -> Iterator[_Order]:
    yield _Order(None, "", recorded)
    yield from _channel_orders(case, recorded)
    channels, height, width = recorded.shape
    if channels > 1 and height * width > 1:
        text = "the bytes are laid out with the channels last (NHWC) where the model wants them first (NCHW)"
        yield _Order("layout", text, np.ascontiguousarray(recorded.transpose(1, 2, 0)).reshape(recorded.shape))
        text = "the bytes are laid out with the channels first (NCHW) where the model wants them last (NHWC)"
        first = recorded.reshape(height, width, channels).transpose(2, 0, 1)
        yield _Order("layout", text, np.ascontiguousarray(first))
    if min(height, width) > 1:
        turned = np.ascontiguousarray(recorded.transpose(0, 2, 1))
        yield _Order("transpose_hw", "height and width are swapped", turned.reshape(recorded.shape))
        yield _Order("flip", "the picture is mirrored, left for right", np.ascontiguousarray(recorded[:, :, ::-1]))
        yield _Order("flip", "the picture is upside down", np.ascontiguousarray(recorded[:, ::-1]))
        yield _Order("flip", "the picture is turned by 180 degrees", np.ascontiguousarray(recorded[:, ::-1, ::-1]))
        yield from _moved(case, recorded)
        yield from _boxed(case, recorded)
        yield from _barred(case, recorded)


def _channel_orders(case: Evidence, recorded: Float) -> Iterator[_Order]:
    channels = recorded.shape[0]
    if channels < 2 or channels > 64:
        return
    if channels <= _FEW_CHANNELS:
        tried = [order for order in permutations(range(channels)) if order != tuple(range(channels))]
    else:
        likeness = _likeness(case.device.reshape(channels, -1), recorded.reshape(channels, -1))
        tried = [tuple(int(k) for k in best_assignment(-likeness))]
    for order in tried:
        moved = [f"{c}←{k}" for c, k in enumerate(order) if c != k]
        if moved:
            names = " (red and blue swapped: RGB for BGR)" if order == (2, 1, 0) else ""
            text = f"the channels are in another order: {', '.join(moved[:6])}{', …' if len(moved) > 6 else ''}{names}"
            yield _Order("channel_permutation", text, recorded[list(order)])


def _likeness(device: Float, recorded: Float) -> Real:
    """Correlations of each device channel with each recorded one."""
    stride = max(1, device.shape[1] // 8192)
    centred = []
    for values in (device[:, ::stride], recorded[:, ::stride]):
        rows = values.astype(np.float64) - values.mean(axis=1, dtype=np.float64, keepdims=True)
        centred.append(rows / np.maximum(np.sqrt((rows**2).sum(axis=1, keepdims=True)), 1e-30))
    found: Real = centred[0] @ centred[1].T
    return found


def _moved(case: Evidence, recorded: Float) -> Iterator[_Order]:
    """The picture moved by whole rows and columns, as where a letter-box has its bars elsewhere."""
    _, height, width = recorded.shape
    spectrum = np.zeros((height, width), np.complex128)
    for device, own in zip(case.device, recorded, strict=True):
        a, b = np.fft.fft2(device - device.mean()), np.fft.fft2(own - own.mean())
        cross = a * np.conj(b)
        spectrum += cross / np.maximum(np.abs(cross), 1e-12)
    for size in (spectrum, None):
        peaks = np.fft.ifft2(size).real if size is not None else _plain_correlation(case.device, recorded)
        dy, dx = (int(k) for k in np.unravel_index(int(np.argmax(peaks)), peaks.shape))
        dy, dx = dy - height if dy > height // 2 else dy, dx - width if dx > width // 2 else dx
        if (dy, dx) != (0, 0) and (height - abs(dy)) * (width - abs(dx)) >= _OVERLAP * height * width:
            yield _shifted(recorded, dy, dx)


def _plain_correlation(device: Float, recorded: Float) -> Real:
    total = np.zeros(device.shape[1:], np.float64)
    for theirs, own in zip(device, recorded, strict=True):
        total += np.fft.ifft2(np.fft.fft2(theirs - theirs.mean()) * np.conj(np.fft.fft2(own - own.mean()))).real
    return total


def _shifted(recorded: Float, dy: int, dx: int) -> _Order:
    _, height, width = recorded.shape
    valid = np.zeros(recorded.shape, bool)
    valid[:, max(dy, 0) : height + min(dy, 0), max(dx, 0) : width + min(dx, 0)] = True
    ways = [(dy, "rows", "down" if dy > 0 else "up"), (dx, "columns", "right" if dx > 0 else "left")]
    words = " and ".join(f"{abs(by)} {unit} {way}" for by, unit, way in ways if by)
    text = f"the picture lies {words} of where it was recorded, as a letter-box with its bars elsewhere"
    return _Order("shift", text, np.roll(recorded, (dy, dx), (1, 2)), valid)


def _boxed(case: Evidence, recorded: Float) -> Iterator[_Order]:
    """The picture at another size within its bars: a letter-box by another scale, with bars on other sides, or none."""
    step = case.encoding.step if case.encoding.integer else 0.0
    theirs, own = _content(case.device, step), _content(recorded, step)
    if theirs is None or own is None or theirs == own:
        return
    (top, bottom), (left, right) = theirs
    values = np.empty_like(recorded)
    # What the bars hold is read from the device: it is one number a channel, and no part of the picture.
    corner = (0 if top else -1, 0 if left else -1)
    values[...] = case.device[:, corner[0], corner[1]][:, None, None]
    inner = recorded[:, slice(*own[0]), slice(*own[1])]
    values[:, top:bottom, left:right] = _resized(inner, bottom - top, right - left)
    words = [f"rows {box[0][0]} to {box[0][1]} and columns {box[1][0]} to {box[1][1]}" for box in (theirs, own)]
    text = f"the picture fills {words[0]}, where it was recorded in {words[1]}: a letter-box of another scale"
    yield _Order("shift", text, values)


def _barred(case: Evidence, recorded: Float) -> Iterator[_Order]:
    """The picture where it was recorded, with another value in the bars around it."""
    step = case.encoding.step if case.encoding.integer else 0.0
    own = _content(recorded, step)
    if own is None or own == ((0, recorded.shape[1]), (0, recorded.shape[2])):
        return
    bars = np.ones(recorded.shape[1:], bool)
    bars[slice(*own[0]), slice(*own[1])] = False
    held, meant = (np.median(each[:, bars].astype(np.float64), axis=1) for each in (case.device, recorded))
    values = recorded.copy()
    values[:, bars] = held.astype(np.float32)[:, None]
    text = f"the bars of the letter-box hold {_list(held)} where {_list(meant)} was recorded"
    yield _Order("padding_value", text, values)


def _content(values: Float, step: float) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """First and last (excluded) row and column of what lies between bars of one value a channel; None for bars only."""
    if not np.isfinite(values).all():
        return None
    flat = max(2 * step, 1e-4 * float(np.ptp(values)))
    ends = []
    for axis in (2, 1):
        plain = (np.ptp(values, axis=axis) <= flat).all(axis=0)
        if plain.all():
            return None
        first, last = int(np.argmin(plain)), plain.size - int(np.argmin(plain[::-1]))
        ends.append((first, last))
        values = values[:, first:last] if axis == 2 else values
    return ends[0], ends[1]


def _resized(values: Float, height: int, width: int) -> Float:
    """Linear between neighbours; where it shrinks, over all that a new value stands for."""
    return np.asarray(_lines_to(height, values.shape[1]) @ values @ _lines_to(width, values.shape[2]).T, np.float32)


def _lines_to(new: int, old: int) -> Float:
    """Weights of `old` values in each of `new` ones, a triangle about its centre."""
    scale = old / new
    reach = max(scale, 1.0)
    centres = (np.arange(new) + 0.5) * scale - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(old)[None, :] - centres[:, None]) / reach)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)


# --- or another picture ------------------------------------------------------------------------------------------


def other_picture(case: Evidence) -> Cause | None:
    """That the device holds another picture: nowhere more like the recorded one than two pictures are to each other.

    None where it is: then only a part of the input differs, or all of it a little.
    """
    device, own = (values.reshape(-1).astype(np.float64) for values in (case.device, case.local))
    if not (np.isfinite(device).all() and np.isfinite(own).all()) or np.ptp(device) == 0 or np.ptp(own) == 0:
        return None
    alike = float(np.corrcoef(device, own)[0, 1])
    if abs(alike) >= _ALIKE or case.device.size < _LEAST:
        return None
    text = f"another picture was fed than the recorded one (their values correlate by {alike:.2f})"
    return Cause("other_input", None, text, alike)


# --- with which scale ----------------------------------------------------------------------------------------------


def _scaled(case: Evidence, order: _Order, inside: NDArray[np.bool_]) -> Iterator[tuple[int, Cause]]:
    """The recorded values as they are, times a factor, or normalised; with the number of steps that this takes."""
    if order.name is not None:
        yield 0, Cause(order.name, _explained(case, order, order.values), order.detail)
    lead = f"{order.detail}, and " if order.detail else ""
    for factor, words in _FACTORS if order.valid is None else ():
        name = order.name or "gain"
        explained = _explained(case, order, order.values * np.float32(factor))
        yield 1, Cause(name, explained, f"{lead}the values are those recorded times {factor:.4g} ({words})", factor)
    lines = _lines(case, order, inside)
    if lines is None:
        return
    gains, offsets = lines
    fitted = order.values * gains[:, None, None].astype(np.float32) + offsets[:, None, None].astype(np.float32)
    gain = float(gains.mean())
    explained = _explained(case, order, fitted)
    offset = float(offsets.mean())
    if float(np.abs(gains - 1).max()) < _SAME and float(np.ptp(offsets)) < _nothing(case):
        text = f"{lead}the values are those recorded plus {offset:.4g}"
        yield 1, Cause(order.name or "offset", explained, text, offset)
    elif float(np.abs(gains / gain - 1).max()) < _SAME and float(np.abs(offsets).max()) < _nothing(case):
        yield 1, Cause(order.name or "gain", explained, f"{lead}the values are those recorded times {gain:.4g}", gain)
    else:
        yield 2, Cause(order.name or "normalisation", explained, lead + _normalised(gains, offsets))


def _nothing(case: Evidence) -> float:
    """An offset that rounding alone may give a fitted line."""
    low, high = float(case.device.min()), float(case.device.max())
    return max(2 * case.encoding.step if case.encoding.integer else 0.0, 1e-3 * (high - low))


def _explained(case: Evidence, order: _Order, prediction: Float) -> float:
    """The share of the difference that a prediction accounts for; what it can't tell counts as it was."""
    if order.valid is None:
        return case.explained(case.clipped(prediction))
    left = np.square(case.device - case.clipped(prediction), dtype=np.float64)[order.valid].sum()
    whole = np.square(case.error, dtype=np.float64)[order.valid].sum()
    noise = case.floor * float(order.valid.sum())
    return float(1.0 - max(0.0, left - noise) / max(whole - noise, 1e-300))


def _lines(case: Evidence, order: _Order, inside: NDArray[np.bool_]) -> tuple[Real, Real] | None:
    """Gain and offset of each channel by least squares; None where a channel has too few values within the range."""
    gains, offsets = [], []
    for device, own, mask in zip(case.device, order.values, inside, strict=True):
        x, y = own[mask].astype(np.float64), device[mask].astype(np.float64)
        if x.size < _LEAST or float(x.std()) == 0:
            return None
        gain = float(((x - x.mean()) * (y - y.mean())).mean() / x.var())
        if gain <= 0:
            return None
        gains.append(gain)
        offsets.append(float(y.mean() - gain * x.mean()))
    return np.asarray(gains), np.asarray(offsets)


def _normalised(gains: Real, offsets: Real) -> str:
    """A normalisation in words: the device's is one more than the recorded one's, or one less."""
    if float(gains.mean()) >= 1.0:
        mean, deviation = -offsets / gains, 1.0 / gains
        text = "the values are (recorded − mean) / std with mean {} and std {}: normalised once more than recorded"
        return text.format(_list(mean), _list(deviation))
    text = "the values are recorded × {} + {}: normalised once less than recorded, or by other numbers"
    return text.format(_list(gains), _list(offsets))


def _list(values: Real) -> str:
    if float(np.ptp(values)) <= _SAME * max(float(np.abs(values).max()), 1e-9):
        return f"{float(values.mean()):.3g}"
    return ", ".join(f"{value:.3g}" for value in values[:4]) + (", …" if values.size > 4 else "")
