"""The device: a TFLite model on the C7x, through TI's delegate or a module of the same call shapes.

Source: edgeai-tidl-tools examples/osrt_python (call shapes), tfl_delegate.cpp, SDK 11.1 (what fails and how: a create
that failed is answered with OK, and every output is zero from then on; a bad folder ends the process with exit(-1)).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tidegauge.profile import Profile
from tidegauge.runtimes import artifact_folder, tflite_specs
from tidegauge.runtimes.checks import checked_inputs, checked_outputs, model_path, random_tensor
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.loading import attribute, exceptions_of, is_virtual, load_module
from tidegauge.runtimes.session import Array, Offload
from tidegauge.tensors import TensorSpec
from tidegauge.tidl import offload
from tidegauge.tidl.offload import NotOffloaded

_LOG = "read the worker's log and the remote log for the reason; do not retry in a loop, each failed start leaks"
_PACKAGE = "install TI's tflite_runtime wheel, or correct runtime.module"


class TfliteTidlSession:
    """A TFLite model on TIDL. Close it: an abandoned one holds C7x memory until reboot."""

    kind = "tflite_tidl"

    def __init__(self, profile: Profile, module: str = "", debug_level: int = 0) -> None:
        """Raises RuntimeFault: package, delegate, model or artifacts missing, or the interpreter can't be made.

        TI's delegate hides a network that it could not create; `offload()` after a run tells.
        """
        tflite = load_module(module or "tflite_runtime.interpreter", _PACKAGE)
        self._faults = exceptions_of(tflite)
        self._virtual = is_virtual(tflite)
        path, folder = model_path(profile), Path(profile.artifacts)
        artifact_folder.require("tflite", folder)  # TI's delegate ends the process on a bad folder
        self.options = {"artifacts_folder": str(folder), "debug_level": str(debug_level), "core_number": "1"}
        self._delegate: Any = self._load(tflite)
        self._interpreter: Any = self._create(tflite, path)
        self._ran = False
        self._answered = False
        try:
            self.inputs: tuple[TensorSpec, ...] = tflite_specs.inputs_of(self._interpreter)
            self.outputs: tuple[TensorSpec, ...] = tflite_specs.outputs_of(self._interpreter)
        except RuntimeFault:
            self.close()
            raise

    def run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run once. Raises RuntimeFault. Can block for ever (the TIDL stack has no time-out)."""
        interpreter, feed = self._opened(), checked_inputs(self.inputs, tensors)
        try:
            answers = tflite_specs.invoke(interpreter, feed)
        except self._faults as error:
            raise RuntimeFault(f"the device run failed: {error}", _LOG) from error
        self._ran = True
        # Looked at until one answer holds something: a healthy session pays for it once.
        self._answered = self._answered or any(np.any(answer) for answer in answers)
        return checked_outputs(self.outputs, answers)

    def benchmark(self) -> dict[str, int]:
        """TI's time stamps of the last run. Raises NotOffloaded where the runtime has none: it isn't TI's."""
        interpreter = self._opened()
        if not hasattr(interpreter, "get_TI_benchmark_data"):
            raise NotOffloaded("not offloaded: the runtime has no get_TI_benchmark_data", _PACKAGE)
        return {str(key): int(value) for key, value in interpreter.get_TI_benchmark_data().items()}

    def offload(self) -> Offload:
        """Raises NotOffloaded, also where nothing but zeros ever comes back; RuntimeFault before the first run.

        Where every output so far was zero, a random input is run to tell a dark scene from a network that TI's delegate
        could not create.
        """
        interpreter = self._opened()
        if not self._ran:
            raise RuntimeFault("the offload can't be proven before a run", "run the session once first")
        # No public call lists the operators; TI's own benchmarks count them this way.
        operators = [str(operator["op_name"]) for operator in interpreter._get_ops_details()]
        proof = offload.prove_tflite(operators, self.benchmark(), virtual=self._virtual)
        if not self._answered:
            self.run({spec.name: random_tensor(spec) for spec in self.inputs})
        if not self._answered:
            raise NotOffloaded("not offloaded: every output is zero, also for a random input", _LOG)
        return proof

    def close(self) -> None:
        self._interpreter = None  # before the delegate that it uses
        self._delegate = None

    def _opened(self) -> Any:
        if self._interpreter is None:
            raise RuntimeFault("the session is closed", "open it again")
        return self._interpreter

    def _load(self, tflite: Any) -> Any:
        try:
            return attribute(tflite, "load_delegate")(offload.TIDL_DELEGATE, self.options)
        except self._faults as error:
            cure = "install the board's TIDL libraries (edgeai-tidl-tools, target libraries of this SDK)"
            raise RuntimeFault(f"{offload.TIDL_DELEGATE} can't be loaded: {error}", cure) from error

    def _create(self, tflite: Any, path: Path) -> Any:
        resolver = attribute(tflite, "OpResolverType").BUILTIN_WITHOUT_DEFAULT_DELEGATES
        try:
            interpreter = attribute(tflite, "Interpreter")(
                str(path),
                experimental_delegates=[self._delegate],
                num_threads=1,
                # XNNPACK would add DELEGATE operators of its own, and the offload could not be proven.
                experimental_op_resolver_type=resolver,
            )
            interpreter.allocate_tensors()
        except self._faults as error:
            raise RuntimeFault(f"TIDL can't open {path}: {error}", _LOG) from error
        return interpreter
