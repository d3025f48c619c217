"""The shadow worker: the float reference on the CPU, beside the product and never in its way.

Started by the agent as `python -m tidegauge.shadow.worker`. It runs the reference on exactly the input tensor that the
device had, writes the reference's outputs beside the device's, and measures how far apart they are.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from tidegauge.detectors.sight import input_features, picture_of
from tidegauge.errors import TidegaugeError
from tidegauge.losses.select import both_empty, outputs_loss, outputs_summary
from tidegauge.losses.symptoms import symptoms
from tidegauge.losses.tensor_error import tensor_errors
from tidegauge.pipeline.channel import Channel
from tidegauge.pipeline.layout import SampleLayout, sample_layout
from tidegauge.pipeline.messages import (
    AttachSamples,
    LossMeasured,
    MeasureSample,
    SampleFailed,
    ShadowCommand,
    ShadowReady,
    StartShadow,
    Stop,
    TensorErrors,
)
from tidegauge.pipeline.process import (
    FailureKind,
    WorkerFault,
    check_output_name,
    failing_as,
    first_command,
    output_digest,
    protocol_fault,
    run_worker,
)
from tidegauge.pipeline.ring import Ring, SlotError
from tidegauge.profile import Profile
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.factory import libraries, open_reference
from tidegauge.runtimes.inner_ranges import InnerRanges, open_inner
from tidegauge.runtimes.session import Array, Session
from tidegauge.tensors import TensorSpec

NICE = 19


class UnusableSample(Exception):
    """This sample can't be measured; the next one may."""


def yield_to_everyone(threads: Path = Path("/proc/self/task")) -> list[str]:
    """Put every thread of this process into SCHED_IDLE and nice 19; threads to come inherit both.

    Returns what the system refused, as sentences. Refused or not, the reference runs: the agent's budget bounds it.
    """
    refused: list[str] = []
    for thread in (int(entry.name) for entry in threads.iterdir()):
        for what, lower in (("SCHED_IDLE", _idle), (f"nice {NICE}", _nice)):
            try:
                lower(thread)
            except ProcessLookupError:
                break  # the thread has ended
            except OSError as error:
                refused.append(f"{what} is not permitted for the shadow worker ({error.strerror})")
    return sorted(set(refused))


def _idle(thread: int) -> None:
    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def _nice(thread: int) -> None:
    os.setpriority(os.PRIO_PROCESS, thread, NICE)


class ShadowWorker:
    """The reference session, the attached pipeline's sample ring, and the last reference answer."""

    def __init__(self, profile: Profile, session: Session) -> None:
        self._profile = profile
        self._session = session
        self._loss = outputs_loss(profile.output)
        self._samples: Ring | None = None
        self._layout: SampleLayout | None = None
        self._generation = -1
        self._previous: tuple[Array, Array] | None = None  # the reference's and the device's last answer
        self._inner: InnerRanges | None = None
        self._inner_refused = False

    def attach(self, command: AttachSamples, fd: int | None) -> None:
        """Map a pipeline worker's sample ring, in place of the one before."""
        if fd is None:
            raise protocol_fault("AttachSamples came without a descriptor")
        self.detach()
        try:
            self._samples = Ring(command.ring, fd)
        except (OSError, ValueError) as error:
            raise WorkerFault(FailureKind.SHARED_MEMORY, f"the sample ring can't be mapped ({error})") from error
        check_pair("input", command.inputs, self._session.inputs)
        check_pair("output", command.outputs, self._session.outputs)
        self._layout = sample_layout(command.inputs, command.outputs)
        self._generation = command.generation
        self._previous = None

    def detach(self) -> None:
        if self._samples is not None:
            self._samples.close()
        self._samples = None
        self._layout = None
        self._generation = -1

    def measure(self, command: MeasureSample) -> LossMeasured:
        """Raises UnusableSample."""
        started = time.process_time()
        samples, layout = self._samples, self._layout
        if samples is None or layout is None or command.generation != self._generation:
            raise UnusableSample(f"generation {command.generation} of the pipeline is not attached")
        inputs = {region.spec.name: samples.array(command.slot, region) for region in layout.inputs}
        device = {region.spec.name: samples.array(command.slot, region) for region in layout.device}
        try:
            reference = self._session.run(inputs)
        except TidegaugeError as error:
            raise UnusableSample(f"the reference failed: {error}") from error
        for region in layout.reference:
            np.copyto(samples.array(command.slot, region), reference[region.spec.name], casting="no")
        loss, errors, found = self._compare(device, reference)
        before = time.process_time()
        inner = self._inner_ranges(inputs, wanted=command.inner)
        inner_seconds = time.process_time() - before
        return LossMeasured(
            sample_id=command.sample_id,
            slot=command.slot,
            generation=command.generation,
            frame_id=command.frame_id,
            golden=command.golden,
            loss=loss,
            errors=errors,
            symptoms=found,
            reference_digest=output_digest([reference[region.spec.name] for region in layout.reference]),
            features=self._features(next(iter(inputs.values()))),
            summary=outputs_summary(self._profile.output, reference),
            empty=both_empty(self._profile.output, device, reference),
            ranges=inner | ranges(inputs) | ranges(reference),
            inner_seconds=inner_seconds,
            cpu_seconds=time.process_time() - started,
        )

    def _inner_ranges(self, inputs: dict[str, Array], *, wanted: bool) -> dict[str, tuple[float, float]]:
        """Its session lives as long as it is asked for. None where it can't be opened, which is said once."""
        if not wanted:
            self._inner = None
        if not wanted or self._inner_refused:
            return {}
        try:
            if self._inner is None:
                self._inner = open_inner(self._profile)
            return self._inner.ranges(inputs)
        except RuntimeFault as error:
            print(f"ranges of inner tensors are not known: {error}", file=sys.stderr)
            self._inner_refused = True
            return {}

    def _compare(
        self, device: dict[str, Array], reference: dict[str, Array]
    ) -> tuple[float, tuple[TensorErrors, ...], tuple[str, ...]]:
        """Loss and symptoms of the watched output, and the errors of all."""
        output = self._profile.output
        left, right = device[output.name], reference[output.name]
        before, before_device = self._previous or (None, None)
        with failing_as(FailureKind.PROFILE_MISMATCH):  # a picture by its profile that is none by its shape
            loss = self._loss(device, reference)
            found = symptoms(output, left, right, before, before_device)
            errors = tuple(self._errors(name, device[name], reference[name]) for name in device)
        self._previous = (right, left.copy())  # the device's lies in a slot that is used again
        return loss, errors, found

    def _features(self, tensor: Array) -> dict[str, float]:
        """Of the input as a picture; none where the model's input is none."""
        try:
            return input_features(picture_of(tensor, self._profile.preprocess))
        except ValueError:
            return {}

    def _errors(self, name: str, device: Array, reference: Array) -> TensorErrors:
        output = self._profile.output
        # The profile tells the range of its own output only; others have no end to stick at.
        low, high = (output.low, output.high) if name == output.name else (-np.inf, np.inf)
        return tensor_errors(name, device, reference, output.step, low, high)


