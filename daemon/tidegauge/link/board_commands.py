"""What a board can be told to do: the one list of commands, for its own socket, for operators and for the collector.

A board obeys what is here and nothing else (`agent.remote`).
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

LogLevel = Literal["debug", "info", "warning", "error"]


class Command(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """A command; its class name is its tag. A parameter that is not known is refused: it was meant to do something."""


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


class SetSampling(Command, frozen=True):
    """Seconds between shadow samples on average, within the CPU budget, until agent.toml is read again.

    `gap_floor`: at least so many; None takes a third of the mean.
    """

    gap_mean: Annotated[float, Meta(gt=0, le=86400)]
    gap_floor: Annotated[float, Meta(ge=0, le=86400)] | None = None


class Reload(Command, frozen=True):
    """Read agent.toml again now; an answer says what was taken, and what waits for a restart."""


class Pull(Command, frozen=True):
    """Send a bundle of the spool before all others, whatever the hour: what the collector wants of it, and no more.

    It needs no key: privacy and the day's budget are the board's own, and it deletes nothing.
    """

    bundle: Annotated[str, Meta(pattern=r"^[0-9A-Za-z-]{8,64}$")]


AnyCommand = GetStatus | ClearAlarms | Rebaseline | CaptureNow | SelfTest | SetLogLevel | SetSampling | Reload | Pull

#: All that a board obeys, by name, and what of it needs no operator's key over the broker.
COMMANDS = frozenset(kind.__name__ for kind in get_args(AnyCommand))
KEYLESS = frozenset({Pull.__name__})


def decode_command(data: bytes) -> AnyCommand:
    """A command in JSON. Raises msgspec.DecodeError."""
    return _decoder.decode(data)


_decoder: msgspec.json.Decoder[AnyCommand] = msgspec.json.Decoder(AnyCommand, strict=True)
