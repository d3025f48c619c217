"""Looks at the directory of a zip file before it is read: `zipfile` takes all of it into memory, however large."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tidegauge.bundles.errors import BundleError

#: Bytes of an entry with a long name and the extra fields of usual programs.
_ENTRY = 1024


def check_directory(file: Path, members: int) -> None:
    """Raises BundleError where the directory is larger than that of `members` members can be, or is none."""
    with file.open("rb") as stream:
        try:
            # What ZipFile itself goes by, so that both see the same directory.
            end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]
        except (OSError, zipfile.BadZipFile) as error:
            raise BundleError(f"{file.name} is no zip file, or is damaged", str(error)) from error
    if end is None:
        raise BundleError(f"{file.name} is no zip file, or is cut off", "send it again, whole")
    count, size = end[zipfile._ECD_ENTRIES_TOTAL], end[zipfile._ECD_SIZE]  # type: ignore[attr-defined]
    if count > members or size > members * _ENTRY:
        raise BundleError(
            f"{file.name} has a directory of {count} members in {size} bytes", f"at most {members} are read"
        )
