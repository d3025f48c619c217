"""A bundle that is kept, as retention looks at it."""

from __future__ import annotations

from typing import Literal

import msgspec

#: In the order in which they make room: the least worth first.
Class = Literal["fine", "uncertain", "failed", "culprit"]
ORDER: tuple[Class, ...] = ("fine", "uncertain", "failed", "culprit")


class Kept(msgspec.Struct, frozen=True):
    """A bundle whose comparison has ended. `received`: Unix seconds; `own`: bytes of blobs that only it needs."""

    device: str
    bundle: str
    state: str
    exit_code: int | None
    received: float
    pinned: bool
    own: int

    @property
    def kind(self) -> Class:
        """Its class, by how the comparison ended."""
        if self.state != "compared":
            return "failed"
        match self.exit_code:
            case 0:
                return "fine"
            case 1:
                return "culprit"
        return "uncertain"
