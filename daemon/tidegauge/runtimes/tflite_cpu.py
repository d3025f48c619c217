"""The reference: a TFLite model on one CPU thread."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from tidegauge.profile import Profile
from tidegauge.runtimes import tflite_specs
from tidegauge.runtimes.checks import checked_inputs, checked_outputs, model_path
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.loading import exceptions_of, load_module
from tidegauge.runtimes.session import Array, Offload
from tidegauge.tensors import TensorSpec


def interpreter_module() -> str:
    """`tflite_runtime` where it is installed (a board), else its successor."""
    installed = importlib.util.find_spec("tflite_runtime") is not None
    return "tflite_runtime.interpreter" if installed else "ai_edge_litert.interpreter"


class TfliteCpuSession:
    """A TFLite model on the CPU, one thread."""

    kind = "tflite_cpu"

    def __init__(self, profile: Profile) -> None:
        """Raises RuntimeFault: package or model missing, model not readable, a dynamic shape."""
        module = load_module(interpreter_module(), "install tflite_runtime on a board, `tidegauge[pc]` elsewhere")
        self._faults = exceptions_of(module)
        path = model_path(profile)
        try:
            self._interpreter: Any = module.Interpreter(str(path), num_threads=1)
            self._interpreter.allocate_tensors()
        except self._faults as error:
            raise RuntimeFault(f"{path}: {error}", "use the TFLite file that was compiled") from error
        self.inputs: tuple[TensorSpec, ...] = tflite_specs.inputs_of(self._interpreter)
        self.outputs: tuple[TensorSpec, ...] = tflite_specs.outputs_of(self._interpreter)

    def run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run once. Raises RuntimeFault."""
        if self._interpreter is None:
            raise RuntimeFault("the session is closed", "open it again")
        feed = checked_inputs(self.inputs, tensors)
        try:
            answers = tflite_specs.invoke(self._interpreter, feed)
        except self._faults as error:
            raise RuntimeFault(f"the reference run failed: {error}", "check that the model file is whole") from error
        return checked_outputs(self.outputs, answers)

    def benchmark(self) -> dict[str, int]:
        return {}

    def offload(self) -> Offload | None:
        return None

    def close(self) -> None:
        self._interpreter = None
