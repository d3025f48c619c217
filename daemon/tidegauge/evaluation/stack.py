"""The monitor put together as on the board, fed with pictures and outputs at simulated times.

Camera invariants let a frame through; its pair goes to the invariants and to what watches the accepted reference; the
golden set is run on a timer and whenever a detector suspects something; then attribution says who is at fault. What
watches the reference are the agent's own parts: the command line hands them in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tidegauge.attribution import CAMERA, DATA, Decomposition, Observables, Verdict, attribute, judge_replay, resolve
from tidegauge.detectors import invariants
from tidegauge.detectors.acceptance import Acceptance, AcceptanceRules, Accepted, Rejected
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.camera import CameraHealth, CameraReference, FrameLook
from tidegauge.detectors.contexts import LightContext
from tidegauge.detectors.defaults import STRIKES, WINDOW
from tidegauge.detectors.known_answer import KnownAnswer
from tidegauge.detectors.sight import judge
from tidegauge.evaluation.pairs import FIRST_ACCEPTANCE, Array, Device, Frame, Pair, Reference
from tidegauge.losses.output_stats import output_stats
from tidegauge.losses.select import loss_for, outputs_summary
from tidegauge.losses.symptoms import symptoms
from tidegauge.losses.tensor_error import tensor_errors
from tidegauge.pipeline.messages import TensorErrors
from tidegauge.pipeline.process import output_digest
from tidegauge.profile import Output

#: Seconds between samples, and between golden rounds.
GAP, GOLDEN_INTERVAL = 60.0, 900.0
#: Input windows: as many values as the product's, of samples a minute apart instead of 432 s, so that a verdict takes
#: hours and not a day. The pictures here are independent, so nothing is lost by it.
WINDOW_INTERVAL = WINDOW * GAP
#: Pairs among which the worst is run again.
RECENT = 8


#: Detectors that compare device and reference on live inputs.
PAIRED = frozenset({"loss", "nmse", "loss_by_kind"})


class Measured(NamedTuple):
    """One shadow sample, as the workers measure it. `alarm`: of the invariants."""

    loss: float
    errors: TensorErrors
    symptoms: tuple[str, ...]
    features: dict[str, float]
    summary: dict[str, float]
    alarm: Alarm | None


class Seen(NamedTuple):
    """A sample with its frame's scene. `settled`: the light was not changing."""

    measured: Measured
    context: str
    settled: bool
    look: FrameLook


class Watch(Protocol):
    """What the agent does with the samples of a healthy camera once a reference is accepted."""

    def update(self, now: float, seen: Seen) -> tuple[list[Alarm], Alarm | None]:
        """Alarms of the detectors, and the warning where a verdict on the inputs was given."""

    @property
    def changed(self) -> bool:
        """Whether the inputs are others than at acceptance, as far as is known now."""

    def decomposition(self) -> Decomposition | None:
        """Of the newest samples' loss."""


class Frozen(NamedTuple):
    """What an acceptance has frozen: limits, the camera's view by light context, and how a watch begins."""

    accepted: Accepted
    camera: Mapping[str, CameraReference]
    features: Mapping[str, Mapping[str, Sequence[float]]]
    begin: Callable[[], Watch]


#: From the samples of an acceptance to what it freezes, or why it does not.
Freeze = Callable[[Output, AcceptanceRules, Sequence[Seen]], Frozen | Rejected]


class Meter:
    """What the pipeline worker and the shadow worker measure of one output, one sample after another."""

    def __init__(self, output: Output) -> None:
        self._output, self._loss = output, loss_for(output)
        self._before: tuple[Array | None, Array | None] = (None, None)

    def measure(self, device: Array, frame: Frame) -> Measured:
        output, reference = self._output, frame.reference
        found = symptoms(output, device, reference, *self._before)
        self._before = (reference, device)
        statistics = output_stats(output.name, device, output.low, output.high)
        return Measured(
            self._loss(device, reference),
            tensor_errors(output.name, device, reference, output.step, output.low, output.high),
            found,
            frame.features,
            outputs_summary(output, {output.name: reference}),
            invariants.check((statistics,), {output.name: reference.size}),
        )


class Golden(NamedTuple):
    tensor: Array
    device: str
    reference: str


class Settled(NamedTuple):
    """A healthy device's acceptance, and the golden set with both sides' answers."""

    frozen: Frozen
    golden: tuple[Golden, ...]

    @property
    def m0(self) -> float:
        return self.frozen.accepted.m0


def golden_set(device: Device, reference: Reference, frames: Sequence[Frame]) -> tuple[Golden, ...]:
    """The first frame, the darkest and the brightest, as the agent chooses them."""
    by_level = sorted(range(len(frames)), key=lambda number: float(frames[number].tensor.mean()))
    chosen = dict.fromkeys((0, by_level[0], by_level[-1]))
    return tuple(
        Golden(tensor, output_digest([device.run(tensor)]), output_digest([reference.run(tensor)]))
        for tensor in (frames[number].tensor for number in chosen)
    )


def accept(pair: Pair, device: Device, rules: AcceptanceRules, first: int = FIRST_ACCEPTANCE) -> Accepted | Rejected:
    """The acceptance of a device: golden test first, as it guards from the first sample on; then sample by sample."""
    acceptance, meter = Acceptance(rules), Meter(pair.model.output)
    number = first
    while True:
        frame = pair.frame(number)
        measured = meter.measure(device.run(frame.tensor), frame)
        if measured.alarm is not None:
            return Rejected(measured.alarm.message, measured.alarm.evidence)
        found = acceptance.golden(0, measured.loss) if number == first else None
        outcome = found or acceptance.update(measured.loss, measured.errors.nmse, measured.symptoms)
        if outcome is not None:
            return outcome
        number += 1


