"""Whether the session on the accelerator can be closed for a capture, and whether the next one can be kept waiting."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge.pipeline.messages import PipelineReady


class SessionHold:
    """Of a pipeline whose worker the agent stops and starts itself. Others say what they can't."""

    def __init__(self) -> None:
        self.ready: PipelineReady | None = None
        #: Told, while a session is held, for how many seconds at most; answers in a sentence why no capture is begun.
        self.on_held: Callable[[float], str] = lambda _: "none was put off"

    @property
    def cannot_pause(self) -> str:
        """Why the session can't be closed for a capture, in a sentence; empty where it can."""
        return ""

    @property
    def hold_next(self) -> Callable[[], None] | None:
        """Keeps the next session from being opened until the pipeline's `resume`; `on_held` is called when it waits.
        None where a capture that can't be taken now can't be taken before the next session either."""
        return None

    @property
    def held(self) -> bool:
        """Whether the next session is kept waiting."""
        return False

    @property
    def described(self) -> PipelineReady | None:
        """The session that is open; while the next one is held, the one before."""
        return self.ready
