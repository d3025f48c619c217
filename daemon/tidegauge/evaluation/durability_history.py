"""Power cuts at every step of random histories of the spool, on a disk that keeps only what was synced.

The code is the spool's own; only the file system under it is a model (`crash_disk`). After each cut a new spool starts
on what the disk may hold then, and must keep what the old one had promised: a bundle after `commit`, a record after
`keep`, a removal after `remove`, a tombstone of what was given up.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from tidegauge.bundles import layout
from tidegauge.bundles.manifest import Cause, Inventory, Manifest, StoredTensor, blobs_of
from tidegauge.bundles.reader import decode_manifest
from tidegauge.bundles.writer import BundleWriter
from tidegauge.clocks import Stamp
from tidegauge.errors import TidegaugeError
from tidegauge.evaluation.crash_disk import CrashDisk
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.spool.faults import SpoolFault
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.planner import DropReason
from tidegauge.spool.records import HistoryRecord, Record, Tombstone, parse
from tidegauge.spool.states import DELETING, INCOMING
from tidegauge.spool.store import Spool, SpoolFull
from tidegauge.tensors import TensorSpec

ROOT = Path("/disk")
FOLDER = ROOT / "spool"
#: So small that bundles are given up after the third or fourth.
LIMITS = SpoolLimits(max_mib=1, max_files=20, headroom_mib=0, headroom_files=0)
#: Room for a bundle, as it is announced.
BYTES, INODES = 32_768, 6
OPERATIONS = 12
#: Share of operations that the power cuts short, and the history goes on after it.
CUT_SHORT = 0.15
#: Share of start-ups after a cut that are cut themselves.
CUT_AGAIN = 0.1
DAY = 86_400.0

#: What must not be found, as goals; in words.
VIOLATIONS = {
    "lost": "promised bundles that were lost",
    "corrupt": "bundles with other bytes than were written",
    "came_back": "removed bundles that came back",
    "record_lost": "promised records that were lost",
    "untold": "bundles given up without a tombstone",
    "order": "bundles in another order than they were committed in",
    "unclean": "whole things taken for damaged or foreign, and leftovers",
    "over_quota": "starts with more than the quota and one bundle",
    "no_start": "starts that failed",
}

PLAIN = Manifest(
    bundle_id="bundle-0",
    device="board",
    virtual=True,
    created=Stamp(0.0, "", 0.0),
    cause=Cause("loss", "accelerator", (), {}, ""),
    profile=Profile("m", "onnx", "m.onnx", "a", Preprocess(8, 8), Output("o", "image", 1 / 255)),
    inventory=Inventory({}, "cd" * 32, {}, {}),
    options={},
    benchmark={},
    inputs=(),
    device_outputs=(),
    reference_outputs=(),
    traced_outputs=(),
    tracing_changed_output=False,
    errors=(),
    loss=0.5,
    traces=(),
    logs=(),
    model=None,
    artifacts=(),
)


class PowerCut(Exception):
    """Of the model: the process is gone."""


class Outcome(msgspec.Struct):
    """Of some histories: power cuts tried, and what was found after them, by `VIOLATIONS`."""

    histories: int
    cuts: int
    steps: int
    found: dict[str, int]
    first: str = ""

    def add(self, other: Outcome) -> None:
        self.histories += other.histories
        self.cuts += other.cuts
        self.steps += other.steps
        self.found = dict(Counter(self.found) + Counter(other.found))
        self.first = self.first or other.first


Forget = Callable[[str, Path], bool]


def history(seed: int, share: float = 1.0, forget: Forget | None = None) -> Outcome:
    """One random history, cut before a `share` of its steps. `forget`: syncs that the disk shall not carry out."""
    return _History(seed, share, forget).run()


class _Clock:
    """A board's: each boot has an id, and may begin in 1970 or before the last."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._boot = rng, 0
        self.wall, self.uptime = 1.75e9, 10.0

    def __call__(self) -> Stamp:
        return Stamp(self.wall, f"boot-{self._boot}", self.uptime)

    def passes(self, seconds: float) -> None:
        self.wall, self.uptime = self.wall + seconds, self.uptime + seconds

    def reboot(self) -> None:
        self._boot += 1
        self.uptime = 5.0
        self.wall = self._rng.choice((self.wall + 60.0, 5.0, self.wall - 3 * DAY, 1.75e9))


