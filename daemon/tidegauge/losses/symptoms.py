"""Named symptoms that one output can show (DESIGN §6.2), each from a case that happened to a TIDL user.

No threshold is met by a healthy pair whose elements differ by one step, whatever the scene: dark, flat or bright. All
thresholds are in steps of the profile or in shares, so they fit every output.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidegauge.losses.elements import Array, ShapeMismatch, all_finite, flat, flat_pair
from tidegauge.losses.image import planes
from tidegauge.losses.rearranged import rearrangement
from tidegauge.losses.structure import Floats, Line, assign_channels, correlation, fit_line, has_band, sample_indices
from tidegauge.profile import Output

#: Black: this share of the device's elements is within two steps of `low` …
BLACK_SHARE, BLACK_STEPS = 0.995, 2
#: … while more of the reference than the rest could hide is beyond four steps (noise of one step can't bridge two).
SCENE_SHARE, SCENE_STEPS = 0.05, 4
#: Constant: the device varies by one step at most, the reference's inner 90 % by more than any noise.
FLAT_STEPS, VARIED_STEPS = 1, 8
#: Scale: calibration errors stay within a few per cent; a wrong layer scale is off by a power of two, or by 255.
LEAST_GAIN, MOST_GAIN = 0.8, 1.25
#: … and the answer is otherwise right: below this correlation it is another fault.
SCALE_CORRELATION = 0.95
#: Offset: the middle half of the differences is beyond four steps on one side: twice what rounding adds up to.
OFFSET_STEPS = 4
#: Saturation: the share at an end, less the reference's share near that end, is a patch that an eye sees.
SATURATED_SHARE = 0.02
NEAR_END_STEPS = 2
#: Channels: as they are, they differ by more than four steps, and another order takes three quarters of that away …
SWAP_STEPS, SWAP_DISTANCE = 4, 0.25
#: … or (whatever the scale) another order correlates nearly perfectly, and they as they are clearly do not.
SWAP_CORRELATION, SWAP_MARGIN = 0.98, 0.05
#: Rearranged: another order of the buffer correlates nearly perfectly, and the order as it is clearly does not.
REARRANGED_CORRELATION, REARRANGED_MARGIN = 0.98, 0.05
#: Some channels only: the mean error of one is beyond four steps, that of another is what rounding leaves.
WRONG_CHANNEL_STEPS, RIGHT_CHANNEL_STEPS = 4, 1
#: Stale: the scene has changed by more than four steps on average, and the previous answer is four times nearer.
CHANGE_STEPS, STALE_RATIO = 4, 0.25
#: … and as near to it as a device comes to its reference: a dimmed answer resembles that to a dimmer input, no more.
STALE_STEPS = 2
#: … or nearly all elements are the previous device output's, bit for bit.
STALE_EQUAL = 0.999
#: Kinds whose outputs are lists of objects, or anything: rows change places and come and go, so that elements at one
#: place have nothing to do with each other. Their losses match what belongs together.
ROWS_OF_OBJECTS = ("detection", "keypoints", "custom")


def symptoms(
    output: Output,
    device: Array,
    reference: Array,
    previous_reference: Array | None = None,
    previous_device: Array | None = None,
) -> tuple[str, ...]:
    """Names of the symptoms that `device` shows against `reference`, in the order of DESIGN §6.2; empty for none.

    `stale_output` needs an earlier answer: the reference's for the input before (it finds an output that lags by one
    input, or is stuck), the device's (stuck). Where the device or the reference is not finite, nothing but `non_finite`
    is judged; the loss counts such elements as off. Raises `ShapeMismatch`.
    """
    flat_pair(device, reference)
    if not all_finite(device):
        return ("non_finite",)
    if not all_finite(reference) or output.kind in ROWS_OF_OBJECTS:
        return ()
    pair = _Pair(output, device, reference)
    if pair.is_black():
        return ("black_output",)
    if pair.is_constant():
        return ("constant_output", *pair.saturated())
    if _is_stale(pair, previous_reference, previous_device):
        return ("stale_output",)  # any other difference is one of two scenes
    moved = pair.rearranged()
    if moved:
        return moved  # nothing that is said of elements at their places means anything
    return (*pair.on_a_line(), *pair.saturated(), *pair.structured()) or pair.in_some_channels()


class _Pair:
    """Both outputs, and the same sample of both: channels × pixels, one channel for a raw tensor."""

    def __init__(self, output: Output, device: Array, reference: Array) -> None:
        self.output, self.step = output, output.step
        self.low, self.high = output.low, output.high
        self.device, self.reference = device, reference
        self.indices = sample_indices(_pixels(output, device))
        self.sample = self.take(device)
        self.sample_reference = self.take(reference)
        self.line: Line | None = None

    def take(self, array: Array) -> Floats:
        if array.shape != self.device.shape:
            raise ShapeMismatch(
                f"an earlier output has shape {list(array.shape)}, this one {list(self.device.shape)}",
                "compare outputs of one model only",
            )
        if self.output.kind != "image":
            return flat(array)[self.indices].astype(np.float64)[None]
        picture = planes(array, self.output.layout)
        rows, columns = np.divmod(self.indices, picture.shape[2])
        return picture[:, rows, columns].astype(np.float64)

    def is_black(self) -> bool:
        if self.output.kind != "image":
            return False
        dark = _share(self.sample <= self.low + BLACK_STEPS * self.step)
        scene = _share(self.sample_reference > self.low + SCENE_STEPS * self.step)
        return dark >= BLACK_SHARE and scene >= SCENE_SHARE

    def is_constant(self) -> bool:
        low, high = np.quantile(self.sample_reference, (0.05, 0.95), axis=1)
        if float((high - low).max()) < VARIED_STEPS * self.step:
            return False
        picture = planes(self.device, self.output.layout) if self.output.kind == "image" else flat(self.device)[None]
        limit = FLAT_STEPS * self.step
        # Each channel by itself: a constant colour is constant too.
        return all(float(plane.max()) - float(plane.min()) <= limit for plane in picture)

    def saturated(self) -> list[str]:
        half, near = self.step / 2, NEAR_END_STEPS * self.step
        device, reference = self.sample, self.sample_reference
        at_low = _share(np.abs(device - self.low) <= half) - _share(reference <= self.low + near)
        at_high = _share(np.abs(device - self.high) <= half) - _share(reference >= self.high - near)
        ends = (("saturated_low", at_low), ("saturated_high", at_high))
        return [name for name, excess in ends if excess >= SATURATED_SHARE]

    def on_a_line(self) -> list[str]:
        """A wrong gain, else a wrong offset; elements clipped at the ends are left out where enough others are left."""
        device, reference = self.sample.ravel(), self.sample_reference.ravel()
        half = self.step / 2
        free = (np.abs(device - self.low) > half) & (np.abs(device - self.high) > half)
        if _share(free) >= 0.05:
            device, reference = device[free], reference[free]
        self.line = fit_line(device, reference, self.step)
        line = self.line
        if line is not None and not LEAST_GAIN < line.gain < MOST_GAIN and line.correlation >= SCALE_CORRELATION:
            return ["scale_error"]
        difference = device - reference
        lower, middle, upper = np.quantile(difference, (0.25, 0.5, 0.75))
        beyond = lower > OFFSET_STEPS * self.step or upper < -OFFSET_STEPS * self.step
        return ["offset"] if beyond and upper - lower <= abs(middle) else []

    def rearranged(self) -> tuple[str, ...]:
        """A picture whose buffer was read in another order than written. Looked for only where it is far off."""
        far = float(np.abs(self.sample - self.sample_reference).mean()) >= SWAP_STEPS * self.step
        if self.output.kind != "image" or not far:
            return ()
        together = correlation(self.sample.ravel(), self.sample_reference.ravel())
        if together >= 1 - REARRANGED_MARGIN:
            return ()
        found = rearrangement(*(planes(each, self.output.layout) for each in (self.device, self.reference)))
        least = max(REARRANGED_CORRELATION, found.as_it_is + REARRANGED_MARGIN)
        if max(found.transposed, found.sheared) < least:
            return ()
        return ("transposed",) if found.transposed >= found.sheared else ("row_shear",)

    def in_some_channels(self) -> tuple[str, ...]:
        """An error that has no other name, and leaves a channel alone."""
        if self.output.kind != "image" or self.sample.shape[0] == 1:
            return ()
        error = np.abs(self.sample - self.sample_reference).mean(axis=1) / self.step
        some = error.max() >= WRONG_CHANNEL_STEPS and error.min() <= RIGHT_CHANNEL_STEPS
        return ("channel_subset",) if some else ()

    def structured(self) -> list[str]:
        """Swapped channels, else a band."""
        if self.output.kind != "image":
            return []
        if self.sample.shape[0] == 3 and self._is_swapped():
            return ["channel_swap"]
        fitted = self.line is not None and self.line.correlation >= SCALE_CORRELATION
        line = self.line if self.line is not None and fitted else Line(1.0, 0.0, 1.0)
        device, reference = (planes(each, self.output.layout) for each in (self.device, self.reference))
        return ["band"] if has_band(device, reference, line, self.step) else []

    def _is_swapped(self) -> bool:
        found = assign_channels(self.sample, self.sample_reference)
        far = found.identity_distance >= SWAP_STEPS * self.step
        if far and found.swapped_distance <= SWAP_DISTANCE * found.identity_distance:
            return True
        margin = found.swapped_correlation - found.identity_correlation
        return found.swapped_correlation >= SWAP_CORRELATION and margin >= SWAP_MARGIN


def _is_stale(pair: _Pair, previous_reference: Array | None, previous_device: Array | None) -> bool:
    if previous_reference is None or not all_finite(previous_reference):
        return False
    before = pair.take(previous_reference)
    if float(np.abs(pair.sample_reference - before).mean()) < CHANGE_STEPS * pair.step:
        return False
    to_before = float(np.abs(pair.sample - before).mean())
    to_this = float(np.abs(pair.sample - pair.sample_reference).mean())
    if to_before <= min(STALE_RATIO * to_this, STALE_STEPS * pair.step):
        return True
    return previous_device is not None and _share(pair.take(previous_device) == pair.sample) >= STALE_EQUAL


def _pixels(output: Output, array: Array) -> int:
    if output.kind != "image":
        return array.size
    _, height, width = planes(array, output.layout).shape
    return int(height * width)


def _share(condition: NDArray[np.bool_]) -> float:
    return float(np.count_nonzero(condition)) / condition.size
