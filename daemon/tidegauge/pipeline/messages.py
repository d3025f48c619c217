"""Every message between the agent and its workers. Agent → worker first, worker → agent below, a union for each."""

from __future__ import annotations

from typing import Literal

import msgspec

from tidegauge.camera.config import CameraConfig
from tidegauge.detectors.sight import Sight
from tidegauge.pipeline.layout import RingSpec
from tidegauge.profile import Profile
from tidegauge.runtimes.session import Offload
from tidegauge.tensors import TensorSpec


class Message(msgspec.Struct, tag=True):
    """A message; its class name is its tag on the wire."""


class Failed(Message):
    """The worker can't go on. `kind` is a word from an enum of causes, for a metric; then the worker exits."""

    kind: str
    problem: str
    cure: str


class Stop(Message):
    """Finish what runs, close the session, exit 0."""


# --- camera -----------------------------------------------------------------------------------------------------


class StartCamera(Message):
    generation: int
    camera: CameraConfig
    slots: int


class SlotFree(Message):
    """The agent is done with a slot of the frame ring; the camera may fill it again."""

    slot: int


class CameraReady(Message):
    """Comes with the file descriptor of the frame ring."""

    generation: int
    description: str
    width: int
    height: int
    ring: RingSpec


class FrameReady(Message):
    """A picture (BGR, 8 bits, height × width × 3) lies in `slot`. `captured` is on the monotonic clock.

    `sight`: what it looks like, for about one picture a second; None for the others, and for tiny ones.
    """

    slot: int
    sequence: int
    captured: float
    sight: Sight | None = None


class FrameDropped(Message):
    """Frames read but not handed over since the last such message (no free slot)."""

    count: int


class CameraEnded(Message):
    """A source that ends has ended."""


CameraCommand = StartCamera | SlotFree | Stop
CameraEvent = CameraReady | FrameReady | FrameDropped | CameraEnded | Failed


# --- pipeline ---------------------------------------------------------------------------------------------------


class StartPipeline(Message):
    """Open the device session at `debug_level=0` and prove the offload by one run.

    `module` is the key `runtime.module`: empty for TI's own runtimes. `profile` paths are absolute.
    `results_socket`: path of the Unix socket for raw outputs, empty for none. `sample_slots`: size of the sample ring.
    """

    generation: int
    profile: Profile
    module: str
    sample_slots: int
    results_socket: str


class AttachFrames(Message):
    """Comes with the file descriptor of a camera's frame ring; replaces the one before."""

    generation: int
    width: int
    height: int
    ring: RingSpec


class RunFrame(Message):
    """Run the picture in a frame slot. With `sample_slot` ≥ 0, copy input tensor and outputs into that sample slot.

    `doubts`: detectors whose latched alarms say that the answer must not be taken for right; published with it.
    `quiet`: no frame is expected before the answer has been told, so that no `FrameRan` need be said.
    """

    frame_id: int
    camera_generation: int
    slot: int
    captured: float
    sample_slot: int = -1
    doubts: tuple[str, ...] = ()
    quiet: bool = False


class RunTensor(Message):
    """Run an input tensor from a file (raw, as the profile's input spec), for the known-answer test.

    With `sample_slot` ≥ 0, input and outputs are copied into that sample slot.
    """

    request: int
    path: str
    sample_slot: int = -1


class OutputStats(msgspec.Struct, frozen=True):
    """Statistics of one output of one device run, from one pass.

    `low_share`, `high_share`: shares of elements at either end of the quantised range (of the observed type's range
    where the output is an integer, else of the profile's `low`/`high`). Over finite elements only.
    """

    name: str
    count: int
    finite: int
    minimum: float
    maximum: float
    mean: float
    low_share: float
    high_share: float


class SessionOpened(Message):
    """The device session exists; its first run comes next. Each has a deadline of its own."""


class PipelineReady(Message):
    """Comes with the file descriptor of the sample ring (see `layout.SampleLayout`)."""

    generation: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ring: RingSpec
    offload: Offload
    runtime: str
    libraries: dict[str, str]


class FrameRan(Message):
    """The device run of a frame has ended, and the accelerator is free: the next `RunFrame` may be sent.

    `FrameDone` follows, once the answer has been judged and handed on: beside the next run, where one is asked for, and
    always before that one's own `FrameRan`. Of a `quiet` frame only `FrameDone` is said.
    """

    frame_id: int


