"""What a worker that has ended was last heard to say, and the C7x with it: the fault by its TIDL name, and its cure.

From the end of the worker's log and of the remote log, as far as they have grown since the worker was started. At
`debug_level` ≥ 2 the C7x prints a line for each layer it begins, such as `Processing Layer # -   17` (TI's remote log,
SDK 11.1); which names the layer that a run never came back from.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tidegauge.tidl import layer_info, log_report
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.log_causes import LogCause
from tidegauge.tidl.log_report import Fault

log = logging.getLogger(__name__)

TAIL_BYTES = 64 * 1024
#: Lines that only say that something failed: any other line says more. The first of them says most.
GENERAL = (
    LogCause.CREATE_FAILED,
    LogCause.DELEGATE_FAILED,
    LogCause.INVOKE_FAILED,
    LogCause.COMMAND_FAILED,
    LogCause.PROCESS_CRASHED,
    LogCause.CORE_ERROR,
    LogCause.OPENVX_ERROR,
    LogCause.CONSEQUENCE,
)
#: Lines that end no worker.
HARMLESS = frozenset({LogCause.DATA_CONVERT, LogCause.LAYER_NAME, LogCause.UNSUPPORTED_LAYER})
_RANK = {cause.word: rank for rank, cause in enumerate(GENERAL, start=1)}
_HARMLESS_WORDS = frozenset(cause.word for cause in HARMLESS)


class LastWords(msgspec.Struct, frozen=True):
    """`cause`: the word of a `LogCause`, with the line that told it and the cure; empty where no line names a fault.

    `layer`: the last layer that was begun, None where no line tells one; `name`: its ONNX name, where it is known.
    """

    cause: str = ""
    line: str = ""
    cure: str = ""
    layer: int | None = None
    name: str = ""

    @property
    def sentence(self) -> str:
        """To be added to what is known of the end; empty where nothing was said."""
        parts = []
        if self.cause:
            parts.append(f"TIDL says {self.cause} (`{self.line}`): {self.cure}")
        if self.layer is not None:
            parts.append(f"the last layer it began was {self.layer}" + (f" (`{self.name}`)" if self.name else ""))
        return "; ".join(parts)


def last_words(texts: Sequence[str], layers: Mapping[int, str]) -> LastWords:
    """Judge what was said in several logs. `layers`: ONNX names by number. Pure."""
    reports = [log_report.report("", text) for text in texts]
    faults = [fault for report in reports for fault in report.faults if fault.cause not in _HARMLESS_WORDS]
    begun = [report.last_layer.layer for report in reports if report.last_layer is not None]
    layer = begun[-1] if begun else None
    name = layers.get(layer, "") if layer is not None else ""
    if not faults:
        return LastWords(layer=layer, name=name)
    told = min(faults, key=_rank)
    return LastWords(told.cause, told.text[:160], told.cure, layer, name)


def _rank(fault: Fault) -> int:
    return _RANK.get(fault.cause, 0)


class Follower:
    """Looks at what is added to some files from now on. Files that don't exist (yet) are fine."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self._starts = {path: _size(path) for path in paths}

    def heard(self) -> list[str]:
        """What was added, by file, each at most its last TAIL_BYTES."""
        return [_tail(path, start).decode(errors="replace") for path, start in self._starts.items()]


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
