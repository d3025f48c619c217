"""What a hung or crashed worker was last heard to do, from the end of its log and of the remote log.

At `debug_level` ≥ 2 the C7x prints a line for each layer it begins, such as `Processing Layer # -   17`
(TI's remote log, SDK 11.1); which names the layer that a run never came back from.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from tidegauge.tidl import layer_info
from tidegauge.tidl.errors import FormatError

log = logging.getLogger(__name__)

TAIL_BYTES = 64 * 1024
_LAYER = re.compile(rb"Processing Layer # -? *(\d{1,6})", re.ASCII)


class Follower:
    """Looks at what is added to some files from now on. Files that don't exist (yet) are fine."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self._starts = {path: _size(path) for path in paths}

    def last_layer(self) -> int | None:
        """The last layer that was begun, None where no line tells one."""
        found = None
        for path, start in self._starts.items():
            numbers = _LAYER.findall(_tail(path, start))
            if numbers:
                found = int(numbers[-1])
        return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _tail(path: Path, start: int) -> bytes:
    """The end of what was added since `start`, at most TAIL_BYTES. A file that can't be read tells nothing."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            begin = start if size >= start else 0  # it was truncated or replaced: all of it is new
            file.seek(max(begin, size - TAIL_BYTES))
            return file.read(TAIL_BYTES)
    except OSError:
        return b""


def names(artifacts: Path) -> dict[int, str]:
    """Layer number → ONNX name, where the compile's tempDir lies beside the artifacts; else empty."""
    found: dict[int, str] = {}
    for path in sorted(artifacts.glob("tempDir/*.layer_info.txt")):
        try:
            rows = layer_info.parse(path.read_text(errors="replace"))
        except (OSError, FormatError) as error:
            log.warning("%s can't be used to name layers: %s", path, error)
            continue
        for row in rows:
            found.setdefault(row.layer, row.name)
    return found
