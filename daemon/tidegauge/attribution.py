"""Who is at fault: from what was observed on one device to one verdict. Pure (DESIGN §6.4).

The known answers come first, since they are certain: a golden tensor gives the same bits for the same artifacts,
whatever the camera shows. Only then do statistics speak, and a camera fault silences them: its frames feed no paired
detector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from tidegauge.detectors.defaults import TOLERANCE

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
CHANGE = Verdict(
    "accelerator",
    "critical",
    "Device and reference agree less than before the change: go back to what ran before it, or accept the loss with "
    "`tidegauge rebaseline`.",
)
UNSTEADY = Verdict(
    "accelerator",
    "critical",
    "The device answers the same input otherwise when it is run again, and the reference does not: whatever the inputs "
    "are, that is a fault of the device.",
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


class Bin(msgspec.Struct, frozen=True):
    """Samples of one kind of input (light context, confidence, number of objects): how many, and their mean loss."""

    samples: int
    loss: float


class Decomposition(msgspec.Struct, frozen=True):
    """Terms that add up to the change of the mean loss since acceptance.

    `input_mix`: kinds of input have become more or less frequent. `device`: the loss has changed within kinds.
    `unknown`: what kinds that acceptance never saw add; `unknown_share` is their share of the samples now.
    """

    input_mix: float
    device: float
    unknown: float
    unknown_share: float

    @property
    def total(self) -> float:
        return self.input_mix + self.device + self.unknown


def decompose(accepted: Mapping[str, Bin], now: Mapping[str, Bin]) -> Decomposition:
    """Split the change of the mean loss: Σ (w − wᵣ)·eᵣ, Σ w·(e − eᵣ) over kinds seen at acceptance, and the rest.

    In the form of Cai, Namkoong, Yadlowsky, "Diagnosing model performance under distribution shift", arXiv 2303.02011.
    Raises ValueError for no samples on either side.
    """
    before = sum(each.samples for each in accepted.values())
    after = sum(each.samples for each in now.values())
    if before < 1 or after < 1:
        raise ValueError("no samples to tell the input mix from the device")
    mix = device = unknown = share = 0.0
    for name in sorted(accepted.keys() | now.keys()):
        old, new = accepted.get(name), now.get(name)
        weight = new.samples / after if new is not None else 0.0
        if old is None or old.samples == 0:
            unknown += weight * (new.loss if new is not None else 0.0)
            share += weight
            continue
        mix += (weight - old.samples / before) * old.loss
        device += weight * (new.loss - old.loss) if new is not None and new.samples else 0.0
    return Decomposition(mix, device, unknown, share)


#: Names of a decomposition's terms in an alarm's evidence.
TERMS = ("input_mix", "device_change", "unknown", "unknown_share")
#: A term decides when it makes up so much of the change.
DECISIVE = 0.5

HARDER = Verdict(
    "data",
    "warning",
    "Device and reference disagree more because the inputs are others than at acceptance: kinds of input that were "
    "always harder have become frequent, or kinds came that acceptance never saw. On kinds that it saw the device is "
    "as good as it was.",
)
WITHIN = Verdict(
    "accelerator",
    "critical",
    "Device and reference disagree more on the same kinds of input that acceptance saw: stored inputs come out right, "
    "so it is a fault that they do not reach, as in the buffers, in pre-processing, or by heat.",
)


HARMLESS = Verdict(
    "data",
    "warning",
    "The inputs have changed, and tensor errors are larger on them than on those of acceptance; the answers agree with "
    "the reference's as they did then.",
)
UNFELT = Verdict(
    "undecided",
    "warning",
    "Tensor errors are larger than at acceptance, on inputs that do not differ by the test, while the answers agree "
    "with the reference's as they did then: the device and inputs that are harder to compute can't be told apart by "
    "this; the comparison of the captured layers can.",
)


def terms(found: Decomposition) -> dict[str, float]:
    """The terms by name, for an alarm's evidence."""
    return dict(zip(TERMS, (found.input_mix, found.device, found.unknown, found.unknown_share), strict=True))


def resolve(
    verdict: Verdict, found: Decomposition | None, *, repeats: bool | None = None, errors_only: bool = False
) -> Verdict:
    """What replay and decomposition make of a paired alarm whose known answers are right: most of the change decides.

    `repeats`: whether the device gave the same answer to the same input again; None where that is not known.
    `errors_only`: tensor errors have raised the alarm, and no detector of the product loss has. Without a
    decomposition, or where no term makes up half of a rise, the verdict stays as it is. So it does where the known
    answers, an invariant or saturation have decided.
    """
    if repeats is False and verdict in (UNREACHED, MIXED, RECALIBRATE, UNTESTED):
        return UNSTEADY
    if verdict not in (UNREACHED, MIXED) or found is None:
        return verdict
    if errors_only and found.total <= TOLERANCE:
        return HARMLESS if verdict == MIXED else UNFELT
    if found.total <= 0:
        return verdict
    if found.input_mix + found.unknown >= DECISIVE * found.total:
        return HARDER
    return WITHIN if verdict == UNREACHED and found.device > DECISIVE * found.total else verdict


Replay = Literal["not_reproducible", "artifacts_or_silicon", "quantisation", "as_float", "undecided"]
REPLAYS: dict[Replay, str] = {
    "not_reproducible": "The same input gives another answer each time, or another than it gave live: suspect memory, "
    "buffers or heat.",
    "artifacts_or_silicon": "The device repeats its answer, and the emulator of the same artifacts gives another: "
    "suspect the artifacts' copy on the board, the SDK's version or the silicon.",
    "quantisation": "The device does what the emulator of the same artifacts does, and both are far from float: "
    "recalibrate, or give the layer that is named more bits.",
    "as_float": "The device repeats its answer, and it is close to float: nothing is wrong with this input.",
    "undecided": "The device repeats its answer; without the emulator's, the artifacts can't be told from the device.",
}


def judge_replay(live: str, again: Sequence[str], emulator: str | None, near_float: bool) -> Replay:
    """What the same input shows when it is run again on the device; digests of outputs.

    `emulator`: of the same artifacts, where it can be run and is bit-exact for the SDK. `near_float`: whether the live
    answer is within what acceptance allows. Raises ValueError where nothing was run again.
    """
    if not again:
        raise ValueError("nothing was run again")
    if any(digest != live for digest in again):
        return "not_reproducible"
    if emulator is not None and emulator != live:
        return "artifacts_or_silicon"
    if near_float:
        return "as_float"
    return "undecided" if emulator is None else "quantisation"
