"""systemd's journal, spoken to by its native protocol: fields beside the sentence, and no wait.

Source: systemd's documentation "Native Journal Protocol" (systemd.io/JOURNAL_NATIVE_PROTOCOL); for the names of fields
systemd.journal-fields(7); for JOURNAL_STREAM systemd.exec(5). docs/adr/0020 says why no library does it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import socket
from array import array
from collections.abc import Mapping

Value = str | bytes | int | float

SOCKET = "/run/systemd/journal/socket"
#: A field's name: what begins with "_" is journald's own, and it drops an entry that has no right name at all.
NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
#: Levels of `logging` as syslog's priorities.
PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
DEBUG = 7
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def is_stream(fd: int, environment: Mapping[str, str]) -> bool:
    """Whether what is written to `fd` goes to the journal: JOURNAL_STREAM (device:inode) is this very file."""
    named = re.fullmatch(r"(\d{1,20}):(\d{1,20})", environment.get("JOURNAL_STREAM", ""), re.ASCII)
    if named is None:
        return False
    try:
        found = os.fstat(fd)
    except OSError:
        return False  # a closed one is nobody's
    return (found.st_dev, found.st_ino) == (int(named[1]), int(named[2]))


def encode(fields: Mapping[str, Value]) -> bytes:
    """One entry. A value of bytes, or with a line break, goes with its length (64 bit, little-endian) before it.

    Raises ValueError for a name that the journal would not keep.
    """
    parts = []
    for name, value in fields.items():
        if NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no name of a journal field")
        # A path may hold bytes that are no UTF-8: they are shown, never a reason to lose the line.
        data = value if isinstance(value, bytes) else str(value).encode(errors="backslashreplace")
        if isinstance(value, bytes) or b"\n" in data:
            parts += [name.encode(), b"\n", len(data).to_bytes(8, "little"), data, b"\n"]
        else:
            parts += [name.encode(), b"=", data, b"\n"]
    return b"".join(parts)


class Journal:
    """The journal's socket. `lost`: entries that it could not take at once."""

    def __init__(self, address: str = SOCKET) -> None:
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self.lost = 0

    def send(self, fields: Mapping[str, Value]) -> bool:
        """Whether it was taken. Never waits: a full socket, or a journal that is away, costs the entry."""
        data = encode(fields)
        try:
            try:
                self._socket.sendto(data, self._address)
            except OSError as error:
                if not _too_large(error):
                    raise
                self._send_file(data)
        except OSError:
            # Told by number: whoever waits, or writes elsewhere, would stand still with the journal.
            self.lost += 1
            return False
        return True

    def _send_file(self, data: bytes) -> None:
        """An entry too large for a datagram: a sealed memory file in the place of it."""
        fd = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))]
            self._socket.sendmsg([], passed, 0, self._address)
        finally:
            os.close(fd)

    def close(self) -> None:
        self._socket.close()


def priority(level: int) -> int:
    return next((number for least, number in PRIORITIES if level >= least), DEBUG)


def _too_large(error: OSError) -> bool:
    # ENOBUFS too: systemd's own client takes both for a datagram beyond the socket's buffer.
    return error.errno in (errno.EMSGSIZE, errno.ENOBUFS)
