"""The `[spool]` table of `agent.toml`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class SpoolLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of a board's flash bundles may take while they wait for a link.

    `max_mib` and `max_files` (files and folders) of all bundles together; `max_age_days` of one, by the board's uptime
    clock within one boot and by wall clock where that is sane; `headroom_mib` and `headroom_files` stay free on the
    file system whatever the rest allows. The space is shared among the earliest, the worst and the newest bundles by
    `first_share` and `worst_share`; the newest get what is left.
    """

    max_mib: Annotated[int, Meta(ge=1)] = 512
    max_files: Annotated[int, Meta(ge=16)] = 20_000
    max_age_days: Annotated[float, Meta(gt=0)] = 90.0
    headroom_mib: Annotated[int, Meta(ge=0)] = 256
    headroom_files: Annotated[int, Meta(ge=0)] = 1_000
    first_share: Annotated[float, Meta(ge=0, le=1)] = 0.2
    worst_share: Annotated[float, Meta(ge=0, le=1)] = 0.4

    @property
    def bytes(self) -> int:
        return self.max_mib << 20

    @property
    def headroom_bytes(self) -> int:
        return self.headroom_mib << 20