class FrameDone(Message):
    """A device run of a frame. `digest`: xxh3-128 hex of all outputs in order. `summary`: the decoded result.

    `doubts`: as published with the answer. `told`: when this was said, on the monotonic clock, as `captured` is.
    """

    frame_id: int
    camera_generation: int
    slot: int
    captured: float
    told: float
    device_seconds: float
    digest: str
    outputs: tuple[OutputStats, ...]
    summary: dict[str, float]
    sample_slot: int = -1
    doubts: tuple[str, ...] = ()


class FrameSkipped(Message):
    """The frame was not run: it was of another camera generation than the attached one. Both its slots are free."""

    frame_id: int
    camera_generation: int
    slot: int
    sample_slot: int = -1


class TensorDone(Message):
    """A device run of a tensor from a file."""

    request: int
    device_seconds: float
    digest: str
    outputs: tuple[OutputStats, ...]
    sample_slot: int = -1


PipelineCommand = StartPipeline | AttachFrames | RunFrame | RunTensor | Stop
PipelineEvent = SessionOpened | PipelineReady | FrameRan | FrameDone | FrameSkipped | TensorDone | Failed


# --- shadow -----------------------------------------------------------------------------------------------------


class StartShadow(Message):
    generation: int
    profile: Profile


class AttachSamples(Message):
    """Comes with the file descriptor of a pipeline worker's sample ring; replaces the one before."""

    generation: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ring: RingSpec


class MeasureSample(Message):
    """Run the reference on the input in `slot`, write its outputs into the slot, and measure the loss.

    `golden` ≥ 0: the slot holds a golden run of that index; the reference digest then matters too. `inner`: tell the
    ranges of the reference's inner tensors as well, at about the cost of a second reference run.
    """

    sample_id: int
    slot: int
    generation: int
    frame_id: int
    golden: int = -1
    inner: bool = False


class TensorErrors(msgspec.Struct, frozen=True):
    """Device output against reference output (facts/monitoring.md §B3), for diagnosis.

    `sqnr_db` clipped to [-10, 60]; None where undefined (zero or constant reference, non-finite), never a made-up
    number. `max_steps`: largest absolute difference in steps of the profile. `gain`, `offset`: least squares of
    device on reference. `finite`: share of finite device elements.
    """

    output: str
    finite: float
    sqnr_db: float | None
    nmse: float | None
    cosine: float | None
    gain: float | None
    offset: float | None
    max_steps: float | None
    low_share: float
    high_share: float
    reference_low_share: float
    reference_high_share: float


class ShadowReady(Message):
    """`libraries`: versions of what computes the reference, by package."""

    generation: int
    runtime: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    libraries: dict[str, str] = {}


class LossMeasured(Message):
    """One shadow sample, measured. `symptoms`: names of DESIGN §6.2. `reference_digest`: xxh3-128 of its outputs.

    `features`: statistics of the input (`detectors.sight.input_features`). `summary`: the reference's decoded result.
    `empty`: neither side found an object, so that the loss of 0 says little. `ranges`: least and most finite value of
    each input and of each of the reference's outputs, by name, and of its inner tensors where they were asked for:
    `inner_seconds` of `cpu_seconds` went into them.
    """

    sample_id: int
    slot: int
    generation: int
    frame_id: int
    golden: int
    loss: float
    errors: tuple[TensorErrors, ...]
    symptoms: tuple[str, ...]
    reference_digest: str
    cpu_seconds: float
    features: dict[str, float] = {}
    summary: dict[str, float] = {}
    empty: bool = False
    ranges: dict[str, tuple[float, float]] = {}
    inner_seconds: float = 0.0


class SampleFailed(Message):
    """The reference could not run this sample; the slot is free again."""

    sample_id: int
    slot: int
    problem: str


ShadowCommand = StartShadow | AttachSamples | MeasureSample | Stop
ShadowEvent = ShadowReady | LossMeasured | SampleFailed | Failed


# --- trace ------------------------------------------------------------------------------------------------------


class StartTrace(Message):
    """Open the device session at `debug_level` (0 traces nothing), run the tensor in `input_path` once, leave cleanly.

    Outputs are written as raw files `<output index>.bin` into `work`.
    """

    profile: Profile
    module: str
    input_path: str
    debug_level: Literal[0, 3, 4]
    work: str


class TraceDone(Message):
    """The traced run has returned. `digest` as in FrameDone, to compare with the run without tracing."""

    digest: str
    device_seconds: float
    outputs: tuple[TensorSpec, ...]
    benchmark: dict[str, int]


TraceCommand = StartTrace | Stop
TraceEvent = SessionOpened | TraceDone | Failed
