"""TI's `tflite_runtime.interpreter` as an application sees it, with the virtual board behind TI's delegate.

Usage as in TI's examples::

    delegate = load_delegate("libtidl_tfl_delegate.so", {"artifacts_folder": folder, "debug_level": "0"})
    interpreter = Interpreter(model, experimental_delegates=[delegate],
                              experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)

Behaviour and messages follow tfl_delegate.cpp of SDK 11.1: a bad folder ends the process, a create that failed is
answered with OK and zeros from then on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import OpResolverType
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from tidegauge.tidl.offload import TIDL_DELEGATE
from tidegauge.virtualboard import benchmark, creation
from tidegauge.virtualboard.state import BoardWatch, board_folder
from tidegauge.virtualboard.tflite_model import interpreter as float_interpreter
from tidegauge.virtualboard.tflite_offloaded import OffloadedTflite
from tidegauge.virtualboard.waiting import say

__all__ = ["VIRTUAL", "Delegate", "Interpreter", "OpResolverType", "load_delegate"]

VIRTUAL = True
Array = NDArray[Any]


class Delegate:
    """TI's delegate with its options; it does nothing before an interpreter is made with it."""

    def __init__(self, options: Mapping[str, object]) -> None:
        """Ends the process, as TI's library does, where the artifacts folder is missing."""
        self.options = {key: str(value) for key, value in options.items()}
        if "artifacts_folder" not in self.options:
            say("ERROR : artifacts_folder must be provided")
            os._exit(255)
        self.artifacts = Path(self.options["artifacts_folder"])
        if not self.artifacts.is_dir():
            say("ERROR : artifacts_folder not a directory")
            os._exit(255)
        self.level = int(self.options.get("debug_level", "0"))


def load_delegate(library: str, options: Mapping[str, object] | None = None) -> Delegate:
    """Raises OSError where the library is missing, which on this board is any but TI's."""
    state = BoardWatch(board_folder()).current()
    if Path(library).name != TIDL_DELEGATE or state.failing("abort_missing_library") is not None:
        raise OSError(f"{library}: cannot open shared object file: No such file or directory")
    creation.exit_early(state)
    return Delegate(options or {})


class Interpreter:
    """A model with the operators that `allowedNode.txt` names on the virtual C7x. Not thread-safe."""

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        experimental_delegates: Sequence[Delegate] | None = None,
        num_threads: int | None = None,
        experimental_op_resolver_type: Any = OpResolverType.AUTO,
    ) -> None:
        """Raises ValueError where the file is no TFLite model."""
        path = Path(model_path)
        try:
            self._cpu = float_interpreter(path.read_bytes())
        except OSError as error:
            raise ValueError(f"Could not open '{path}'.") from error
        self._inputs = {int(item["index"]): str(item["name"]) for item in self._cpu.get_input_details()}
        self._outputs = {int(item["index"]): str(item["name"]) for item in self._cpu.get_output_details()}
        self._feeds: dict[str, Array] = {}
        self._answers: dict[str, Array] = {}
        self._benchmark: dict[str, int] = {}
        self._device = _open(path, experimental_delegates[0]) if experimental_delegates else None

    def allocate_tensors(self) -> None:
        """Nothing is left to do."""

    def get_input_details(self) -> list[dict[str, Any]]:
        return list(self._cpu.get_input_details())

    def get_output_details(self) -> list[dict[str, Any]]:
        return list(self._cpu.get_output_details())

    def get_tensor_details(self) -> list[dict[str, Any]]:
        return list(self._cpu.get_tensor_details())

    def _get_ops_details(self) -> list[dict[str, Any]]:
        """The operators that are left, and one DELEGATE for each sub-graph."""
        operators = list(self._cpu._get_ops_details())
        if self._device is None:
            return operators
        gone = self._device.operators
        rest = [item for item in operators if int(item["index"]) not in gone]
        return [*rest, *({"index": -1, "op_name": "DELEGATE", **ends} for ends in self._device.ends)]

    def set_tensor(self, tensor_index: int, value: Array) -> None:
        """Raises ValueError for a tensor that is no input, of another shape or type."""
        detail = next((item for item in self._cpu.get_input_details() if item["index"] == tensor_index), None)
        if detail is None:
            raise ValueError(f"Cannot set tensor {tensor_index}: it is no input")
        if tuple(detail["shape"]) != value.shape or np.dtype(detail["dtype"]) != value.dtype:
            expected = f"{np.dtype(detail['dtype']).name} {list(detail['shape'])}"
            raise ValueError(
                f"Cannot set tensor: Got value of type {value.dtype} {list(value.shape)} but expected type {expected} "
                f"for input {tensor_index}, name: {detail['name']}"
            )
        self._feeds[self._inputs[tensor_index]] = np.array(value)

    def invoke(self) -> None:
        """Raises RuntimeError where TIDL says that a run failed. Hangs for ever if it traces and the board has no
        remote-log server."""
        start, stamps = time.time_ns(), dict[str, int]()
        missing = set(self._inputs.values()) - set(self._feeds)
        if missing:
            raise RuntimeError(f"Input tensors {sorted(missing)} lack data")
        if self._device is None:
            for index, name in self._inputs.items():
                self._cpu.set_tensor(index, self._feeds[name])
            self._cpu.invoke()
            self._answers = {name: np.array(self._cpu.get_tensor(index)) for index, name in self._outputs.items()}
        else:
            try:
                self._answers = self._device.run(list(self._outputs.values()), self._feeds, stamps)
            except Fail as error:
                raise RuntimeError("Node number 0 (TfLiteTIDLDelegate) failed to invoke.") from error
        moved = sum(value.nbytes for value in (*self._feeds.values(), *self._answers.values()))
        self._benchmark = benchmark.data(start, time.time_ns(), moved, stamps)

    def get_tensor(self, tensor_index: int) -> Array:
        """A copy. Raises ValueError for a tensor that is no output of a run so far."""
        name = self._outputs.get(tensor_index)
        if name is None or name not in self._answers:
            raise ValueError("Tensor data is null. Run allocate_tensors() first")
        return np.array(self._answers[name])

    @property
    def failed_subgraphs(self) -> tuple[str, ...]:
        """Those of which only zeros come, since the C7x could not create them. TI's interpreter has nothing like it."""
        return () if self._device is None else tuple(self._device.failed)

    def get_TI_benchmark_data(self) -> dict[str, int]:
        """Time stamps of the last run, nanoseconds; keys `ts:subgraph_…` only where the C7x computed."""
        return dict(self._benchmark)


def _open(model: Path, delegate: Delegate) -> OffloadedTflite | None:
    """The device behind an interpreter; None where TIDL leaves the whole model to the CPU."""
    watch = BoardWatch(board_folder())
    state = watch.current()
    allowed = delegate.artifacts / "allowedNode.txt"
    refused = state.failing("no_delegation") is not None or state.failing("cpu_fallback") is not None
    if not allowed.is_file() or refused:
        say(
            f"******** WARNING ******* : Could not open {allowed} for reading... "
            "Entire model will run on ARM without any delegation to TIDL !"
        )
        return None
    return OffloadedTflite(watch, model, delegate.artifacts, delegate.level)
