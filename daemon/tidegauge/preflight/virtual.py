"""`board.json` of a virtual board, as far as the checks look at it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegauge.errors import TidegaugeError
from tidegauge.preflight.context import Context

_CURE = "make a board with `tidegauge virtualboard init FOLDER` and export what it prints"


class VirtualBoard(msgspec.Struct, frozen=True):
    """`trace_folder`: where its accelerator dumps. `firmware_version`: the only network version it accepts."""

    trace_folder: str
    firmware_version: int


def read(context: Context) -> tuple[Path, VirtualBoard]:
    """Folder and state. Raises TidegaugeError."""
    folder = context.environment.get("TIDEGAUGE_VIRTUALBOARD", "")
    if not folder:
        raise TidegaugeError("the environment variable TIDEGAUGE_VIRTUALBOARD is not set", _CURE)
    path = Path(folder) / "board.json"
    try:
        return Path(folder), msgspec.json.decode(path.read_bytes(), type=VirtualBoard)
    except OSError as error:
        raise TidegaugeError(f"TIDEGAUGE_VIRTUALBOARD: {path} can't be read ({error.strerror})", _CURE) from error
    except msgspec.DecodeError as error:
        raise TidegaugeError(f"TIDEGAUGE_VIRTUALBOARD: {path} is damaged ({error})", _CURE) from error
