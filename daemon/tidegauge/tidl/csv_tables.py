"""The CSV tables around a compile and a run: weight quantisation errors, simulated and measured layer times.

Sources: real files of an AM62A compile with tools 10_00_08_00 (`*_paramDebug.csv`, perfsim); tidl_rt_ovx_debug_utils.c,
SDK 11.1 (`/tmp/tidl_trace_<sub>_perf.csv`: only the second column is meant for users).
"""

from __future__ import annotations

import math
import re
from collections import Counter

import msgspec

from tidegauge.tidl.errors import FormatError

_PARAM_HEAD = ("LayerId", "meanDifference", "maxDifference", "meanOrigFloat", "meanRelDifference", "orgmax")
_PARAM_COLUMNS = 11
_SUMMARY = re.compile(
    r"(?P<key>[A-Za-z][A-Za-z_ ()]{0,60}?(?: : (?:Read|Write|Total))?)\s*=\s*(?P<value>\S{1,64})\s*", re.ASCII
)
_NETWORK_CYCLES = re.compile(r"\s*Network Cycles\s+(\d{1,19})\s*", re.ASCII)
_SUM = re.compile(r"\s*Sum of Layer Cycles\s+(\d{1,19})\s*", re.ASCII)
_MOST_ROWS = 100_000
_RUN_AGAIN = "let the run end, then copy the file again"


class ParamError(msgspec.Struct, frozen=True):
    """One row of paramDebug.csv: how far a layer's quantised parameters are from the float ones, in values.

    `role`: "bias" or "weights", told by the order in which TIDL writes a layer's two rows; "" where there is one row.
    `scale`: codes per value. `maximum`: the largest float parameter; `quantised_maximum`: what became of it.
    """

    layer: int
    role: str
    mean_difference: float
    max_difference: float
    mean_relative: float
    maximum: float
    quantised_maximum: float
    scale: float

    @property
    def steps(self) -> float:
        """The largest error in quantisation steps: about 0.5 from rounding, up to 1 where TIDL cuts off."""
        return self.max_difference * self.scale


def parse_param_debug(text: str) -> tuple[ParamError, ...]:
    """`*_tidl_net.bin_paramDebug.csv`; the histogram behind each row is skipped. Raises FormatError."""
    lines = text.split("\n")
    head = tuple(word.strip() for word in lines[0].split(","))
    if head[: len(_PARAM_HEAD)] != _PARAM_HEAD:
        raise FormatError("paramDebug.csv: the first line is not TIDL's head", line=1)
    rows = [
        (number, line.split(",", _PARAM_COLUMNS)[:_PARAM_COLUMNS])
        for number, line in enumerate(lines[1:], start=2)
        if line.strip()
    ]
    if len(rows) > _MOST_ROWS:
        raise FormatError(f"paramDebug.csv: {len(rows)} rows")
    if rows and not text.endswith("\n"):
        raise FormatError("paramDebug.csv: the last line has no end", line=len(lines))
    counts = Counter(cells[0].strip() for _, cells in rows)
    seen: Counter[str] = Counter()
    found: list[ParamError] = []
    for number, cells in rows:
        layer = cells[0].strip()
        role = ("bias", "weights")[seen[layer]] if counts[layer] == 2 else ""
        seen[layer] += 1
        found.append(_param_row(cells, role, number))
    return tuple(found)


def _param_row(cells: list[str], role: str, line: int) -> ParamError:
    if len(cells) < _PARAM_COLUMNS:
        raise FormatError(f"paramDebug.csv: {len(cells)} columns, not {_PARAM_COLUMNS}", line=line)
    numbers = [_number(cell, "paramDebug.csv", line) for cell in cells[1:]]
    return ParamError(
        layer=_count(cells[0], "paramDebug.csv", line),
        role=role,
        mean_difference=numbers[0],
        max_difference=numbers[1],
        mean_relative=numbers[3],
        maximum=numbers[4],
        quantised_maximum=numbers[5],
        scale=numbers[9],
    )


class SimulatedLayer(msgspec.Struct, frozen=True):
    """A layer's simulated time in microseconds at the simulated clock."""

    layer: int
    kind: str
    microseconds: float


class PerfSim(msgspec.Struct, frozen=True):
    """The network compiler's estimate. Bandwidths in megabytes an inference; None where the summary lacks a line."""

    release: str
    microseconds: float
    mega_cycles: float | None
    ddr_read: float | None
    ddr_write: float | None
    ddr_total: float | None
    clock_mhz: float | None
    layers: tuple[SimulatedLayer, ...]


