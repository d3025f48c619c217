"""A journal for tests: a real datagram socket, and a reader of the native protocol that knows nothing of the writer."""

from __future__ import annotations

import array
import fcntl
import os
import socket
from pathlib import Path

ALL_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Peer:
    """`address`: what a writer sends to. `files`: how many entries came as a file. `socket`: readable at one."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "socket")
        self.files = 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.socket.setblocking(False)

    def entries(self) -> list[dict[str, bytes]]:
        """All that has come up to now."""
        found = []
        while (data := self._next()) is not None:
            found.append(parsed(data))
        return found

    def messages(self) -> list[str]:
        return [entry["MESSAGE"].decode() for entry in self.entries()]

    def _next(self) -> bytes | None:
        try:
            data, control, _, _ = self.socket.recvmsg(1 << 20, socket.CMSG_SPACE(4))
        except BlockingIOError:
            return None
        if not control:
            return data
        assert data == b"", "a file goes with an empty payload"
        ((_, _, passed),) = control
        (fd,) = array.array("i", passed)
        try:
            assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & ALL_SEALS == ALL_SEALS, "journald takes sealed files only"
            self.files += 1
            return os.pread(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)

    def close(self) -> None:
        self.socket.close()


def parsed(data: bytes) -> dict[str, bytes]:
    """The fields of an entry, as "Native Journal Protocol" lays them out."""
    fields: dict[str, bytes] = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, text, value = line.partition(b"=")
        if not text:
            length = int.from_bytes(rest[:8], "little")
            value, end, data = rest[8 : 8 + length], rest[8 + length : 9 + length], rest[9 + length :]
            assert len(value) == length and end == b"\n", "a value has its length and a line's end"
        else:
            data = rest
        assert name.decode() not in fields
        fields[name.decode()] = value
    return fields
