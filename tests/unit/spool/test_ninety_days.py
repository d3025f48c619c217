"""Ninety days without a link, in simulated time: the whole drift history, the first and the worst bundles, in quota."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from tidegauge.bundles.manifest import Cause, StoredTensor
from tidegauge.bundles.writer import BundleWriter
from tidegauge.clocks import Stamp
from tidegauge.evaluation.crash_disk import CrashDisk
from tidegauge.evaluation.durability_history import PLAIN
from tidegauge.spool.limits import MIB, SpoolLimits
from tidegauge.spool.planner import DropReason
from tidegauge.spool.records import HistoryRecord, Sums, Tombstone, encode_line, parse
from tidegauge.spool.store import Spool
from tidegauge.tensors import TensorSpec

ROOT = Path("/disk")
LIMITS = SpoolLimits(max_mib=1, headroom_mib=1, headroom_files=10, max_age_days=90.5)
DAYS = 90
CAUSES = ("loss", "nmse", "known_answer")


class Clock:
    """A board's whose clock was never set: it boots in 1970 now and then."""

    def __init__(self) -> None:
        self.wall, self.uptime, self.boot = 0.0, 0.0, 0

    def __call__(self) -> Stamp:
        return Stamp(self.wall, f"boot-{self.boot}", self.uptime)

    def hour(self) -> None:
        self.wall, self.uptime = self.wall + 3600, self.uptime + 3600

    def reboot(self) -> None:
        self.wall, self.uptime, self.boot = 0.0, 0.0, self.boot + 1


def record(clock: Clock, number: int) -> HistoryRecord:
    """As large as a busy hour's."""
    sums = Sums(60, 1.234567, 0.0456789, 0.01, 0.34, (50, 5, 3, 1, 1, 0), (0.01, 0.05, 0.1, 0.2, 0.5), 1)
    counts = {f"shadow_samples/skipped_{name}": 1234 for name in ("budget", "load", "latency", "no_slot", "stale")}
    evidence = {"loss": (1.2345, 13.17), "nmse": (0.2345, 13.17)}
    return HistoryRecord(
        f"h-{number:06d}",
        1 + clock.boot,
        number,
        clock(),
        clock(),
        "enhancer",
        "0123456789ab",
        "0.1.0",
        "watching",
        counts,
        sums,
        sums,
        sums,
        {"day": 40, "low_light": 20},
        evidence,
        ("loss",),
    )


def put(spool: Spool, disk: CrashDisk, clock: Clock, name: str, loss: float, cause: Cause, size: int) -> None:
    writer = BundleWriter(spool.prepare(name, size + 32_768, 6), disk)
    blob = writer.add_bytes(Random(name).randbytes(size), "raw")
    tensor = StoredTensor(TensorSpec("x", (size,), "uint8"), blob)
    writer.seal(
        msgspec.structs.replace(
            PLAIN, bundle_id=name, created=clock(), loss=loss, cause=cause, inputs=(tensor,), device="board"
        )
    )
    spool.commit(name)


@pytest.mark.parametrize("seed", range(3))
def test_ninety_days_without_a_link(seed: int) -> None:
    rng, clock, disk = Random(seed), Clock(), CrashDisk(ROOT, capacity=6 * MIB, inodes=4000)
    spool = Spool(ROOT / "spool", LIMITS, disk, clock)
    hours: set[str] = set()
    bundles: dict[str, tuple[str, float]] = {}
    for hour in range(24 * DAYS):
        clock.hour()
        if rng.random() < 0.01:
            disk = disk.after_cut(rng)
            clock.reboot()
            spool = Spool(ROOT / "spool", LIMITS, disk, clock)
        kept = record(clock, hour)
        spool.keep(kept)
        hours.add(kept.id)
        if rng.random() < 0.06:
            kind, loss = rng.choice(CAUSES), rng.random()
            name = f"bundle-{hour:05d}"
            put(spool, disk, clock, name, loss, Cause(kind, "accelerator", (), {}, ""), rng.randrange(5_000, 40_000))
            bundles[name] = (kind, loss)
        spool.trim()
        assert spool.usage().bytes <= LIMITS.bytes
        assert disk.room(ROOT).bytes >= LIMITS.headroom_bytes
    assert len(bundles) > 50

    # All that was promised is still here, or there is a word of it.
    segments = spool.journal.close()
    found = [each for file in segments for each in parse(disk.read(file.path, file.bytes)).records]
    assert hours == {each.id for each in found if isinstance(each, HistoryRecord)}
    here = [entry.id for entry in spool.by_priority()]
    told = {each.id: each.reason for each in found if isinstance(each, Tombstone)}
    assert bundles.keys() == set(here) | told.keys()
    assert {told[name] for name in bundles.keys() - set(here)} == {DropReason.EVICTED}
    assert spool.journal.bytes <= LIMITS.journal_bytes

    # The first of each cause, the worst, and the newest were kept, and go in this order.
    firsts = [next(name for name, (kind, _) in bundles.items() if kind == each) for each in CAUSES]
    assert set(here[:3]) == set(firsts)
    worst = max(bundles, key=lambda name: bundles[name][1])
    assert worst in here[:4]
    assert max(bundles) in here
    rest = [bundles[name][1] for name in here[3:]]
    assert rest == sorted(rest, reverse=True)


def test_a_record_of_a_busy_hour_is_about_a_kilobyte() -> None:
    assert 500 < len(encode_line(record(Clock(), 1))) < 1500
