"""TI's `onnxruntime_tidl` as an application sees it, with the virtual board behind the TIDL provider.

Usage as in TI's examples::

    session = InferenceSession(model, providers=["TIDLExecutionProvider", "CPUExecutionProvider"],
                               provider_options=[{"artifacts_folder": folder, "debug_level": "0"}, {}],
                               sess_options=SessionOptions())

Behaviour, messages and the silent fall-back to the CPU follow TI's ONNX Runtime 1.15 (branch tidl-1.15,
onnxruntime_inference_collection.py) and onnxrt_ep.cpp of SDK 11.1.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from numpy.typing import NDArray
from onnxruntime import GraphOptimizationLevel, RunOptions, SessionOptions

from tidegauge.virtualboard import benchmark, creation
from tidegauge.virtualboard.offloaded import Offloaded
from tidegauge.virtualboard.state import BoardWatch, board_folder
from tidegauge.virtualboard.waiting import say

__all__ = ["VIRTUAL", "GraphOptimizationLevel", "InferenceSession", "RunOptions", "SessionOptions"]

VIRTUAL = True
TIDL, CPU = "TIDLExecutionProvider", "CPUExecutionProvider"
Array = NDArray[Any]


def get_available_providers() -> list[str]:
    return [TIDL, "TIDLCompilationProvider", CPU]


class InferenceSession:
    """A model with the parts that `allowedNode.txt` names on the virtual C7x. One at a time; not thread-safe."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[str | tuple[str, Mapping[str, object]]] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        names, options = _pairs(providers, provider_options)
        source = path_or_bytes if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)
        self._cpu = onnxruntime.InferenceSession(source, sess_options, providers=[CPU])
        self._device: Offloaded | None = None
        self._providers = names
        self._benchmark: dict[str, int] = {}
        if TIDL not in names:
            return
        if names[0] != TIDL:  # the first provider that can takes the nodes, and the CPU can take all
            return
        try:
            self._device = _open(self._cpu, source, {k: str(v) for k, v in options[0].items()})
        except (RuntimeError, ValueError) as error:
            _fall_back(error, names)
            self._providers = [CPU]

    def get_inputs(self) -> list[Any]:
        return list(self._cpu.get_inputs())

    def get_outputs(self) -> list[Any]:
        return list(self._cpu.get_outputs())

    def get_providers(self) -> list[str]:
        """The providers of the session: only the CPU's after a silent fall-back."""
        return list(self._providers)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Array], run_options: Any = None
    ) -> list[Array]:
        """The named outputs (all for None). Hangs for ever if it traces and the board has no remote-log server."""
        wanted = list(output_names) if output_names else [o.name for o in self._cpu.get_outputs()]
        start = time.time_ns()
        stamps: dict[str, int] = {}
        if self._device is None:
            result: list[Array] = self._cpu.run(wanted, dict(input_feed), run_options)
        else:
            outputs = self._device.run(wanted, input_feed, stamps)
            result = [outputs[name] for name in wanted]
        moved = int(sum(x.nbytes for x in (*result, *input_feed.values())))
        self._benchmark = benchmark.data(start, time.time_ns(), moved, stamps)
        return result

    def get_TI_benchmark_data(self) -> dict[str, int]:
        """Time stamps of the last run, nanoseconds; keys `ts:subgraph_…` only where the C7x computed."""
        return dict(self._benchmark)


def _pairs(
    providers: Sequence[str | tuple[str, Mapping[str, object]]] | None,
    provider_options: Sequence[Mapping[str, object]] | None,
) -> tuple[list[str], list[Mapping[str, object]]]:
    """Names and options, from both of ONNX Runtime's notations."""
    names: list[str] = []
    options: list[Mapping[str, object]] = []
    for item in providers or [CPU]:
        name, extra = (item, {}) if isinstance(item, str) else item
        if name not in get_available_providers():
            raise ValueError(f"{name} is not an available provider; available: {get_available_providers()}")
        names.append(name)
        options.append(extra)
    if provider_options is not None:
        if len(provider_options) != len(names):
            raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
        options = list(provider_options)
    return names, options


def _fall_back(error: Exception, names: list[str]) -> None:
    print("*************** EP Error ***************")
    print(f"EP Error {error} when using {names}")
    print(f"Falling back to {[CPU]} and retrying.")
    print("****************************************")
    sys.stdout.flush()


def _open(cpu: Any, source: str | bytes, options: dict[str, str]) -> Offloaded | None:
    """The device behind a session; None where TIDL leaves the whole model to the CPU.

    Raises `RuntimeError` where the provider can't be constructed, `Fail` where its creation fails later.
    """
    watch = BoardWatch(board_folder())
    state = watch.current()
    creation.die_early(state)
    if state.failing("cpu_fallback") is not None:
        raise RuntimeError("TIDLExecutionProvider: TIDL_populateOptions failed")
    if "artifacts_folder" not in options:
        say("ERROR : artifacts_folder must be provided")
        raise RuntimeError("TIDLExecutionProvider: TIDL_populateOptions failed")
    artifacts = Path(options["artifacts_folder"])
    if not artifacts.is_dir():
        say("ERROR : artifacts_folder not a directory")
        raise RuntimeError("TIDLExecutionProvider: TIDL_populateOptions failed")
    priority = int(options.get("priority", "0"))
    if not 0 <= priority <= 7:
        say("ERROR : Please provide priority betweeen 0-7 ... exiting")
        raise RuntimeError("TIDLExecutionProvider: TIDL_populateOptions failed")
    level = int(options.get("debug_level", "0"))
    allowed = artifacts / "allowedNode.txt"
    if not allowed.is_file() or state.failing("no_delegation") is not None:
        say(
            f"******** WARNING ******* : Could not open {allowed} for reading... "
            "Entire model will run on ARM without any delegation to TIDL !"
        )
        return None
    offloaded = Offloaded(watch, source, artifacts, level)
    offloaded.refuse_other_model(cpu)
    return offloaded
