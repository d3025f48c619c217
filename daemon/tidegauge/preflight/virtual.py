"""`board.json` and `core.json` of a virtual board, as far as the checks look at them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from tidegauge.errors import TidegaugeError
from tidegauge.preflight.context import Context

#: DDR_SHARED_MEM of AM62A, SDK 11.1.
SHARED_HEAP_BYTES = 172 << 20
_CURE = "make a board with `tidegauge virtualboard init FOLDER` and export what it prints"


class VirtualBoard(msgspec.Struct, frozen=True):
    """`trace_folder`: where its accelerator dumps. `firmware_version`: the only network version it accepts."""

    trace_folder: str
    firmware_version: int


class _Held(msgspec.Struct, frozen=True):
    pid: int
    shared_bytes: int


class _Core(msgspec.Struct, frozen=True):
    sessions: tuple[_Held, ...] = ()


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


def shared_used(context: Context, own: Callable[[int], bool]) -> int:
    """Bytes of the shared heap that sessions hold, living ones and killed ones, but those of processes that are `own`.

    Raises TidegaugeError.
    """
    folder, _ = read(context)
    path = folder / "core.json"
    try:
        core = msgspec.json.decode(path.read_bytes(), type=_Core)
    except FileNotFoundError:
        return 0  # no session since it was switched on
    except (OSError, msgspec.DecodeError) as error:
        raise TidegaugeError(
            f"{path} can't be read ({error})", "reboot with `tidegauge virtualboard reboot`"
        ) from error
    return sum(held.shared_bytes for held in core.sessions if not own(held.pid))
