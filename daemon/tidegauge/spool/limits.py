"""The `[spool]` table of `agent.toml`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MIB = 1 << 20
#: Captures of the installed model that the default quota holds: one of each class.
CAPTURES = 3
#: The default quota where nobody knows how much a capture takes, and the least it is, MiB.
UNKNOWN_MIB, LEAST_MIB = 512, 64


class SpoolLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of a board's flash bundles may take while they wait for a link.

    `max_mib` and `max_files` (files and folders) of all bundles together; `max_mib` 0 takes three times what a bundle
    of the installed model takes (64 MiB at least; 512 MiB as long as nobody knows). `max_age_days` of one, by the
    board's uptime clock within one boot and by wall clock where that is sane; `headroom_mib` and `headroom_files` stay
    free on the file system whatever the rest allows. The space is shared among the earliest, the worst and the newest
    bundles by `first_share` and `worst_share`; the newest get what is left, and each class may hold one bundle
    whatever its share. `journal_mib`: records of history and of what was given up, apart from the bundles.
    """

    max_mib: Annotated[int, Meta(ge=0)] = 0
    max_files: Annotated[int, Meta(ge=16)] = 20_000
    max_age_days: Annotated[float, Meta(gt=0)] = 90.0
    headroom_mib: Annotated[int, Meta(ge=0)] = 256
    headroom_files: Annotated[int, Meta(ge=0)] = 1_000
    first_share: Annotated[float, Meta(ge=0, le=1)] = 0.2
    worst_share: Annotated[float, Meta(ge=0, le=1)] = 0.4
    journal_mib: Annotated[int, Meta(ge=1)] = 16

    @property
    def bytes(self) -> int:
        return (self.max_mib or UNKNOWN_MIB) * MIB

    @property
    def headroom_bytes(self) -> int:
        return self.headroom_mib * MIB

    @property
    def journal_bytes(self) -> int:
        return self.journal_mib * MIB


def resolved(limits: SpoolLimits, predicted: int | None, free: int) -> SpoolLimits:
    """The limits with a quota in numbers. `predicted`: bytes of one bundle, None where nobody knows; `free`: bytes that
    the file system has for the spool, what it holds already among them.
    """
    if limits.max_mib:
        return limits
    wanted = UNKNOWN_MIB if predicted is None else max(LEAST_MIB, -(-CAPTURES * predicted // MIB))
    fits = max(1, (free - limits.headroom_bytes) // MIB)
    return msgspec.structs.replace(limits, max_mib=min(wanted, fits))
