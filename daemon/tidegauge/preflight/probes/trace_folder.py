"""The check `trace-folder`.

Source: app_fileio_server.c, SDK 11.1: a write that fails is tried again for ever, so a full or unwritable folder hangs
the C7x.
"""

from __future__ import annotations

import os
from pathlib import Path

from tidegauge.board import free_bytes
from tidegauge.preflight import capture_size
from tidegauge.preflight.capture_size import CaptureSize
from tidegauge.preflight.context import Context
from tidegauge.preflight.mounts import IN_MEMORY, kind_of
from tidegauge.preflight.probe import Finding, Probe, failed, not_applicable, ok, warning

MIB = 1 << 20


def run(context: Context) -> Finding:
    settings = context.required
    if not settings.capture:
        return not_applicable("captures are switched off (key `capture.enabled`)")
    folder = context.path(settings.trace_folder)
    if not folder.is_dir():
        return failed(f"{folder} (key `capture.trace_folder`) is no folder", "make it, or correct the key")
    if not os.access(folder, os.W_OK | os.X_OK):
        return failed(f"{folder} (key `capture.trace_folder`) can't be written", "correct its owner and mode")
    size = capture_size.of(Path(settings.profile.artifacts), Path(settings.profile.model), settings.debug_level)
    kind = kind_of(settings.trace_folder, _text(context, "/proc/mounts"))
    memory = available_memory(_text(context, "/proc/meminfo"))
    found = judge(str(folder), kind, free_bytes(folder), settings.room_mib * MIB, size, memory)
    if found.status == "ok" and kind not in IN_MEMORY and not context.virtual:
        return warning(
            f"{found.found}; it is not in RAM",
            "a capture wears the flash and is slower: use a tmpfs, as /tmp on TI's images",
        )
    return found


def judge(folder: str, kind: str, free: int, room: int, size: CaptureSize | None, memory: int | None = None) -> Finding:
    """`free` bytes in the folder, `room` bytes that a capture asks for, `memory` bytes of RAM that are available."""
    told = f"{folder} ({kind}) has {free // MIB} MiB free"
    if free < room:
        return failed(
            f"{told} of the {room // MIB} MiB that `capture.room_mib` asks for",
            "free space there (old `*tidl_trace*` files), or lower the key if a capture is smaller",
        )
    if size is None:
        return ok(f"{told}; a capture's size is not known here (no tempDir, no `onnx`)")
    told += f", a capture writes {_mib(size.bytes)} in {size.tensors} files (by {size.source})"
    if free < size.bytes:
        return failed(told, "free space there, or watch a smaller model: a full trace folder hangs the C7x")
    if kind in IN_MEMORY and memory is not None and memory < size.bytes:
        return failed(f"{told}, but only {memory // MIB} MiB of RAM are left for them", "free memory on the board")
    if room < size.bytes:
        return warning(
            f"{told}, more than `capture.room_mib`", f"set `capture.room_mib` to {2 * size.bytes // MIB + 1}"
        )
    if free < 2 * size.bytes:
        return warning(f"{told}: less than twice as much is free", "free space there: TI asks for twice the size")
    return ok(told)


def available_memory(meminfo: str) -> int | None:
    """Bytes, from the text of /proc/meminfo."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _mib(count: int) -> str:
    return f"{count / MIB:.1f} MiB"


def _text(context: Context, path: str) -> str:
    try:
        return context.path(path).read_text(errors="replace")
    except OSError:
        return ""


PROBE = Probe(
    id="trace-folder",
    title="trace folder: kind of file system, room for a capture",
    why="a write that fails is tried again for ever: a full trace folder hangs the C7x",
    place="anywhere",
    run=run,
    deadline=lambda _context: 60.0,
)
