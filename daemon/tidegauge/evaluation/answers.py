"""What a product gets: the answers that an agent publishes on its results socket, with their doubts."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from tidegauge.pipeline.results import HEADER_LENGTH, ResultHeader

_RETRY_SECONDS = 0.02
_READ_SECONDS = 0.5


class Answer(msgspec.Struct, frozen=True):
    """`wall`: when it came, seconds since 1970; `digest`: of its tensors' bytes."""

    wall: float
    digest: str
    doubts: tuple[str, ...]


class Answers:
    """Every answer since `listening` began; each generation of the pipeline worker has a socket of its own there."""

    def __init__(self) -> None:
        self._answers: list[Answer] = []
        self._stop = threading.Event()

    def since(self, wall: float) -> list[Answer]:
        """Those that came at `wall` or later."""
        return [answer for answer in list(self._answers) if answer.wall >= wall]

    @contextmanager
    def listening(self, path: Path) -> Iterator[Answers]:
        thread = threading.Thread(target=self._listen, args=(path,), name="answers", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()

    def _listen(self, path: Path) -> None:
        while not self._stop.wait(_RETRY_SECONDS):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(_READ_SECONDS)
                try:
                    _connect(client, path)
                    with client.makefile("rb") as stream:
                        while not self._stop.is_set():
                            self._answers.append(_read(stream))
                except (OSError, EOFError):
                    continue  # no worker at the moment, or none that answers: try again

    @property
    def count(self) -> int:
        return len(self._answers)


def _connect(client: socket.socket, path: Path) -> None:
    """Through the folder's descriptor: the address of a socket has no room for a long path."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        client.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _read(stream: BinaryIO) -> Answer:
    header = msgspec.msgpack.decode(_exactly(stream, *HEADER_LENGTH.unpack(_exactly(stream, 4))), type=ResultHeader)
    data = _exactly(stream, header.nbytes)
    return Answer(time.time(), hashlib.sha256(data).hexdigest(), header.doubts)


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise EOFError
    return data
