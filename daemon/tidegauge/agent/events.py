"""What happens in the agent, as types. Emitted on the bus; handled by whoever registered for them."""

from __future__ import annotations

import msgspec

from tidegauge.agent.state import Latched
from tidegauge.bundles.manifest import Cause
from tidegauge.clocks import Monotonic
from tidegauge.detectors.alarm import Alarm
from tidegauge.detectors.camera import FrameLook
from tidegauge.detectors.sight import Sight
from tidegauge.pipeline.messages import FrameDone, LossMeasured, PipelineReady, ShadowReady


class Evidence(msgspec.Struct, frozen=True):
    """One measured pair, copied out of shared memory: raw tensors in the order of the specs.

    `hidden`: its input shows no more than may be written to the board's disk (`agent/privacy.py`).
    """

    measured: LossMeasured
    digest: str
    inputs: tuple[bytes, ...]
    device: tuple[bytes, ...]
    reference: tuple[bytes, ...]
    hidden: bool = False


class Scene(msgspec.Struct, frozen=True):
    """What the camera shows at one moment.

    `context`: the light context, "unknown" where no frame can be looked at; `changing`: frames look unlike it at
    present. `problem`: a condition of the camera that holds, be it for long enough to be a fault or not; else empty.
    `look`: the newest frame that was looked at.
    """

    context: str = "unknown"
    changing: bool = False
    problem: str = ""
    look: FrameLook | None = None


class PipelineUp(msgspec.Struct, frozen=True):
    """The pipeline worker has completed its first device run."""

    ready: PipelineReady


class PipelineDown(msgspec.Struct, frozen=True):
    """The pipeline worker is gone. `reason` from `metrics.RESTART_REASONS`."""

    reason: str
    sentence: str


class AcceleratorDown(msgspec.Struct, frozen=True):
    """Nothing is sent to the accelerator any more until a person clears the alarm. `symptoms` of the last failure."""

    sentence: str
    symptoms: tuple[str, ...]


class AcceleratorSlow(msgspec.Struct, frozen=True):
    """Device runs take much longer than at first, in seconds, as medians."""

    present: float
    first: float


class FrameDelivered(msgspec.Struct, frozen=True):
    """The camera has delivered a picture. `sight`: what it looks like, where it was looked at."""

    sequence: int
    sight: Sight | None


class CameraFinished(msgspec.Struct, frozen=True):
    """A source that ends has ended: no further frame is expected."""


class TracesLeft(msgspec.Struct, frozen=True):
    """The accelerator goes on dumping traces after a capture, whatever session is opened."""

    sentence: str


class CameraUp(msgspec.Struct, frozen=True):
    generation: int
    description: str


class CameraDown(msgspec.Struct, frozen=True):
    sentence: str


class ShadowUp(msgspec.Struct, frozen=True):
    ready: ShadowReady


class ShadowDown(msgspec.Struct, frozen=True):
    sentence: str


class FrameProcessed(msgspec.Struct, frozen=True):
    """A completed device run of a frame."""

    done: FrameDone


class SampleLost(msgspec.Struct, frozen=True):
    """A frame that was to become a sample was not run; its slot (-1: none) is free again."""

    slot: int


class LossArrived(msgspec.Struct, frozen=True):
    """A shadow sample (not a golden one) was measured. A `forced` one is evidence, not an observation of a detector.

    `scene`: of its frame, as it was when the frame was run.
    """

    evidence: Evidence
    forced: bool = False
    scene: Scene = Scene()


class GoldenChecked(msgspec.Struct, frozen=True):
    """A golden tensor was run on both sides and measured."""

    index: int
    evidence: Evidence


class Replayed(msgspec.Struct, frozen=True):
    """The same input run again: digests of the answers it gave first (`live`), and of those it gave again, by side."""

    live: str
    again: tuple[str, ...]
    reference_live: str
    reference_again: tuple[str, ...]


class GoldenRoundEnded(msgspec.Struct, frozen=True):
    """A round over the golden set: how many were checked, whose answers differed twice running, and on which side.

    `started` on the monotonic clock. `problem`: why the round stopped early, else empty. `replay`: of the wrong golden
    tensor, else of the pair under suspicion, where there is one.
    """

    started: Monotonic
    checked: int
    device: tuple[int, ...]
    reference: tuple[int, ...]
    alarms: tuple[Alarm, ...]
    problem: str
    replay: Replayed | None = None


class GoldenWanted(msgspec.Struct, frozen=True):
    """Somebody needs the golden set run now, ahead of its interval."""

    why: str


class AlarmRaised(msgspec.Struct, frozen=True):
    """An alarm was latched, with its verdict; `evidence` is the pair to capture.

    `capture` False: none is wanted, since the accelerator itself is suspect.
    """

    id: str
    cause: Cause
    evidence: Evidence | None
    capture: bool = True


class AlarmCleared(msgspec.Struct, frozen=True):
    """These alarms are no longer latched, and why."""

    alarms: tuple[Latched, ...]
    why: str = "cleared by a person"


class PhaseChanged(msgspec.Struct, frozen=True):
    """The agent's phase, for status: starting, acceptance, watching, capturing, alarmed; progress in 0…1."""

    phase: str
    progress: float


class BundleSealed(msgspec.Struct, frozen=True):
    bundle_id: str


class CaptureStep(msgspec.Struct, frozen=True):
    """A capture has come to this step, of `capture.STEPS`."""

    step: str


class CaptureEnded(msgspec.Struct, frozen=True):
    """`result` from `metrics.CAPTURE_RESULTS`."""

    result: str
    sentence: str
