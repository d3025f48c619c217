"""Who is at fault: from what was observed on one device to one verdict. Pure (DESIGN §6.4).

The known answers come first, since they are certain: a golden tensor gives the same bits for the same artifacts,
whatever the camera shows. Only then do statistics speak, and a camera fault silences them: its frames feed no paired
detector.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Fault = Literal["accelerator", "reference", "data", "camera", "undecided"]
Severity = Literal["critical", "warning", "none"]


class Observables(msgspec.Struct, frozen=True):
    """`golden_device`, `golden_reference`: the known answer is right, is wrong, or could not be tested (None).

    `accepted`: a reference is frozen; while there is none, a wrong known answer is one far from the reference's.

    `paired`: a paired detector alarms, or acceptance failed. `invariant`: the device's output broke an invariant.
    `input_drift`: the inputs have changed. `saturation`: the device saturates well beyond the reference. `camera_ok`.
    """

    golden_device: bool | None
    golden_reference: bool | None
    paired: bool
    invariant: bool = False
    input_drift: bool = False
    saturation: bool = False
    camera_ok: bool = True
    accepted: bool = True


class Verdict(msgspec.Struct, frozen=True):
    """`sentence` says to an operator what it means, and what to do next."""

    fault: Fault
    severity: Severity
    sentence: str


REFERENCE = Verdict(
    "reference",
    "critical",
    "The reference on the CPU no longer gives its accepted answers: check the CPU runtime, the model file and memory; "
    "the comparison with it is suspended.",
)
DEVICE = Verdict(
    "accelerator",
    "critical",
    "The device no longer gives its accepted answer to a stored input: the fault is in the device, its runtime or its "
    "artifacts, whatever the camera shows.",
)
NEVER_RIGHT = Verdict(
    "accelerator",
    "critical",
    "The device is far from the reference on a stored input, and no answer of it was ever accepted: these artifacts "
    "have not been right on this board from the first frame.",
)
BOTH_SIDES = Verdict(
    "undecided",
    "critical",
    "Device and reference both give other answers to stored inputs than the accepted ones: suspect what they share, "
    "that is the stored inputs, memory or an update.",
)
INVARIANT = Verdict(
    "accelerator",
    "critical",
    "The device's output is not a possible answer (non-finite, constant or of a wrong size), whatever the input was.",
)
CAMERA = Verdict(
    "camera", "warning", "The camera is at fault: its frames are not used to judge the device until it delivers again."
)
UNREACHED = Verdict(
    "accelerator",
    "critical",
    "Device and reference disagree on live inputs, though stored inputs come out right: a fault that the golden inputs "
    "do not reach, as in the buffers, in pre-processing, or by heat.",
)
RECALIBRATE = Verdict(
    "data",
    "warning",
    "The inputs have left the range the model was calibrated for, and the device saturates: it works as built; "
    "recalibrate with such inputs.",
)
MIXED = Verdict(
    "undecided",
    "critical",
    "Device and reference disagree, and the inputs have changed, without saturation: a fault of the device and harder "
    "inputs can't be told apart yet.",
)
DATA = Verdict(
    "data",
    "warning",
    "The inputs have changed; device and reference agree on them. Whether the model is right on them is unknown.",
)
UNTESTED = Verdict(
    "undecided",
    "critical",
    "Device and reference disagree, and no known answer could be tested on both of them: which one is wrong is open.",
)
NOTHING = Verdict("undecided", "none", "Nothing that was observed points at a fault.")


def attribute(seen: Observables) -> Verdict:
    """The verdict; the order of the rows is their rank."""
    if seen.golden_reference is False:
        # Both wrong at once: neither can accuse the other.
        return BOTH_SIDES if seen.golden_device is False else REFERENCE
    if seen.golden_device is False:
        return DEVICE if seen.accepted else NEVER_RIGHT
    if seen.invariant:
        return INVARIANT
    if not seen.camera_ok:
        return CAMERA
    if seen.paired:
        return _paired(seen)
    return DATA if seen.input_drift else NOTHING


def _paired(seen: Observables) -> Verdict:
    if seen.golden_device is None or seen.golden_reference is None:
        return UNTESTED
    if not seen.input_drift:
        return UNREACHED
    return RECALIBRATE if seen.saturation else MIXED
