"""What goes over the control socket: one request, one answer, each one line of JSON, then the connection is closed."""

from __future__ import annotations

from typing import Literal

import msgspec

from tidegauge.agent.status import StatusReport

VERSION = 1
#: Name of the socket in the state folder.
SOCKET = "control.socket"
MAX_REQUEST = 64 * 1024

LogLevel = Literal["debug", "info", "warning", "error"]


class Command(msgspec.Struct, tag=True, frozen=True):
    """A command; its class name is its tag."""


class GetStatus(Command, frozen=True):
    """Changes nothing; the answer carries the report."""


class ClearAlarms(Command, frozen=True):
    """Evidence to zero, the reference kept; an accelerator that was given up is tried again."""


class Rebaseline(Command, frozen=True):
    """A new acceptance. Refused while a symptom or a golden mismatch holds."""


class CaptureNow(Command, frozen=True):
    """A capture of the next frame's input tensor. All limits hold."""


class SelfTest(Command, frozen=True):
    """A round over the golden set."""


class SetLogLevel(Command, frozen=True):
    """Until the agent ends."""

    level: LogLevel


AnyCommand = GetStatus | ClearAlarms | Rebaseline | CaptureNow | SelfTest | SetLogLevel


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