def parse_perfsim(text: str) -> PerfSim:
    """The perfsim CSV with its `Network summary`. Raises FormatError; also where the summary is cut off."""
    summary: dict[str, str] = {}
    layers: list[SimulatedLayer] = []
    kind_at, time_at = -1, -1
    for number, line in enumerate(text.split("\n"), start=1):
        cells = [cell.strip() for cell in line.split(",")]
        if "LyrType" in cells and "procTime(us)" in cells:
            kind_at, time_at = cells.index("LyrType"), cells.index("procTime(us)")
        elif kind_at >= 0 and len(cells) > time_at and not summary:
            if len(layers) == _MOST_ROWS:
                raise FormatError(f"perfsim: more than {_MOST_ROWS} layers", line=number)
            time = _number(cells[time_at], "perfsim", number)
            layers.append(SimulatedLayer(_count(cells[0], "perfsim", number), cells[kind_at], time))
        elif match := _SUMMARY.fullmatch(line):
            summary.setdefault(" ".join(match["key"].split()).casefold(), match["value"])
    release, time_text = summary.get("release version"), summary.get("total network time (us)")
    if release is None or time_text is None:
        raise FormatError("perfsim: there is no 'Release version' or no 'Total network time'")
    optional = {
        key: _number(summary[key], "perfsim", None) if key in summary else None
        for key in (
            *("total network cycles (mega)", "ddr bw (mega bytes) : read", "ddr bw (mega bytes) : write"),
            *("ddr bw (mega bytes) : total", "cpufreq_mhz"),
        )
    }
    cycles, read, write, total, clock = optional.values()
    microseconds = _number(time_text, "perfsim", None)
    return PerfSim(release, microseconds, cycles, read, write, total, clock, tuple(layers))


class LayerCycles(msgspec.Struct, frozen=True):
    """C7x cycles of one layer, all in. Milliseconds are cycles over the C7x's real clock in kHz."""

    layer: int
    cycles: int


class PerfTable(msgspec.Struct, frozen=True):
    """Layer times of one run. `total`: the sum that TIDL printed; None where the file has none (it may be cut off)."""

    layers: tuple[LayerCycles, ...]
    total: int | None
    network_cycles: int | None


def parse_perf(text: str) -> PerfTable:
    """`/tmp/tidl_trace_<sub>_perf.csv`. Raises FormatError; also where the printed sum is not the rows' sum."""
    layers: list[LayerCycles] = []
    total: int | None = None
    network: int | None = None
    seen_head = False
    for number, line in enumerate(text.split("\n"), start=1):
        cells = [cell.strip() for cell in line.split(",")]
        if cells[:2] == ["Layer", "Layer Cycles"]:
            seen_head = True
        elif match := _SUM.fullmatch(line.rstrip(", ")):
            total = int(match[1])
        elif match := _NETWORK_CYCLES.fullmatch(line):
            network = int(match[1])
        elif seen_head and len(cells) > 1:
            if len(layers) == _MOST_ROWS:
                raise FormatError(f"perf.csv: more than {_MOST_ROWS} layers", line=number)
            layers.append(LayerCycles(_count(cells[0], "perf.csv", number), _count(cells[1], "perf.csv", number)))
        elif line.strip() and seen_head:
            raise FormatError(f"perf.csv: {line.strip()[:60]!r} is no row", _RUN_AGAIN, line=number)
    if not seen_head:
        raise FormatError("perf.csv: there is no head 'Layer, Layer Cycles'", _RUN_AGAIN)
    told = sum(row.cycles for row in layers)
    if total is not None and total != told:
        raise FormatError(f"perf.csv: the rows sum up to {told} cycles, the last line says {total}", _RUN_AGAIN)
    return PerfTable(tuple(layers), total, network)


def _number(cell: str, file: str, line: int | None) -> float:
    word = cell.strip()
    try:
        value = float(word) if len(word) <= 64 and "_" not in word else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FormatError(f"{file}: {word[:40]!r} is not a number", line=line)
    return value


def _count(cell: str, file: str, line: int) -> int:
    word = cell.strip()
    if not (word.isdecimal() and word.isascii() and len(word) <= 18):
        raise FormatError(f"{file}: {word[:40]!r} is not a whole number", line=line)
    return int(word)
