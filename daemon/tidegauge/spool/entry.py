"""A bundle in the spool, as the planner and the link see it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tidegauge.bundles import layout
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Manifest, blobs_of
from tidegauge.bundles.reader import decode_manifest
from tidegauge.clocks import Stamp
from tidegauge.filesystem import FileSystem
from tidegauge.spool.planner import Candidate

#: A wall clock before this (2024-01-01) has not been set.
CLOCK_IS_SET = 1_704_067_200.0
#: Seconds by which a clock may be put right without any doubt about ages.
CLOCK_SLACK = 86_400.0

NAME = re.compile(r"(?P<sequence>\d{10})-(?P<id>[0-9A-Za-z-]{8,64})", re.ASCII)
ID = re.compile(r"[0-9A-Za-z-]{8,64}", re.ASCII)


class Entry(msgspec.Struct, frozen=True):
    """A bundle in the spool. `bytes` as the file system counts them, rounded up to its blocks."""

    id: str
    path: Path
    sequence: int
    bytes: int
    inodes: int
    created: Stamp
    severity: float
    kind: str


def entry_of(path: Path, sequence: int, manifest: Manifest, size: int, inodes: int) -> Entry:
    cause = manifest.cause
    return Entry(
        id=manifest.bundle_id,
        path=path,
        sequence=sequence,
        bytes=size,
        inodes=inodes,
        created=manifest.created,
        # Where no loss could be measured the fault is of the plain kind (crash, non-finite): as bad as it gets.
        severity=1.0 if manifest.loss is None else manifest.loss,
        kind="/".join((cause.detector, cause.verdict, *cause.symptoms)),
    )


def candidate(entry: Entry, now: Stamp, in_transfer: bool) -> Candidate:
    """To the planner."""
    return Candidate(
        id=entry.id,
        bytes=entry.bytes,
        inodes=entry.inodes,
        sequence=entry.sequence,
        age=age(entry.created, now),
        severity=entry.severity,
        kind=entry.kind,
        in_transfer=in_transfer,
    )


def age(created: Stamp, now: Stamp) -> float | None:
    """Seconds since `created`: by uptime within one boot, by wall clocks that have been set, else unknown."""
    if created.boot_id == now.boot_id:
        return max(0.0, now.uptime - created.uptime)
    if created.wall >= CLOCK_IS_SET and now.wall >= CLOCK_IS_SET:
        return max(0.0, now.wall - created.wall)
    return None


def doubtful(created: Stamp, now: Stamp) -> bool:
    """No clock tells this age, or the one that does has jumped back since."""
    if created.boot_id == now.boot_id:
        return False
    return age(created, now) is None or created.wall > now.wall + CLOCK_SLACK


def read_whole(disk: FileSystem, path: Path) -> Manifest:
    """The manifest of a bundle, all blobs of which are there with their size. Raises `BundleError`, OSError."""
    manifest = decode_manifest(disk.read(layout.manifest_path(path), layout.MAX_MANIFEST + 1), str(path))
    for blob in blobs_of(manifest).values():
        found = disk.look(layout.blob_path(path, blob.sha256))
        if found is None or found.kind != "file" or found.size != blob.stored:
            raise BundleError(f"{path} is not whole: blob {blob.sha256} is missing or cut")
    return manifest
