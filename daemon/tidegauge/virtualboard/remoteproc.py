"""The kernel's remoteproc files for the virtual C7x: a folder that stands in for /sys.

`stop` and `start` written to `class/remoteproc/remoteproc0/state` do what they are hoped to do on a real board, where
nobody has tried: a stopped core forgets that it hung, and what it held (sysfs-class-remoteproc; AM62A names the C7x
`7e000000.dsp`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tidegauge.virtualboard.core import CoreState
from tidegauge.virtualboard.state import BoardState, fail, update_core

C7X = "7e000000.dsp"
#: The cores of an AM62A in the kernel's order, with the firmware's file.
CORES = ((C7X, "am62a-c71_0-fw"), ("79000000.r5f", "am62a-mcu-r5f0_0-fw"), ("78000000.r5f", "am62a-wkup-r5f0_0-fw"))
_POLL_SECONDS = 0.01


@contextmanager
def emulated(board: Path, sysfs: Path) -> Iterator[Path]:
    """Files below `sysfs` that obey, until the block ends. Yields the C7x's `state`."""
    root = sysfs / "class" / "remoteproc"
    for number, (name, firmware) in enumerate(CORES):
        folder = root / f"remoteproc{number}"
        folder.mkdir(parents=True)
        for key, text in (("name", name), ("firmware", firmware), ("state", "running")):
            (folder / key).write_text(f"{text}\n")
    stop = threading.Event()
    state = root / "remoteproc0" / "state"
    thread = threading.Thread(target=_obey, args=(board, state, stop), name="remoteproc", daemon=True)
    thread.start()
    try:
        yield state
    finally:
        stop.set()
        thread.join()


def _obey(board: Path, state: Path, stop: threading.Event) -> None:
    while not stop.wait(_POLL_SECONDS):
        word = state.read_text().strip()
        if word == "stop":
            _forget(board)
            state.write_text("offline\n")
        elif word == "start":
            state.write_text("running\n")


def _forget(board: Path) -> None:
    """A stopped core has no memory. The shared heap is Linux's: sessions that are still held stay in the tables. A
    failure that stands for the hang is over; whatever else is switched on stays so."""
    kept = [each for each in BoardState.load(board).failures if not each.name.startswith("hang_")]
    fail(board, kept)

    def change(now: CoreState) -> CoreState:
        freed = tuple(msgspec.structs.replace(held, c7x_bytes=0) for held in now.sessions)
        return msgspec.structs.replace(now, hung="", leaked_bytes=0, sessions=freed)

    update_core(board, change)