def settle(pair: Pair, rules: AcceptanceRules, freeze: Freeze) -> Settled:
    """Accept the healthy device. Raises ValueError where it is rejected: then nothing can be evaluated."""
    device, meter, light = pair.device(), Meter(pair.model.output), LightContext()
    frames, seen = [], []
    for number in range(rules.samples):
        frame = pair.frame(FIRST_ACCEPTANCE + number)
        context = light.update(number * GAP, frame.sight.light)
        measured = meter.measure(device.run(frame.tensor), frame)
        frames.append(frame)
        seen.append(Seen(measured, context, not light.changing, frame.sight.look))
    frozen = freeze(pair.model.output, rules, seen)
    if isinstance(frozen, Rejected):
        raise ValueError(f"the healthy {pair.model.network} was not accepted: {frozen.reason}")
    return Settled(frozen, golden_set(device, pair.reference, frames))


class Pending(NamedTuple):
    """A pair, to run again if it is suspected: its input and the device's answer."""

    loss: float
    tensor: Array
    answer: str


class Stack:
    """One board. `device` and `reference` are asked for the golden set and replays; frames come with their answers."""

    def __init__(
        self,
        output: Output,
        settled: Settled,
        device: Callable[[Array], Array],
        reference: Callable[[Array], Array],
        golden_due: float,
    ) -> None:
        self._settled, self._device, self._reference = settled, device, reference
        self._meter, self._watch = Meter(output), settled.frozen.begin()
        self._due = golden_due
        self._health, self._light = CameraHealth(0.0), LightContext()
        self._latched: set[str] = set()
        self._recent: list[Pending] = []
        self._saturated = False

    def step(self, now: float, sequence: int, frame: Frame, answer: Array) -> list[Verdict]:
        """A frame that became a shadow sample; the verdicts that it leads to at once."""
        look = frame.sight.look
        found = judge(frame.sight, self._light, now, self._settled.frozen.camera)
        context = self._light.context
        verdicts = self._camera(self._health.frame(now, sequence, found))
        suspects: list[Alarm] = []
        measured = self._meter.measure(answer, frame)
        if measured.alarm is not None:
            suspects.append(measured.alarm)
        if self._health.healthy(now):
            self._saturated = bool({"saturated_low", "saturated_high"} & set(measured.symptoms))
            pending = Pending(measured.loss, frame.tensor, output_digest([answer]))
            self._recent = [*self._recent, pending][-RECENT:]
            seen = Seen(measured, context or "unknown", not self._light.changing, look)
            alarms, warning = self._watch.update(now, seen)
            suspects += alarms
            if warning is not None and self._new(warning):
                verdicts.append(DATA)
        return verdicts + self._conclude(now, [alarm for alarm in suspects if self._new(alarm)])

    def silence(self, now: float) -> list[Verdict]:
        """No new frame has come by `now`."""
        return self._camera(self._health.alarms(now)) + self._conclude(now, [])

    def _new(self, alarm: Alarm) -> bool:
        """Latch it; False where it was."""
        known = alarm.detector in self._latched
        self._latched.add(alarm.detector)
        return not known

    def _camera(self, alarms: Sequence[Alarm]) -> list[Verdict]:
        return [CAMERA for alarm in alarms if self._new(alarm)]

    def _conclude(self, now: float, suspects: Sequence[Alarm]) -> list[Verdict]:
        """A golden round where one is due, or something is suspected, and its verdict where there is one to give."""
        if now < self._due and not suspects:
            return []
        self._due = max(self._due, now + GOLDEN_INTERVAL) if now >= self._due else self._due
        wrong = self._golden_round()
        if not suspects and not any(wrong.values()):
            return []
        names = {alarm.detector for alarm in suspects}
        self._latched |= {f"known_answer_{side}" for side, failing in wrong.items() if failing}
        verdict = attribute(
            Observables(
                golden_device=not wrong["device"],
                golden_reference=not wrong["reference"],
                paired=bool(self._latched & PAIRED),
                invariant="invariant" in self._latched,
                input_drift=self._watch.changed,
                saturation=self._saturated,
            )
        )
        if names & PAIRED and self._repeats():
            errors_only = self._latched & PAIRED == {"nmse"}
            verdict = resolve(verdict, self._watch.decomposition(), errors_only=errors_only)
        return [verdict]

    def _repeats(self) -> bool:
        """Whether the worst of the newest pairs gives its answer again."""
        worst = max(self._recent, key=lambda each: each.loss)
        again = [output_digest([self._device(worst.tensor)]) for _ in range(2)]
        return judge_replay(worst.answer, again, None, near_float=False) != "not_reproducible"

    def _golden_round(self) -> dict[str, bool]:
        """Every golden tensor on both sides; run again at once where an answer differs, up to the strikes."""
        wrong = {"device": False, "reference": False}
        for index, golden in enumerate(self._settled.golden):
            sides = {
                "device": KnownAnswer("device", {index: golden.device}),
                "reference": KnownAnswer("reference", {index: golden.reference}),
            }
            for _ in range(STRIKES):
                digests = {
                    "device": output_digest([self._device(golden.tensor)]),
                    "reference": output_digest([self._reference(golden.tensor)]),
                }
                for side, known in sides.items():
                    wrong[side] |= known.update(index, digests[side]) is not None
                if digests == {"device": golden.device, "reference": golden.reference}:
                    break
        return wrong


def mean_loss(pair: Pair, device: Device, numbers: Sequence[int]) -> float:
    """Of a device on these frames."""
    meter = Meter(pair.model.output)
    losses = [meter.measure(device.run(frame.tensor), frame).loss for frame in map(pair.frame, numbers)]
    return float(np.mean(losses))
