"""A whole log classified: faults with cures, how far a start came, what was offloaded, where the C7x was last."""

from __future__ import annotations

import re

import msgspec

from tidegauge.tidl import log_causes, remote_log
from tidegauge.tidl.csv_tables import LayerCycles
from tidegauge.tidl.log_causes import OffloadCount, Progress

_CLOCK = re.compile(r"### CPU Frequency = (\d{6,11}) Hz", re.ASCII)
_PERF_HEAD = re.compile(r"\s*Layer, +Layer Cycles,")
_PERF_ROW = re.compile(r"\s*(\d{1,6}), +(\d{1,15}),(?: *\d{1,15},){4,30}\s*", re.ASCII)
_STATS = re.compile(r"Sub ?Graph Stats (\d{1,15}\.\d{1,9}) (\d{1,15}\.\d{1,9}) (\d{1,15}\.\d{1,9})", re.ASCII)


class Fault(msgspec.Struct, frozen=True):
    """One cause with how often it came, the first line that told it (number from 1, text) and the cure."""

    cause: str
    count: int
    line: int
    core: str | None
    text: str
    cure: str


class LogReport(msgspec.Struct, frozen=True):
    """`first_seconds`, `last_seconds`: since boot. `milestone`: the last step of a good start that the log tells.

    `unfinished`: a layer that began ("process") and never ended: where a hung C7x stands. `scales`: tensors whose scale
    the C7x printed while dumping. `clock_hz`: the C7x's own clock, of its boot lines. `cycles`: the last table of layer
    times (debug_level 1 and more). `run_microseconds`: (copy in, process, copy out) of the last run.
    """

    file: str
    lines: int
    cores: tuple[str, ...]
    first_seconds: float | None
    last_seconds: float | None
    milestone: str | None
    offload: OffloadCount | None
    last_layer: Progress | None
    unfinished: int | None
    scales: int
    faults: tuple[Fault, ...]
    clock_hz: int | None = None
    cycles: tuple[LayerCycles, ...] = ()
    run_microseconds: tuple[float, float, float] | None = None


def report(file: str, text: str) -> LogReport:
    """Any text is a log."""
    faults: dict[log_causes.LogCause, Fault] = {}
    cores: dict[str, None] = {}
    times: list[float] = []
    stone: log_causes.Milestone | None = None
    offload: OffloadCount | None = None
    last: Progress | None = None
    scales: set[int] = set()
    clock: int | None = None
    cycles: dict[int, LayerCycles] = {}
    stats: tuple[float, float, float] | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        parsed = remote_log.parse(line)
        if parsed.core is not None and len(cores) < 16:
            cores[parsed.core] = None
        if parsed.seconds is not None:
            times = [times[0] if times else parsed.seconds, parsed.seconds]
        stone = log_causes.milestone(parsed.text) or stone
        offload = log_causes.offload_count(parsed.text) or offload
        last = log_causes.progress(parsed.text) or last
        if (printed := remote_log.scale_line(parsed.text)) is not None:
            scales.add(printed.data_id)
        if (row := _PERF_ROW.fullmatch(parsed.text)) is not None:
            cycles[int(row[1])] = LayerCycles(int(row[1]), int(row[2]))
        elif _PERF_HEAD.match(parsed.text):
            cycles = {}
        elif (told := _CLOCK.search(parsed.text)) is not None:
            clock = int(told[1])
        elif (told := _STATS.search(parsed.text)) is not None:
            stats = (float(told[1]), float(told[2]), float(told[3]))
        if (cause := log_causes.cause(parsed.text)) is not None:
            before = faults.get(cause)
            first = before or Fault(cause.word, 0, number, parsed.core, parsed.text.strip()[:300], cause.cure)
            faults[cause] = msgspec.structs.replace(first, count=first.count + 1)
    return LogReport(
        file=file,
        lines=len(lines),
        cores=tuple(cores),
        first_seconds=times[0] if times else None,
        last_seconds=times[-1] if times else None,
        milestone=stone.name.lower() if stone else None,
        offload=offload,
        last_layer=last,
        unfinished=last.layer if last and last.phase in ("start", "process") else None,
        scales=len(scales),
        faults=tuple(sorted(faults.values(), key=lambda fault: fault.line)),
        clock_hz=clock,
        cycles=tuple(cycles.values()),
        run_microseconds=stats,
    )