def ranges(arrays: dict[str, Array]) -> dict[str, tuple[float, float]]:
    """Least and most of each array's finite elements; one without any is left out."""
    found = {}
    for name, array in arrays.items():
        finite = array[np.isfinite(array)]
        if finite.size:
            found[name] = (float(finite.min()), float(finite.max()))
    return found


def check_pair(what: str, device: tuple[TensorSpec, ...], reference: tuple[TensorSpec, ...]) -> None:
    """Raise WorkerFault unless the reference has each of the device's tensors, of the same shape and element type."""
    known = {spec.name: spec for spec in reference}
    for spec in device:
        if known.get(spec.name) == spec:
            continue
        other = known.get(spec.name)
        there = "none of that name" if other is None else f"{other.dtype} {list(other.shape)}"
        raise WorkerFault(
            FailureKind.PROFILE_MISMATCH,
            f"the device's {what} {spec.name} is {spec.dtype} {list(spec.shape)}, and the reference has {there}",
            "let `model` and `artifacts` of the profile belong to one compile",
        )


def body(channel: Channel[ShadowCommand]) -> None:
    for refused in yield_to_everyone():  # before the runtime starts its threads, which inherit the class
        print(refused, file=sys.stderr)
    start: StartShadow = first_command(channel, StartShadow)
    with failing_as(FailureKind.OPEN_FAILED):
        session = open_reference(start.profile)
    try:
        check_output_name(start.profile, session.outputs)
        worker = ShadowWorker(start.profile, session)
        try:
            channel.send(ShadowReady(start.generation, session.kind, session.inputs, session.outputs, libraries()))
            serve(channel, worker)
        finally:
            worker.detach()
    finally:
        session.close()


def serve(channel: Channel[ShadowCommand], worker: ShadowWorker) -> None:
    """Measure one sample after another until `Stop`."""
    while True:
        command, fd = channel.receive()
        match command:
            case Stop():
                return
            case AttachSamples():
                worker.attach(command, fd)
            case MeasureSample():
                try:
                    channel.send(worker.measure(command))
                except UnusableSample as error:
                    channel.send(SampleFailed(command.sample_id, command.slot, str(error)))
                except SlotError as error:
                    raise protocol_fault(f"MeasureSample: {error}") from error
            case StartShadow():
                raise protocol_fault("StartShadow came twice")


def main() -> int:
    return run_worker(ShadowCommand, body)


if __name__ == "__main__":
    sys.exit(main())
