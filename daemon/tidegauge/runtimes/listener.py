"""Hears what Python code prints, while it goes on to where it was going."""

from __future__ import annotations

import io
from typing import TextIO

#: A runtime says what matters early.
_MOST = 1 << 16


class Listener(io.TextIOBase):
    """A text stream for `contextlib.redirect_stdout`: passes everything on to `stream`, keeps the first 64 KiB.

    What C code prints goes past it, through the file descriptor.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.heard = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.heard += text[: _MOST - len(self.heard)]
        self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()
