"""Messages between the agent and the tap's worker, beside those of the pipeline worker that it takes the place of."""

from __future__ import annotations

from tidegauge.detectors.sight import Sight
from tidegauge.pipeline.messages import Failed, FrameDone, Message, PipelineReady, RunTensor, Stop, TensorDone
from tidegauge.profile import Profile


class StartTap(Message):
    """Listen at `socket` for the application that runs the model of `profile`. Sessions count on from `generation`."""

    profile: Profile
    socket: str
    sample_slots: int
    generation: int


class TakeFrame(Message):
    """Ask the application for its next frame, and give up after `seconds`. With `sample_slot` ≥ 0, copy it there."""

    frame_id: int
    seconds: float
    sample_slot: int = -1
    doubts: tuple[str, ...] = ()


class RunAsked(Message):
    """`RunTensor`, by the application, within `seconds`."""

    tensor: RunTensor
    seconds: float


class Pause(Message):
    """Let the application close its session within `seconds`, and keep it closed for `longest` at most."""

    seconds: float
    longest: float


class Resume(Message):
    """The application may open its session again."""


class HoldNext(Message):
    """Keep the next application that asks before it opens its session waiting, until `Resume`."""


class Attached(Message):
    """An application has an open session. Comes with the file descriptor of the sample ring.

    `waits`: it asks before it opens a session.
    """

    ready: PipelineReady
    pid: int
    name: str
    runs: bool
    pauses: bool
    waits: bool = False


class Held(Message):
    """An application holds no session, and waits for `Resume` before it opens one, for `seconds` at most."""

    pid: int
    name: str
    seconds: float


class Detached(Message):
    """The application has gone, or has closed its session by itself."""

    sentence: str


class FrameTaken(Message):
    """`frames`, `dropped`, `seconds`: device runs since the last such message, frames that were asked for and could not
    be handed over, and the time of all these runs."""

    done: FrameDone
    frames: int
    dropped: int
    seconds: float
    sight: Sight | None


class FrameMissed(Message):
    """The application handed over nothing in time; the slot is free again."""

    sample_slot: int


class TensorMissed(Message):
    """The application did not run the tensor."""

    request: int
    sentence: str


class Paused(Message):
    """The application has said that its session is closed."""


class NotPaused(Message):
    """It has not, in time: what holds the accelerator is unknown, and it has been told to go on."""

    sentence: str


TapCommand = StartTap | TakeFrame | RunAsked | Pause | HoldNext | Resume | Stop
TapEvent = (
    Attached | Detached | Held | FrameTaken | FrameMissed | TensorDone | TensorMissed | Paused | NotPaused | Failed
)
TapAnswer = FrameTaken | FrameMissed | TensorDone | TensorMissed | Paused | NotPaused
