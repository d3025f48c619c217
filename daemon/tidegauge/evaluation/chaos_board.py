"""The board of the chaos trial: the agent's own spool and link, without camera and accelerator, always at work.

`python -m tidegauge.evaluation.chaos_board FOLDER PORT` writes bundles and records as fast as they leave, and enters
each in a ledger once the spool has promised it: one line of JSON, synced. It runs until it is killed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sys
from pathlib import Path
from random import Random

import msgspec

from tidegauge.bundles.manifest import StoredTensor
from tidegauge.bundles.writer import BundleWriter
from tidegauge.clocks import stamp
from tidegauge.evaluation.durability_history import PLAIN
from tidegauge.link.config import LinkConfig
from tidegauge.link.uplink import Uplink
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.records import HistoryRecord
from tidegauge.spool.store import Spool
from tidegauge.tensors import TensorSpec

DEVICE = "chaos"
#: Bundles that wait at most: then the board writes no more.
WAITING = 6
#: Longest pause between two bundles, seconds; their blobs' number and bytes.
PAUSE, BLOBS, BYTES = 0.3, (1, 4), (1_000, 600_000)


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the ledger: a promise. `manifest`: SHA-256 of a bundle's."""

    id: str
    manifest: str = ""


def link(port: int) -> LinkConfig:
    """Impatient: what a board may take its time for would make the trial long."""
    return LinkConfig(
        port=port,
        chunk_bytes=32 * 1024,
        connect_timeout=5.0,
        publish_timeout=5.0,
        answer_timeout=0.5,
        backoff_first=0.05,
        backoff_most=0.3,
        status_interval=2.0,
        connect_jitter=0.0,
    )


class Ledger:
    """What was promised, by all runs of the board."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def enter(self, line: Line) -> None:
        os.write(self._fd, msgspec.json.encode(line) + b"\n")
        os.fsync(self._fd)


def read_ledger(path: Path) -> list[Line]:
    """Whole lines: one that was being written was no promise yet."""
    text = path.read_bytes() if path.exists() else b""
    return [msgspec.json.decode(line, type=Line) for line in text.split(b"\n")[:-1]]


def write_bundle(spool: Spool, bundle: str, rng: Random) -> str:
    """Into the spool; returns the SHA-256 of its manifest."""
    sizes = [rng.randrange(*BYTES) for _ in range(rng.randrange(*BLOBS))]
    writer = BundleWriter(spool.prepare(bundle, sum(sizes) + 65_536, 16))
    blobs = [writer.add_bytes(rng.randbytes(size), "raw") for size in sizes]
    tensors = tuple(StoredTensor(TensorSpec(f"t{at}", (b.size,), "uint8"), b) for at, b in enumerate(blobs))
    manifest = msgspec.structs.replace(PLAIN, bundle_id=bundle, device=DEVICE, created=stamp(), inputs=tensors)
    writer.seal(manifest)
    spool.commit(bundle)
    return hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()


async def work(folder: Path, spool: Spool, uplink: Uplink, session: int, until: Path) -> None:
    """Write until the file `until` is there."""
    ledger, rng, number = Ledger(folder / "ledger"), Random(), 0
    while not until.exists():
        if len(spool.pending()) < WAITING:
            number += 1
            bundle = f"bundle-{session:05d}-{number:05d}"
            ledger.enter(Line(bundle, await asyncio.to_thread(write_bundle, spool, bundle, rng)))
            now = stamp()
            record = HistoryRecord(f"h-{session}-{number}", session, number, now, now, "m")
            await asyncio.to_thread(spool.keep, record)
            ledger.enter(Line(record.id))
            uplink.wake()
        await asyncio.sleep(rng.random() * PAUSE)


async def run(folder: Path, port: int) -> None:
    session_file = folder / "session"
    session = int(session_file.read_text() or 0) + 1 if session_file.exists() else 1
    session_file.write_text(str(session))
    spool = Spool(folder / "spool", SpoolLimits(max_mib=64, headroom_mib=0, headroom_files=0))
    uplink = Uplink(link(port), DEVICE, spool, session)
    async with asyncio.TaskGroup() as group:
        group.create_task(uplink.run())
        group.create_task(work(folder, spool, uplink, session, folder / "enough"))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2])))
