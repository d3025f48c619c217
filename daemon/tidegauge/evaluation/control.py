"""Commands to a running agent over its control socket, as anybody may send them (docs/supervision.md)."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal

import msgspec

VERSION = 1
Command = Literal["GetStatus", "ClearAlarms", "CaptureNow", "SelfTest"]


class Alarm(msgspec.Struct, frozen=True):
    detector: str
    verdict: str
    message: str
    wall: float


class Worker(msgspec.Struct, frozen=True):
    name: str
    pid: int | None
    state: str


class Captures(msgspec.Struct, frozen=True):
    last: str


class Reference(msgspec.Struct, frozen=True):
    m0: float


class Status(msgspec.Struct, frozen=True):
    """What is read here of the agent's report."""

    phase: str
    health: str
    healthy: bool
    alarms: tuple[Alarm, ...]
    workers: tuple[Worker, ...]
    captures: Captures
    reference: Reference | None
    replaced_today: int
    suspect: bool
    last_end: str = ""


class Reply(msgspec.Struct, frozen=True):
    """`ok` False: `sentence` says why not."""

    ok: bool
    sentence: str
    cure: str = ""
    status: Status | None = None


def ask(state: Path, command: Command, timeout: float = 10.0) -> Reply:
    """Raises OSError where no agent answers in time."""
    request = msgspec.json.encode({"version": VERSION, "command": {"type": command}}) + b"\n"
    folder = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout)
            sock.connect(f"/proc/self/fd/{folder}/control.socket")
            sock.sendall(request)
            parts = []
            while part := sock.recv(1 << 16):
                parts.append(part)
    finally:
        os.close(folder)
    return msgspec.json.decode(b"".join(parts), type=Reply)


def status(state: Path) -> Status:
    """Raises OSError where no agent answers."""
    report = ask(state, "GetStatus").status
    if report is None:
        raise OSError("the agent's answer holds no status")
    return report
