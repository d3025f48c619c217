"""Two folders of traces and a tempDir, for the bit-exact comparison."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tidegauge.compare.compiled import Subgraph, locate_tempdir, read_tempdir
from tidegauge.compare.exact import TraceFile, compare_exact
from tidegauge.compare.exact_types import ExactComparison
from tidegauge.errors import TidegaugeError
from tidegauge.tidl import trace_names


def compare_folders(
    host: Path, device: Path, tempdir: Path | None = None, *, min_coverage: float = 0.8
) -> ExactComparison:
    """`host` may be `device`: then files without the board's prefix are the host's. Raises `TidegaugeError`."""
    began = time.monotonic()
    ours, theirs = trace_files(host), trace_files(device)
    if host.resolve() == device.resolve():
        ours, theirs = [f for f in ours if not _is_board(f)], [f for f in theirs if _is_board(f)]
        if not ours or not theirs:
            raise TidegaugeError(
                f"--host and --device are the same folder {host}, and it holds one side only",
                "give the folder of the other side",
            )
    answer = compare_exact(
        ours,
        theirs,
        tables(tempdir, device, host),
        labels=(str(host), str(device)),
        min_coverage=min_coverage,
    )
    return msgspec.structs.replace(answer, seconds=round(time.monotonic() - began, 3))


def trace_files(folder: Path) -> list[TraceFile]:
    """The traces in a folder, mapped when they are read. Raises `TidegaugeError`."""
    try:
        names = [p for p in sorted(folder.iterdir()) if trace_names.parse(p.name) is not None and p.is_file()]
        return [TraceFile(p.name, p.stat().st_size, _mapped(p)) for p in names]
    except OSError as error:
        raise TidegaugeError(f"{folder} can't be read", str(error.strerror)) from error


def tables(tempdir: Path | None, *beside: Path) -> dict[str, Subgraph]:
    """The tables of a tempDir that was named, else of one beside the traces; none where there is none."""
    if tempdir is not None:
        return read_tempdir(tempdir)
    found = next((place for folder in beside if (place := locate_tempdir(folder)) is not None), None)
    return read_tempdir(found) if found is not None else {}


def _is_board(item: TraceFile) -> bool:
    parsed = trace_names.parse(item.file)
    return parsed is not None and parsed.cpu is not None


def _mapped(path: Path) -> Callable[[], Any]:
    def read() -> Any:
        return np.memmap(path, np.uint8, "r") if path.stat().st_size else b""

    return read
