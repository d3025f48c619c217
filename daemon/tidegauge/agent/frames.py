"""The newest picture of the camera, and its ring: what the pipeline is fed from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from tidegauge.pipeline.messages import AttachFrames
from tidegauge.pipeline.ring import Ring

#: After a picture that had to wait for the accelerator, so many more are taken for ones that may have to.
PRESSED_FRAMES = 10


class PendingFrame(msgspec.Struct, frozen=True):
    """A picture waiting in a slot of the camera's ring."""

    generation: int
    slot: int
    captured: float


class _Source(msgspec.Struct, frozen=True):
    """The camera's ring, and how to give a slot back."""

    attach: AttachFrames
    ring: Ring
    free: Callable[[int], None]


class FrameFeed:
    """Holds at most one picture, the newest. `dropped(reason)` is told of each that is given up.

    `sent`: what the pipeline worker has been sent and has not answered, two at most: one whose answer it looks at, and
    one that is on the accelerator meanwhile. `known`: the worker has been told of the camera's ring. `pressed`: 0 where
    no picture has had to wait for the accelerator for a while, so that nobody need know when it is free.
    """

    def __init__(self, dropped: Callable[[str], None]) -> None:
        self._dropped = dropped
        self._pending: PendingFrame | None = None
        self.sent: deque[PendingFrame] = deque()
        self.source: _Source | None = None
        self.known = False
        self.pressed = PRESSED_FRAMES

    def attach(self, attach: AttachFrames, ring: Ring, free: Callable[[int], None]) -> None:
        """A camera worker has come up."""
        self.detach()
        self.known = False
        self.source = _Source(attach, ring, free)

    def detach(self) -> None:
        """The camera worker is gone, and its ring with it."""
        if self.source is not None:
            self.source.ring.close()
        self.source = None
        self._pending = None

    def offer(self, frame: PendingFrame, reason: str) -> None:
        """A new picture. The newest wins: an older one still waiting is dropped for `reason`."""
        self.drop(reason)
        self._pending = frame

    def drop(self, reason: str) -> None:
        """Give up the waiting picture, if there is one."""
        if self._pending is not None:
            self._dropped(reason)
            self.free(self._pending)
            self._pending = None

    def take(self) -> PendingFrame | None:
        """The waiting picture of the camera that is attached, to be sent; or None."""
        frame, self._pending = self._pending, None
        if frame is not None and not self._is_present(frame):
            self._dropped("stale_generation")
            return None
        if frame is not None:
            self.sent.append(frame)
        return frame

    def give_back(self) -> None:
        """The picture that was taken last could not be sent: it waits again."""
        self._pending = self.sent.pop()

    def answered(self) -> PendingFrame:
        """The picture that was sent first, which the worker is done with."""
        waited = self._pending is not None or len(self.sent) > 1
        self.pressed = PRESSED_FRAMES if waited else max(0, self.pressed - 1)
        return self.sent.popleft()

    def lose(self, reason: str) -> None:
        """The worker is gone: give up what it had, and what waits for it."""
        self.known = False
        while self.sent:
            self._dropped(reason)
            self.free(self.sent.popleft())
        self.drop(reason)

    def _is_present(self, frame: PendingFrame) -> bool:
        """Whether the camera that took it is still attached."""
        return self.source is not None and frame.generation == self.source.attach.generation

    def free(self, frame: PendingFrame) -> None:
        """Give its slot back to the camera, unless that is gone."""
        if self.source is not None and self._is_present(frame):
            self.source.free(frame.slot)
