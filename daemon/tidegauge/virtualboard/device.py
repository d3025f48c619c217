"""A created sub-graph: its runs, with the board's faults and failures, its traces, its lines in the logs."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.virtualboard import creation, remote_log, tracing
from tidegauge.virtualboard.creation import Created
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import EVERYWHERE, Fault, of_network
from tidegauge.virtualboard.state import BoardState, BoardWatch
from tidegauge.virtualboard.waiting import say

Array = NDArray[Any]


class Device:
    """The C7x side of one sub-graph. Its memory comes back when it is closed or collected, and at the process's end;
    not when the process is killed. Not thread-safe."""

    def __init__(self, watch: BoardWatch, created: Created, level: int, alone: bool = True) -> None:
        """`alone`: the session has no other sub-graph. Raises `TidegaugeError` for a fault that it can't have."""
        if created.number is not None:
            weakref.finalize(self, creation.release, watch.folder, created.number, os.getpid())
        self.network = created.network
        self.subgraph = created.subgraph
        self._zeros = created.zeros
        self._watch = watch
        self._level = level
        self._runs = 0
        self._twins: dict[tuple[Fault, ...], Twin] = {}
        self._alone = alone
        self._twin(watch.current().faults)  # what a network can't have is said at once

    def run(self, wanted: list[str], feeds: Mapping[str, Array], stamps: dict[str, int]) -> dict[str, Array]:
        """The wanted outputs by name. Adds this sub-graph's time stamps, in nanoseconds, to `stamps`."""
        state = self._watch.current()
        creation.wait_while_blocked(self._watch)
        prefix = f"ts:subgraph_{self.subgraph}_"
        stamps[f"{prefix}copy_in_start"] = time.time_ns()
        stamps[f"{prefix}copy_in_end"] = stamps[f"{prefix}proc_start"] = time.time_ns()
        result = self._zero(wanted) if self._zeros else self._process(state, wanted, feeds)
        stamps[f"{prefix}proc_end"] = stamps[f"{prefix}copy_out_start"] = time.time_ns()
        stamps[f"{prefix}copy_out_end"] = time.time_ns()
        self._runs += 1
        if self._level >= 1:
            parts = ("copy_in", "proc", "copy_out")
            micro = [(stamps[f"{prefix}{p}_end"] - stamps[f"{prefix}{p}_start"]) / 1000 for p in parts]
            say(f"Sub Graph Stats {micro[0]:f} {micro[1]:f} {micro[2]:f} ")
        return result

    def _process(self, state: BoardState, wanted: list[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        hangs, frozen = self._due(state.failing("hang_in_run")), self._due(state.failing("unkillable"))
        self._layer_lines(hangs or frozen)
        if hangs or frozen:
            creation.hang(self._watch.folder, "run", unkillable=frozen)
        if self._due(state.failing("invoke_fails")):
            creation.refuse_invoke()
        start = time.monotonic()
        level = tracing.write_level(self._level) if state.target == "host" else state.trace_write_level
        faults = state.faults
        share = state.failing("traces_change_result")
        if level and share is not None:
            faults = (*faults, Fault(EVERYWHERE, "rounding", share))
        traced = [layer.name for layer in self.network.tensors()] if level else []
        tensors = self._twin(faults).run(feeds, [*wanted, *(name for name in traced if name not in wanted)])
        factor = state.failing("slow")
        if factor is not None:
            time.sleep((factor - 1) * (time.monotonic() - start))
        if level:
            self._dump(state, level, tensors)
        return {name: tensors[name] for name in wanted}

    def _due(self, runs: float | None) -> bool:
        """Whether a failure that leaves so many runs of a session alone comes now; None: it is off."""
        return runs is not None and self._runs >= runs

    def _dump(self, state: BoardState, level: int, tensors: Mapping[str, Array]) -> None:
        if state.target == "host":
            for line in tracing.dump_on_host(Path(state.trace_folder), level, self.subgraph, self.network, tensors):
                say(line)
            return
        # Another session's level makes the C7x dump this one, under that session's name.
        own = tracing.write_level(self._level) == state.trace_write_level
        tracing.dump(self._watch.folder, self.subgraph if own else state.trace_subgraph, self.network, tensors)

    def _twin(self, faults: tuple[Fault, ...]) -> Twin:
        """The twin with these faults. What an earlier one remembers of its runs is forgotten."""
        if not self._alone:
            faults = of_network(self.network, faults)
        if faults not in self._twins:
            self._twins = {faults: Twin(self.network, faults)}
        return self._twins[faults]

    def _zero(self, wanted: list[str]) -> dict[str, Array]:
        return {name: np.zeros(self.network.layer(name).shape, np.float32) for name in wanted}

    def _layer_lines(self, hangs: bool) -> None:
        if self._level < 2:
            return
        layers = self.network.layers
        reached = layers[: max(1, len(layers) // 2)] if hangs else layers
        lines = []
        for layer in reached:
            lines += [f"Starting Layer # - {layer.layer_id:4d}", f"Processing Layer # - {layer.layer_id:4d}"]
            lines.append(f"End of Layer # - {layer.layer_id:4d} with outPtrs[0] = {0x70020000 + layer.data_id:x}")
        remote_log.append(self._watch.folder, *(lines[:-1] if hangs else lines))
