"""`get_TI_benchmark_data()`: time stamps of a run in nanoseconds, and the SoC's DDR byte counters.

Source: TI's ORT 1.15, inference_session.cc; the TFLite interpreter of TI's wheel has the same keys.
"""

from __future__ import annotations

import os


class _Ddr:
    """The SoC's DDR byte counters, which only grow. Zero unless TIDL_RT_DDR_STATS=1, as on a board."""

    def __init__(self) -> None:
        self._total = 0

    def advance(self, count: int) -> tuple[int, int]:
        before = self._total
        if os.environ.get("TIDL_RT_DDR_STATS") == "1":
            self._total += count
        return before, before


_DDR = _Ddr()


def data(start: int, end: int, moved: int, stamps: dict[str, int]) -> dict[str, int]:
    """Of a run from `start` to `end`, which moved so many bytes; `stamps`: of its sub-graphs, on the C7x only."""
    read, write = _DDR.advance(moved)
    return {
        "ts:run_start": start,
        "ts:run_end": end,
        "ddr:read_start": read,
        "ddr:read_end": read + moved,
        "ddr:write_start": write,
        "ddr:write_end": write + moved,
        **stamps,
    }
