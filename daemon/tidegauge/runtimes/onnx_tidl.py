"""The device: an ONNX model on the C7x, through TI's ONNX Runtime or a module of the same call shapes.

Source: edgeai-tidl-tools examples/osrt_python (call shapes), onnxrt_ep.cpp and TI's ORT 1.15 (what fails and how).
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegauge.profile import Profile
from tidegauge.runtimes import artifact_folder, onnx_specs
from tidegauge.runtimes.checks import checked_inputs, checked_outputs, model_path
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.listener import Listener
from tidegauge.runtimes.loading import attribute, exceptions_of, is_virtual, load_module, require_library
from tidegauge.runtimes.session import Array, Offload
from tidegauge.tensors import TensorSpec
from tidegauge.tidl import offload
from tidegauge.tidl.offload import NotOffloaded

CPU_PROVIDER = "CPUExecutionProvider"
LIBRARY = "libtidl_onnxrt_EP.so"
_LOG = "read the worker's log and the remote log for the reason; do not retry in a loop, each failed start leaks"

_LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}

# TI's provider keeps its options in one object of the process: the last session opened decides for all of them.
_open_sessions: weakref.WeakSet[OnnxTidlSession] = weakref.WeakSet()


class OnnxTidlSession:
    """An ONNX model on TIDL. Close it: an abandoned one holds C7x memory until reboot."""

    kind = "onnx_tidl"

    def __init__(self, profile: Profile, module: str = "", debug_level: int = 0) -> None:
        """Raises RuntimeFault: package, provider, library, model or artifacts missing, or TIDL's create failed.

        NotOffloaded where the runtime says on stdout that it has fallen back to the CPU, which it tells no other way;
        one that is silent even there opens all the same, and `offload()` tells.
        """
        ort = _provider_module(module)
        self._faults = exceptions_of(ort)
        self._virtual = is_virtual(ort)
        path, folder = model_path(profile), Path(profile.artifacts)
        artifact_folder.require("onnx", folder)
        self.options = {"artifacts_folder": str(folder), "debug_level": str(debug_level)}
        self._level = profile.graph_optimization
        self._refuse_mixed_options()
        self._session: Any = self._create(ort, path)
        self._ran = False
        _open_sessions.add(self)
        try:
            self.inputs: tuple[TensorSpec, ...] = onnx_specs.inputs_of(self._session)
            self.outputs: tuple[TensorSpec, ...] = onnx_specs.outputs_of(
                self._session, artifact_folder.output_shapes(folder)
            )
        except RuntimeFault:
            self.close()
            raise

    def run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run once. Raises RuntimeFault. Can block for ever (the TIDL stack has no time-out)."""
        session, feed = self._opened(), checked_inputs(self.inputs, tensors)
        try:
            answers = session.run([spec.name for spec in self.outputs], feed)
        except self._faults as error:
            raise RuntimeFault(f"the device run failed: {error}", _LOG) from error
        self._ran = True
        return checked_outputs(self.outputs, answers)

    def benchmark(self) -> dict[str, int]:
        """TI's time stamps of the last run. Raises NotOffloaded where the runtime has none: it isn't TI's."""
        session = self._opened()
        if not hasattr(session, "get_TI_benchmark_data"):
            raise NotOffloaded(
                "not offloaded: the runtime has no get_TI_benchmark_data", "install TI's onnxruntime_tidl"
            )
        return {str(key): int(value) for key, value in session.get_TI_benchmark_data().items()}

    def offload(self) -> Offload:
        """Raises NotOffloaded, and RuntimeFault before the first run."""
        session = self._opened()
        if not self._ran:
            raise RuntimeFault("the offload can't be proven before a run", "run the session once first")
        return offload.prove_onnx(session.get_providers(), self.benchmark(), virtual=self._virtual)

    def close(self) -> None:
        self._session = None
        _open_sessions.discard(self)

    def _opened(self) -> Any:
        if self._session is None:
            raise RuntimeFault("the session is closed", "open it again")
        return self._session

    def _refuse_mixed_options(self) -> None:
        for other in _open_sessions:
            if other.options != self.options:
                raise RuntimeFault(
                    f"a TIDL session with other options ({other.options}) is open in this process",
                    "close it first, or use a process of its own: TI's options are global",
                )

    def _create(self, ort: Any, path: Path) -> Any:
        options = attribute(ort, "SessionOptions")()
        options.log_severity_level = 3
        # allowedNode.txt counts the nodes of the graph as it was optimised at the compile.
        if self._level != "default":
            levels = attribute(ort, "GraphOptimizationLevel")
            options.graph_optimization_level = attribute(levels, _LEVELS[self._level])
        listener = Listener(sys.stdout)
        try:
            with contextlib.redirect_stdout(listener):
                session = attribute(ort, "InferenceSession")(
                    str(path),
                    providers=[offload.TIDL_PROVIDER, CPU_PROVIDER],
                    provider_options=[self.options, {}],
                    sess_options=options,
                )
        except self._faults as error:
            raise RuntimeFault(f"TIDL can't open {path}: {error}", _LOG) from error
        if (told := offload.fallback_told(listener.heard)) is not None:
            raise NotOffloaded(f"not offloaded: the runtime moved {path} to the CPU ({told})", _LOG)
        if hasattr(session, "disable_fallback"):
            session.disable_fallback()  # a run that fails must fail, not go on by itself on the CPU
        return session


def _provider_module(module: str) -> Any:
    """The runtime, with TIDL's provider in it."""
    ort = load_module(module or "onnxruntime", "install TI's onnxruntime_tidl wheel, or correct runtime.module")
    available = attribute(ort, "get_available_providers")()
    if offload.TIDL_PROVIDER not in available:
        raise RuntimeFault(
            f"{ort.__name__} has no {offload.TIDL_PROVIDER} (only {', '.join(available)}): the CPU would run the model",
            "install TI's onnxruntime_tidl instead of the stock onnxruntime",
        )
    if not module:
        require_library(LIBRARY)
    return ort
