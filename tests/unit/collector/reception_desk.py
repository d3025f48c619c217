"""A collector's desk, and a board's own sender in front of it, without a broker between."""

from __future__ import annotations

import hashlib
from random import Random

from tidegauge.collector.reception import Reception
from tidegauge.collector.shelf import Shelf
from tidegauge.link.commands import chunk_topic, init_topic, parse
from tidegauge.link.sender import Done, Outgoing, Refused, Sender
from tidegauge.link.transfer import FileRef, Publish, SendChunk, SenderLimits
from tidegauge.link.wire import FileResponse, Init, encode

DEVICE = "cam-1"


class Desk:
    """A collector that keeps nothing in memory between messages: each is a restart of it."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.received = shelf, 0

    def handle(self, topic: str, payload: bytes) -> list[FileResponse]:
        found = parse(topic)
        reception = Reception(found.device, found.file_id, self.shelf)
        answers = reception.handle([(topic, found.command, payload)], 0.0)
        reception.record()
        self.received += len(payload)
        return answers


def send(desk: Desk, bundle: object, device: str = DEVICE) -> list[Done | Refused]:
    """Send one bundle with the real sender until it says how it ended."""
    head, blobs = bundle.head, bundle.blobs  # type: ignore[attr-defined]
    files = {hashlib.sha256(head).hexdigest(): head, **blobs}
    refs = {name: FileRef(name, len(data), name) for name, data in blobs.items()}
    outgoing = Outgoing("b", FileRef(next(iter(files)), len(head), "manifest.json"), refs)
    sender = Sender(device, SenderLimits(chunk=4096), Random(1))
    todo = [*sender.add(outgoing, 0.0), *sender.connected(None, 0.0)]
    ends: list[Done | Refused] = []
    for _ in range(1000):
        if not todo or ends:
            return ends
        action = todo.pop(0)
        if isinstance(action, Done | Refused):
            ends.append(action)
        elif isinstance(action, Publish | SendChunk):
            if isinstance(action, Publish):
                topic, payload = action.topic, action.payload
            else:
                payload = files[action.file_id][action.offset : action.offset + action.length]
                digest = hashlib.sha256(payload).hexdigest()
                topic = chunk_topic(device, action.file_id, action.offset, digest)
            todo += sender.sent(0.0)
            for answer in desk.handle(topic, payload):
                todo += sender.response(answer, 0.0)
    raise AssertionError("the transfer does not end")


def begin(desk: Desk, data: bytes, name: str = "blob") -> tuple[str, FileResponse]:
    file_id = hashlib.sha256(data).hexdigest()
    (answer,) = desk.handle(init_topic(DEVICE, file_id), encode(Init(name, len(data), file_id)))
    return file_id, answer


def chunk(desk: Desk, file_id: str, offset: int, data: bytes) -> FileResponse:
    topic = chunk_topic(DEVICE, file_id, offset, hashlib.sha256(data).hexdigest())
    return desk.handle(topic, data)[0]
