"""One face for every source of frames. A source may block: it lives in the camera worker only."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from numpy.typing import NDArray


class Picture(msgspec.Struct, frozen=True):
    """One picture: BGR, 8 bits, shape (height, width, 3); `sequence` counts deliveries of the source from 0."""

    pixels: NDArray[Any]
    sequence: int


class FrameSource(Protocol):
    """Opened by its factory. `read()` blocks until the next picture or raises `CameraFault`."""

    description: str
    width: int
    height: int

    def read(self) -> Picture | None:
        """The next picture; None at the end of a source that ends."""
        ...

    def close(self) -> None: ...
