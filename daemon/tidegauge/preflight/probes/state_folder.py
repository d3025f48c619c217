"""The check `state-folder`: what must survive a reboot can be written, and the spool has room."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tidegauge.board import free_bytes
from tidegauge.filesystem import REAL, measure
from tidegauge.preflight import capture_size
from tidegauge.preflight.context import Context, Settings
from tidegauge.preflight.mounts import IN_MEMORY, kind_of
from tidegauge.preflight.probe import Finding, Probe, failed, ok, warning
from tidegauge.spool.limits import resolved

MIB = 1 << 20


def run(context: Context) -> Finding:
    settings = context.required
    folder = context.path(settings.state)
    there = nearest(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".tidegauge-check-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return failed(
            f"nothing can be written in {there} ({error.strerror}; key `state`)",
            "give a folder on a writable, persistent file system, owned by the agent's user",
        )
    try:
        mounts = context.path("/proc/mounts").read_text(errors="replace")
    except OSError:
        mounts = ""
    spool, bundle = settings.spool, predicted_bundle(settings)
    free = free_bytes(there)
    quota = resolved(spool, bundle, free + held(folder / "spool"))
    return judge(str(folder), kind_of(settings.state, mounts), free, spool.headroom_bytes, quota.bytes, bundle)


def predicted_bundle(settings: Settings) -> int | None:
    """Bytes of one bundle of the installed model, None where neither compile nor model tells."""
    if not settings.capture:
        return None
    artifacts, model = Path(settings.profile.artifacts), Path(settings.profile.model)
    try:
        size = capture_size.of(artifacts, model, settings.debug_level)
        if size is None:
            return None
        files = [model, *(path for path in artifacts.iterdir() if path.is_file())]
        return size.bytes + sum(path.stat().st_size for path in files)
    except OSError:
        return None  # checks of their own say what is wrong with the files


def held(spool: Path) -> int:
    """Bytes that it takes already; 0 where there is none that can be read."""
    try:
        return measure(REAL, spool)[0]
    except OSError:
        return 0


def nearest(folder: Path) -> Path:
    """The folder, or the nearest of its parents that exists: the agent makes the rest."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def judge(folder: str, kind: str, free: int, headroom: int, spool: int, bundle: int | None = None) -> Finding:
    """`free`, `headroom` and `spool` in bytes: the spool may take `spool` and must leave `headroom`. `bundle`: of the
    installed model, where that is known.
    """
    told = f"{folder} ({kind}) has {free // MIB} MiB free"
    if free < headroom:
        return failed(
            f"{told}, less than the headroom of {headroom // MIB} MiB (key `spool.headroom_mib`)",
            "free space there, or lower the key: no bundle would be kept",
        )
    if bundle is not None and bundle > spool:
        return failed(
            f"{told}; a bundle of the installed model takes {-(-bundle // MIB)} MiB, and the spool may hold"
            f" {spool // MIB} MiB: not one fits",
            "free space there, or raise `spool.max_mib`, or lower `spool.headroom_mib`",
        )
    if kind in IN_MEMORY:
        return warning(
            f"{told}, and is in RAM", "set `state` to a folder on flash: reference and spool are lost at each boot"
        )
    if free < headroom + spool:
        return warning(
            f"{told}, less than spool and headroom together ({(headroom + spool) // MIB} MiB)",
            "free space there, or lower `spool.max_mib`",
        )
    return ok(told)


PROBE = Probe(
    id="state-folder",
    title="state folder: writable, persistent, room for the spool",
    why="reference, evidence and bundles are lost, or the agent does not start",
    place="anywhere",
    run=run,
)
