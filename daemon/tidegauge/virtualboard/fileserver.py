"""The C7x's file operations, which the remote-log server does for it, and the ways in which they never end.

For each file the C7x asks the ARM side to open it for writing, close it, open it for appending, write pieces of 200
KiB and close it (app_fileio_core.c, SDK 11.1). So a close alone doesn't mean that a file is complete. An operation
that fails is tried again for ever, and without a server every operation waits for ever.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from tidegauge.virtualboard import remote_log
from tidegauge.virtualboard.state import BoardState, BoardWatch

PIECE_BYTES = 200 * 1024  # APP_FILEIO_PER_CPU_MEM_SIZE
_RETRY_SECONDS = 0.01


class FileServer:
    """File operations as the C7x asks for them, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._watch = BoardWatch(folder)
        self._files = 0

    @property
    def state(self) -> BoardState:
        return self._watch.current()

    def write(self, path: Path, data: bytes, tiles: int = 1) -> None:
        """Write one trace. Returns when it is complete; waits for ever where the real C7x does.

        A super-tiled layer's is read, changed and written again for each tile: it has its full size from the first
        one on, and is opened and closed again and again.
        """
        for tile in range(1, tiles + 1):
            done = len(data) * tile // tiles
            self._write(path, data[:done] + bytes(len(data) - done))
        self._files += 1

    def _write(self, path: Path, data: bytes) -> None:
        self._operation(lambda: path.open("wb").close(), f"FOPEN : Could not open file {path}")
        self._operation(lambda: None, "")  # fclose
        file = self._operation(lambda: path.open("ab", buffering=0), f"FOPEN : Could not open file {path}")
        server = remote_log.generation(self._folder)
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            self._fwrite(file, server, path.parent, view[start : start + PIECE_BYTES])
        self._operation(file.close, "")

    def _fwrite(self, file: BinaryIO, server: int, folder: Path, piece: memoryview) -> None:
        done = 0

        def action() -> int:
            if self._forgotten(server):
                # The handle is a pointer of a process that is no more.
                raise OSError(errno.EBADF, "FWRITE : File not open")
            return file.write(piece[done : done + self._room(folder, len(piece) - done)])

        while done < len(piece):
            done += self._operation(action, f"Fwrite error - count {len(piece)} written {done}")

    def _forgotten(self, server: int) -> bool:
        still = self.state.failing("server_restarted")
        return (still is not None and self._files >= still) or remote_log.generation(self._folder) != server

    def _room(self, folder: Path, wanted: int) -> int:
        capacity = self.state.failing("trace_folder_full")
        if capacity is None:
            return wanted
        room = int(capacity) - sum(path.stat().st_size for path in folder.glob("*tidl_trace*"))
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return min(room, wanted)

    def _operation(self, action: Callable[[], Any], complaint: str) -> Any:
        logged, last = 0.0, ""
        while True:
            while remote_log.server_pid(self._folder) is None or self.state.failing("no_log_server") is not None:
                time.sleep(_RETRY_SECONDS)
            pause = max(self.state.trace_op_seconds, self.state.failing("slow_dump") or 0.0)
            if pause:
                time.sleep(pause)
            try:
                return action()
            except OSError as error:
                # The real server answers an error but never clears the flag: the C7x waits, the log is flooded.
                text = "FWRITE : File not open" if error.errno == errno.EBADF else complaint
                if text != last or time.monotonic() - logged > 1.0:
                    remote_log.append(self._folder, text)
                    logged, last = time.monotonic(), text
                time.sleep(_RETRY_SECONDS)
