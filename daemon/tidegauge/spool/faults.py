"""What may be wrong with the disk or the clock under a spool, by name. Each is counted, and none stops the agent."""

from __future__ import annotations

import enum
import errno


class SpoolFault(enum.StrEnum):
    """`full`: no room, or no inodes, or over a quota; `read_only`; `io`: any other error of the disk, an fsync's among
    them; `foreign`: a file that is not the spool's; `clock`: a bundle whose age no clock can tell; `journal_full`:
    records given up unsent.
    """

    FULL = "full"
    READ_ONLY = "read_only"
    IO = "io"
    FOREIGN = "foreign"
    CLOCK = "clock"
    JOURNAL_FULL = "journal_full"


_BY_ERROR = {
    errno.ENOSPC: SpoolFault.FULL,
    errno.EDQUOT: SpoolFault.FULL,
    errno.EROFS: SpoolFault.READ_ONLY,
}


def fault_of(error: OSError) -> SpoolFault:
    """Its name."""
    return _BY_ERROR.get(error.errno or 0, SpoolFault.IO)
