"""Which bundles a full spool gives up: a pure function of what there is, the limits, and what comes.

The first bundle of a fault shows how it began, the worst shows it best, the newest shows it as it is: dropping only the
oldest, or only the newest, loses one of them. So the room is shared among the three, and the middle goes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from tidegauge.spool.limits import SpoolLimits

SECONDS_PER_DAY = 86_400.0


class DropReason(enum.StrEnum):
    """Why a bundle was given up, unsent. Each has a counter."""

    EXPIRED = "expired"
    EVICTED = "evicted"
    NO_ROOM = "no_room"
    DAMAGED = "damaged"
    INTERRUPTED = "interrupted"


class Candidate(msgspec.Struct, frozen=True):
    """A bundle to the planner. `sequence` orders bundles whatever the clock did; `age` seconds, None where no clock
    can tell; `severity` in [0, 1], larger is worse; `kind`: class of the cause, so that each class keeps a first one.
    """

    id: str
    bytes: int
    inodes: int
    sequence: int
    age: float | None
    severity: float
    kind: str
    in_transfer: bool = False


class Room(msgspec.Struct, frozen=True):
    """`free_*`: what the file system has left; `incoming_*`: what is to be written; `other_*`: what else counts."""

    free_bytes: int
    free_inodes: int
    incoming_bytes: int = 0
    incoming_inodes: int = 0
    other_bytes: int = 0
    other_inodes: int = 0


class Plan(msgspec.Struct, frozen=True):
    """`evict`: (id, reason) in the order of their sequence. `fits`: whether what comes has room after that."""

    evict: tuple[tuple[str, DropReason], ...]
    fits: bool


class _Budget:
    """Bytes and inodes that are left to give."""

    def __init__(self, size: int, inodes: int) -> None:
        self.bytes, self.inodes = size, inodes

    def holds(self, item: Candidate) -> bool:
        return item.bytes <= self.bytes and item.inodes <= self.inodes

    def take(self, item: Candidate) -> None:
        self.bytes -= item.bytes
        self.inodes -= item.inodes

    def share(self, part: float) -> _Budget:
        return _Budget(int(self.bytes * part), int(self.inodes * part))


def plan(entries: Sequence[Candidate], limits: SpoolLimits, room: Room) -> Plan:
    """Expired bundles go first; then, only where the limits would be broken, those outside the three shares.

    What stays never exceeds the limits. A bundle in transfer goes only where it alone is too large for them. Nothing is
    given up for what would not fit into an empty spool either.
    """
    budget = _budget(entries, limits, room)
    fits = budget.bytes >= 0 and budget.inodes >= 0
    if not fits:
        budget = _budget(entries, limits, msgspec.structs.replace(room, incoming_bytes=0, incoming_inodes=0))
    ordered = sorted(entries, key=lambda item: (item.sequence, item.id))
    oldest = limits.max_age_days * SECONDS_PER_DAY
    expired = {e.id for e in ordered if e.age is not None and e.age > oldest and not e.in_transfer}
    living = [e for e in ordered if e.id not in expired]
    kept = _keep(living, limits, budget)
    evict = tuple(
        (e.id, DropReason.EXPIRED if e.id in expired else DropReason.EVICTED) for e in ordered if e.id not in kept
    )
    return Plan(evict, fits)


def _budget(entries: Iterable[Candidate], limits: SpoolLimits, room: Room) -> _Budget:
    """What the kept bundles may take: the smaller of the quota and of what the file system can hold."""
    used = [(e.bytes, e.inodes) for e in entries]
    on_disk = sum(size for size, _ in used) + room.free_bytes - limits.headroom_bytes
    files = sum(count for _, count in used) + room.free_inodes - limits.headroom_files
    return _Budget(
        min(limits.bytes - room.other_bytes, on_disk) - room.incoming_bytes,
        min(limits.max_files - room.other_inodes, files) - room.incoming_inodes,
    )


def _keep(living: Sequence[Candidate], limits: SpoolLimits, budget: _Budget) -> set[str]:
    total = _Budget(budget.bytes, budget.inodes)
    if sum(e.bytes for e in living) <= total.bytes and sum(e.inodes for e in living) <= total.inodes:
        return {e.id for e in living}
    kept: set[str] = set()

    def keep(item: Candidate, share: _Budget) -> None:
        total.take(item)
        share.take(item)
        kept.add(item.id)

    def fill(order: Iterable[Candidate], share: _Budget) -> None:
        for item in order:
            if item.id not in kept and total.holds(item) and share.holds(item):
                keep(item, share)

    fill((e for e in living if e.in_transfer), _Budget(total.bytes, total.inodes))
    newest_share = max(0.0, 1.0 - limits.first_share - limits.worst_share)
    classes = (
        (_firsts(living), total.share(limits.first_share)),
        (_worst(living), total.share(limits.worst_share)),
        (living[::-1], total.share(newest_share)),
    )
    for order, share in classes:  # one each, however small its share
        best = next((item for item in order if item.id in kept or total.holds(item)), None)
        if best is not None and best.id not in kept:
            keep(best, share)
    for order, share in classes[:2]:
        fill(order, share)
    fill(living[::-1], _Budget(total.bytes, total.inodes))  # the newest get what the others leave
    return kept


def by_value(entries: Iterable[Candidate]) -> list[Candidate]:
    """In the order in which to send them: the first of each class, then the worst, the newer one of equals first."""
    firsts, rest = _split(sorted(entries, key=lambda item: (item.sequence, item.id)))
    return [*firsts, *sorted(rest, key=lambda item: (-item.severity, -item.sequence, item.id))]


def _worst(living: Sequence[Candidate]) -> list[Candidate]:
    return sorted(living, key=lambda item: (-item.severity, item.sequence, item.id))


def _firsts(living: Sequence[Candidate]) -> list[Candidate]:
    """The first of each class, then the other early ones."""
    firsts, rest = _split(living)
    return [*firsts, *rest]


def _split(living: Iterable[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """The first of each class, and the others."""
    seen: set[str] = set()
    firsts: list[Candidate] = []
    rest: list[Candidate] = []
    for item in living:
        (rest if item.kind in seen else firsts).append(item)
        seen.add(item.kind)
    return firsts, rest
