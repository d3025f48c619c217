"""What a running agent can be asked, and how it goes over the control socket: one request, one answer, each one line of
JSON, then the connection is closed. The same commands come over the broker, signed (`agent.remote`).
"""

from __future__ import annotations

import msgspec

from tidegauge.agent.status import StatusReport
from tidegauge.link.board_commands import (
    COMMANDS,
    KEYLESS,
    AnyCommand,
    CaptureNow,
    ClearAlarms,
    Command,
    GetStatus,
    LogLevel,
    Pull,
    Rebaseline,
    Reload,
    SelfTest,
    SetLogLevel,
    SetSampling,
    decode_command,
)

__all__ = [
    "COMMANDS",
    "KEYLESS",
    "MAX_REQUEST",
    "SOCKET",
    "VERSION",
    "Answer",
    "AnyCommand",
    "CaptureNow",
    "ClearAlarms",
    "Command",
    "GetStatus",
    "LogLevel",
    "Pull",
    "Rebaseline",
    "Reload",
    "Request",
    "SelfTest",
    "SetLogLevel",
    "SetSampling",
    "decode_command",
]

VERSION = 1
#: Name of the socket in the state folder.
SOCKET = "control.socket"
MAX_REQUEST = 64 * 1024


class Request(msgspec.Struct, frozen=True):
    version: int
    command: AnyCommand


class Answer(msgspec.Struct, frozen=True):
    """`ok` False: `sentence` says why not, `cure` what to do. `status` after the command, where it was carried out."""

    version: int
    ok: bool
    sentence: str
    cure: str = ""
    status: StatusReport | None = None
