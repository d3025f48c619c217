"""The topics of file transfer: `tidegauge/v1/{device}/file/{file_id}/{init | offset/sha256 | fin/size/sha256 | abort}`.

The suffix is the grammar of EMQX's file transfer over MQTT (EIP-0021). A topic comes from a peer: it is matched whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegauge.errors import TidegaugeError
from tidegauge.link.wire import PREFIX, topic

MAX_SIZE = 1 << 40

_DEVICE = r"(?P<device>[A-Za-z0-9_-]{1,64})"
_FILE = r"(?P<file>[0-9a-f]{64})"
_NUMBER = r"(?:0|[1-9][0-9]{0,12})"
_TOPIC = re.compile(
    rf"{PREFIX}/{_DEVICE}/file/{_FILE}/"
    rf"(?:(?P<init>init)|(?P<abort>abort)|(?P<offset>{_NUMBER})/(?P<chunk>[0-9a-f]{{64}})"
    rf"|fin/(?P<size>{_NUMBER})/(?P<whole>[0-9a-f]{{64}}))",
    re.ASCII,
)


class BadTopic(TidegaugeError):
    """A topic that isn't one of a file transfer."""


@dataclass(frozen=True, slots=True)
class InitCommand:
    """Open or resume a transfer. Payload: JSON `wire.Init`."""


@dataclass(frozen=True, slots=True)
class ChunkCommand:
    """Bytes from `offset` on, `sha256` over the payload."""

    offset: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FinCommand:
    """All chunks are sent: keep the file of `size` bytes and `sha256`. Empty payload."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class AbortCommand:
    """The sender gives the transfer up. Empty payload."""


Command = InitCommand | ChunkCommand | FinCommand | AbortCommand


@dataclass(frozen=True, slots=True)
class FileTopic:
    """A topic, taken apart."""

    device: str
    file_id: str
    command: Command


def parse(text: str) -> FileTopic:
    """Take a topic apart; raises `BadTopic`."""
    found = _TOPIC.fullmatch(text)
    if found is None:
        raise BadTopic(f"{text[:200]!r} is not the topic of a file transfer")
    command: Command
    if found["init"]:
        command = InitCommand()
    elif found["abort"]:
        command = AbortCommand()
    elif found["offset"] is not None:
        command = ChunkCommand(int(found["offset"]), found["chunk"])
    else:
        command = FinCommand(int(found["size"]), found["whole"])
    return FileTopic(found["device"], found["file"], command)


def init_topic(device: str, file_id: str) -> str:
    return topic(device, "file", file_id, "init")


def chunk_topic(device: str, file_id: str, offset: int, sha256: str) -> str:
    return topic(device, "file", file_id, str(offset), sha256)


def fin_topic(device: str, file_id: str, size: int) -> str:
    """A file's id is its SHA-256, so it is also the checksum at the end."""
    return topic(device, "file", file_id, "fin", str(size), file_id)


def response_topic(device: str) -> str:
    return topic(device, "file-response")
