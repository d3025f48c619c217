"""Some hundred boards in one process, each with a connection and a sender of its own: status, history, and of some an
alarm with its bundle. A line of JSON on stdout for each board that is through.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from pathlib import Path
from random import Random

import msgspec

from integration.collector_peer import Board
from tidegauge.clocks import Stamp
from tidegauge.link import mqtt
from tidegauge.link.config import LinkConfig
from tidegauge.link.errors import LinkError
from tidegauge.link.sender import Done, Outgoing
from tidegauge.link.transfer import FileRef
from tidegauge.link.wire import AlarmChange, Status, encode, topic
from tidegauge.spool.records import HistoryRecord, Sums, encode_line

#: Seconds between two tries of a board that was cut off, and those over which boards come up.
AGAIN, SPREAD = 1.0, 5.0


class Task(msgspec.Struct):
    """Boards `first` … `first + count - 1`. Those whose number is in `bundles` send one, from a folder."""

    port: int
    first: int
    count: int
    hours: int
    bundles: dict[int, str]
    at_once: int = 40


class Through(msgspec.Struct):
    """A board has sent all. Unix seconds; `alarm` 0 where it had none."""

    device: str
    alarm: float
    stored: float
    bytes: int


def device_of(number: int) -> str:
    return f"board-{number:05d}"


async def main(task: Task) -> None:
    gate = asyncio.Semaphore(task.at_once)
    async with asyncio.TaskGroup() as group:
        for number in range(task.first, task.first + task.count):
            group.create_task(_board(task, number, gate))


async def _board(task: Task, number: int, gate: asyncio.Semaphore) -> None:
    device = device_of(number)
    await asyncio.sleep(Random(number).random() * SPREAD)
    folder = task.bundles.get(number)
    alarm = 0.0
    await _until_done(lambda: _speak(task.port, device, "" if folder is None else "loss"))
    if folder is not None:
        alarm = time.time()
        await _until_done(lambda: _raise_alarm(task.port, device, alarm))
    async with gate:
        sent = await _until_done(lambda: _send_history(task.port, device, task.hours))
        if folder is not None:
            sent += await _until_done(lambda: _send_bundle(task.port, device, Path(folder)))
    line = msgspec.json.encode(Through(device, alarm, time.time(), sent))
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


async def _until_done(step) -> int:  # type: ignore[no-untyped-def]  # a coroutine function without arguments
    """A broker or ingester that is killed cuts a step off: it begins again, as after a restart of the board."""
    while True:
        try:
            return int(await step() or 0)
        except (LinkError, TimeoutError):
            await asyncio.sleep(AGAIN * (0.5 + Random().random()))


async def _speak(port: int, device: str, alarm: str) -> None:
    status = Status("online", 1, version="0.1.0", virtual=True, model="enhancer", phase="monitoring", alarm=alarm)
    async with mqtt.connect(LinkConfig(port=port), f"board-{device}") as connection:
        await connection.publish(topic(device, "status"), encode(status), retain=True)


async def _raise_alarm(port: int, device: str, at: float) -> None:
    change = AlarmChange(
        "alarm-1", True, "loss", "accelerator", ("gain",), "It drifts.", at, "boot", 1.0, {"loss": 9.0}
    )
    async with mqtt.connect(LinkConfig(port=port), f"board-{device}") as connection:
        await connection.publish(topic(device, "alarm"), encode(change))


async def _send_history(port: int, device: str, hours: int) -> int:
    now = 1_790_000_000.0
    lines = [
        encode_line(
            HistoryRecord(
                f"{device}-{hour}",
                1,
                hour + 1,
                Stamp(now + 3600 * hour, "boot", 3600.0 * hour),
                Stamp(now + 3600 * hour + 3600, "boot", 3600.0 * hour + 3600),
                "enhancer",
                "0123456789ab",
                "0.1.0",
                "monitoring",
                {"shadow_samples": 55},
                Sums(55, 0.9, 0.02, 0.01, 0.05),
                Sums(60, 3500.0, 0.0, 52.0, 64.0),
                {"loss": (0.6, 13.17)},
            )
        )
        for hour in range(hours)
    ]
    data = b"".join(lines)
    board = Board(port, data, {}, device)
    ref = FileRef(hashlib.sha256(data).hexdigest(), len(data), "history-1", {"kind": "records"})
    board.outgoing = Outgoing("records", ref, {})
    return await _through(board, len(data))


async def _send_bundle(port: int, device: str, folder: Path) -> int:
    head = (folder / "manifest.json").read_bytes()
    blobs = {path.name: path.read_bytes() for path in (folder / "blobs" / "sha256").iterdir()}
    board = Board(port, head, blobs, device)
    return await _through(board, len(head) + sum(map(len, blobs.values())))


async def _through(board: Board, size: int) -> int:
    end = await board.send()
    if not isinstance(end, Done):
        raise RuntimeError(f"{board.device}: {end}")
    return size


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Task)))
