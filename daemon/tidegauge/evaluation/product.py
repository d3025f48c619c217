"""The board's product as far as a monitor can be in its way: a process that reads every answer, and notes when it came.

Started as `python -m tidegauge.evaluation.product`, so that it shares neither interpreter nor thread with what is
measured.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time

import msgspec

from tidegauge.pipeline.channel import Channel
from tidegauge.pipeline.messages import Message, Stop
from tidegauge.pipeline.process import first_command, protocol_fault, run_worker
from tidegauge.pipeline.results import HEADER_LENGTH, ResultHeader


class ReadAnswers(Message):
    """Connect to this results socket, and read until it closes."""

    socket: str


class Connected(Message):
    """The results socket is open."""


class Collect(Message):
    """Tell what has come since the last time."""


class Answers(Message):
    """When each answer had come as a whole, and how long after its picture was taken; monotonic seconds."""

    came: tuple[tuple[float, float], ...]


ProductCommand = ReadAnswers | Collect | Stop
ProductEvent = Connected | Answers


class _Reader(threading.Thread):
    def __init__(self, path: str) -> None:
        super().__init__(name="answers", daemon=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lock = threading.Lock()
        self._came: list[tuple[float, float]] = []

    def run(self) -> None:
        with self._socket, self._socket.makefile("rb") as stream:
            while head := stream.read(HEADER_LENGTH.size):
                header = msgspec.msgpack.decode(stream.read(HEADER_LENGTH.unpack(head)[0]), type=ResultHeader)
                if len(stream.read(header.nbytes)) < header.nbytes:
                    return
                now = time.monotonic()
                with self._lock:
                    self._came.append((now, now - header.captured))

    def take(self) -> tuple[tuple[float, float], ...]:
        with self._lock:
            came, self._came = tuple(self._came), []
        return came

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the server has hung up already
            self._socket.shutdown(socket.SHUT_RDWR)
        self.join(5.0)


def body(channel: Channel[ProductCommand]) -> None:
    start: ReadAnswers = first_command(channel, ReadAnswers)
    reader = _Reader(start.socket)
    reader.start()
    channel.send(Connected())
    try:
        while True:
            command, _ = channel.receive()
            if isinstance(command, ReadAnswers):
                raise protocol_fault("ReadAnswers came twice")
            if not isinstance(command, Collect):
                return
            channel.send(Answers(reader.take()))
    finally:
        reader.close()


def main() -> int:
    return run_worker(ProductCommand, body)


if __name__ == "__main__":
    sys.exit(main())
