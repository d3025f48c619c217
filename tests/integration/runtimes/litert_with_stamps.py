"""The real LiteRT interpreter and its real `load_delegate`, with the one call that only TI's build has."""

from __future__ import annotations

import ctypes
from typing import Any

from ai_edge_litert import interpreter
from ai_edge_litert.interpreter import OpResolverType, load_delegate

__all__ = ["Interpreter", "OpResolverType", "load_delegate"]


class Interpreter(interpreter.Interpreter):  # type: ignore[misc]
    def get_TI_benchmark_data(self) -> dict[str, int]:
        """The stamps that the delegate's own library took."""
        library: Any = ctypes.CDLL("libtidl_tfl_delegate.so")
        library.tidegauge_stamp.restype = ctypes.c_uint64
        keys = ("ts:subgraph_9_proc_start", "ts:subgraph_9_proc_end")
        return {key: library.tidegauge_stamp(index) for index, key in enumerate(keys)}