class _History:
    def __init__(self, seed: int, share: float, forget: Forget | None) -> None:
        self._rng, self._share, self._seed = Random(seed), share, seed
        self._clock = _Clock(self._rng)
        self._forget = forget or (lambda kind, path: False)
        self._disk = CrashDisk(ROOT)
        self._disk.forget = self._forget
        self._cut_in: int | None = None
        self._spool: Spool | None = None
        self._number = 0
        #: By bundle: SHA-256 of its manifest. All that were ever written, and those that were promised.
        self._written: dict[str, str] = {}
        self._promised: list[str] = []
        self._coming: set[str] = set()
        self._going: set[str] = set()
        #: Being given up by the spool when the power went.
        self._leaving: set[str] = set()
        self._gone: set[str] = set()
        self._given_up: set[str] = set()
        self._records: set[str] = set()
        self.outcome = Outcome(1, 0, 0, {})

    def run(self) -> Outcome:
        self._disk.before = self._before
        self._do(self._start)
        todo = (self._write, self._write, self._write, self._remove, self._record, self._record, self._send)
        for _ in range(OPERATIONS):
            self._do(self._rng.choice((*todo, self._give_up_writing, self._time_passes, self._restart)))
        self.outcome.steps = self._disk.steps
        return self.outcome

    # --- operations ---

    def _do(self, operation: Callable[[], None]) -> None:
        if self._spool is not None and self._rng.random() < CUT_SHORT:
            self._cut_in = self._rng.randrange(12)
        try:
            operation()
        except PowerCut:
            self._leaving = set(self._promised) - self._here()
            self._disk = self._disk.after_cut(self._rng)
            self._disk.forget, self._disk.before = self._forget, self._before
            self._clock.reboot()
            self._cut_in = None
            self._start()
        self._cut_in = None
        self._settle()

    def _start(self) -> None:
        self._spool = None
        self._spool = Spool(FOLDER, LIMITS, self._disk, self._clock)

    def _restart(self) -> None:
        """Of the process alone."""
        self._start()

    @property
    def spool(self) -> Spool:
        assert self._spool is not None
        return self._spool

    def _here(self) -> set[str]:
        """What the spool holds, by its own word; while there is none, what it had promised."""
        return set(self._promised) if self._spool is None else {entry.id for entry in self._spool.pending()}

    def _write(self) -> None:
        bundle = self._new()
        try:
            folder = self.spool.prepare(bundle, BYTES, INODES)
            self._fill(folder, bundle)
            self._coming.add(bundle)
            self.spool.commit(bundle)
        except SpoolFull:
            self._coming.discard(bundle)

    def _give_up_writing(self) -> None:
        bundle = self._new()
        folder = self.spool.prepare(bundle, BYTES, INODES)
        BundleWriter(folder, self._disk).add_bytes(b"half", "raw")
        self.spool.discard(bundle)

    def _new(self) -> str:
        self._number += 1
        return f"bundle-{self._number:04d}"

    def _fill(self, folder: Path, bundle: str) -> None:
        rng = self._rng
        writer = BundleWriter(folder, self._disk)
        blobs = [writer.add_bytes(rng.randbytes(rng.randrange(1, 400)), "raw") for _ in range(rng.randrange(1, 3))]
        manifest = msgspec.structs.replace(
            PLAIN,
            bundle_id=bundle,
            created=self._clock(),
            loss=rng.random(),
            inputs=tuple(StoredTensor(TensorSpec("x", (blob.size,), "uint8"), blob) for blob in blobs),
        )
        self._written[bundle] = hashlib.sha256(msgspec.json.encode(manifest)).hexdigest()
        writer.seal(manifest)

    def _remove(self) -> None:
        if self._promised:
            bundle = self._rng.choice(self._promised)
            self._going.add(bundle)
            self.spool.remove(bundle)
            self._going.discard(bundle)
            self._promised.remove(bundle)
            self._gone.add(bundle)

    def _record(self) -> None:
        self._number += 1
        record = f"record-{self._number}"
        now = self._clock()
        self.spool.keep(HistoryRecord(record, 1, self._number, now, now, "m"))
        self._records.add(record)

    def _send(self) -> None:
        for file in self.spool.journal.close()[:2]:
            sent = {record.id for record in parse(self._disk.read(file.path, 1 << 20)).records}
            self._records -= sent
            self._given_up -= sent
            self.spool.journal.remove(file.number)

    def _time_passes(self) -> None:
        self._clock.passes(self._rng.random() * 60 * DAY)
        self.spool.trim()

    def _settle(self) -> None:
        """Between two operations it is known what the spool promises."""
        here = {entry.id for entry in self.spool.pending()}
        for bundle in [*self._promised]:
            if bundle not in here:
                self._promised.remove(bundle)
                (self._gone if bundle in self._going else self._given_up).add(bundle)
        self._promised += [bundle for bundle in sorted(self._coming) if bundle in here]
        self._coming.clear()
        self._going.clear()
        self._leaving.clear()

    # --- cuts ---

    def _before(self, step: str, path: Path) -> None:
        if self._cut_in is not None:
            if self._cut_in == 0:
                raise PowerCut
            self._cut_in -= 1
        if self._rng.random() < self._share:
            self._cut(self._disk, f"history {self._seed}, before {step} {path}", again=True)

    def _cut(self, disk: CrashDisk, where: str, again: bool) -> None:
        self.outcome.cuts += 1
        other = disk.after_cut(self._rng)
        other.forget = self._forget
        if again and self._rng.random() < CUT_AGAIN:
            wait = self._rng.randrange(40)

            def before(step: str, path: Path) -> None:
                if other.steps == wait + 1:
                    self._cut(other, f"{where}, and before {step} {path} of the start after it", again=False)

            other.before = before
        found = self._look_at(other)
        for name in found:
            self.outcome.found[name] = self.outcome.found.get(name, 0) + 1
        if found and not self.outcome.first:
            self.outcome.first = f"{', '.join(found)}: {where}"

    def _look_at(self, disk: CrashDisk) -> list[str]:
        """Names of what is wrong after a start on this disk."""
        kept = self._here() - self._leaving
        try:
            spool = Spool(FOLDER, LIMITS, disk, self._clock)
        except (OSError, TidegaugeError, ValueError):
            return ["no_start"]
        here = [entry.id for entry in spool.pending()]
        records = _records(spool, disk)
        told = {record.id for record in records if isinstance(record, Tombstone)}
        steady = [bundle for bundle in self._promised if bundle in kept and bundle not in self._going]
        leaving = [bundle for bundle in self._promised if bundle not in kept and bundle not in self._going]
        wrong = {
            "lost": any(bundle not in here for bundle in steady),
            "untold": any(bundle not in here and bundle not in told for bundle in (*leaving, *self._given_up)),
            "corrupt": any(not _whole(disk, entry.path, self._written.get(entry.id)) for entry in spool.pending()),
            "came_back": any(bundle in here for bundle in self._gone),
            "record_lost": not self._records <= {record.id for record in records},
            "order": [bundle for bundle in here if bundle in steady] != [b for b in steady if b in here],
            "unclean": bool(
                spool.drops[DropReason.DAMAGED]
                or spool.faults[SpoolFault.FOREIGN]
                or spool.faults[SpoolFault.IO]
                or disk.names(FOLDER / INCOMING)
                or disk.names(FOLDER / DELETING)
            ),
            "over_quota": spool.usage().inodes > LIMITS.max_files + INODES,
        }
        return [name for name, bad in wrong.items() if bad]


def _records(spool: Spool, disk: CrashDisk) -> list[Record]:
    return [record for file in spool.journal.close() for record in parse(disk.read(file.path, file.bytes)).records]


def _whole(disk: CrashDisk, path: Path, digest: str | None) -> bool:
    """Whether a bundle has the bytes that were written."""
    data = disk.read(layout.manifest_path(path), layout.MAX_MANIFEST)
    if hashlib.sha256(data).hexdigest() != digest:
        return False
    for name in blobs_of(decode_manifest(data, str(path))):
        if hashlib.sha256(disk.read(layout.blob_path(path, name), 1 << 20)).hexdigest() != name:
            return False
    return True
