"""The check `virtual-board`: what stands for silicon, its /tmp and its log."""

from __future__ import annotations

import os
from pathlib import Path

from tidegauge.errors import TidegaugeError
from tidegauge.preflight import virtual
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, ok


def run(context: Context) -> Finding:
    try:
        folder, board = virtual.read(context)
    except TidegaugeError as error:
        return failed(error.problem, error.cure)
    if not os.access(folder, os.W_OK | os.X_OK):
        return failed(f"the board's folder {folder} can't be written", "correct its owner and mode")
    settings = context.settings
    if settings is not None and settings.capture:
        agents = Path(settings.trace_folder).absolute()
        if Path(board.trace_folder).absolute() != agents:
            return failed(
                f"the board dumps into {board.trace_folder}, the agent looks into {agents}",
                "set `capture.trace_folder` to the board's, or make the board with `--trace-folder`",
            )
    return ok(f"{folder}, firmware version 0x{board.firmware_version:08X}, dumps into {board.trace_folder}")


PROBE = Probe(
    id="virtual-board",
    title="state folder of the virtual board",
    why="no session opens",
    place="virtual",
    run=run,
    needs_settings=False,
)
