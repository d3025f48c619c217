"""The reference: an ONNX model in float on one CPU thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidegauge.profile import Profile
from tidegauge.runtimes import onnx_specs
from tidegauge.runtimes.checks import checked_inputs, checked_outputs, model_path
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.loading import exceptions_of, load_module
from tidegauge.runtimes.session import Array, Offload
from tidegauge.tensors import TensorSpec

PROVIDER = "CPUExecutionProvider"


class OnnxCpuSession:
    """An ONNX model on the CPU: one intra-op and one inter-op thread, CPUExecutionProvider only."""

    kind = "onnx_cpu"

    def __init__(self, profile: Profile) -> None:
        """Raises RuntimeFault: package or model missing, model not readable, a dynamic input."""
        ort = load_module("onnxruntime", "install TI's onnxruntime_tidl on a board, `tidegauge[pc]` elsewhere")
        self._faults = exceptions_of(ort)
        path = model_path(profile)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        try:
            session = ort.InferenceSession(str(path), sess_options=options, providers=[PROVIDER])
        except self._faults as error:
            raise RuntimeFault(f"{path}: {error}", "use the ONNX file that was compiled") from error
        self._session: Any = session
        self.inputs: tuple[TensorSpec, ...] = onnx_specs.inputs_of(session)
        known = self._probed() if onnx_specs.open_outputs(session) else {}
        self.outputs: tuple[TensorSpec, ...] = onnx_specs.outputs_of(session, known)

    def run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run once. Raises RuntimeFault; also where an output comes with another shape than the first time."""
        return checked_outputs(self.outputs, self._answers(checked_inputs(self.inputs, tensors)))

    def benchmark(self) -> dict[str, int]:
        return {}

    def offload(self) -> Offload | None:
        return None

    def close(self) -> None:
        self._session = None

    def _answers(self, feed: Mapping[str, Array]) -> list[Any]:
        if self._session is None:
            raise RuntimeFault("the session is closed", "open it again")
        try:
            answers: list[Any] = self._session.run(None, feed)
        except self._faults as error:
            raise RuntimeFault(
                f"the reference run failed: {error}", "check the model file with onnx.checker"
            ) from error
        return answers

    def _probed(self) -> dict[str, tuple[int, ...]]:
        # Many detection models leave the count of detections open and always answer with the same.
        answers = self._answers({spec.name: np.zeros(spec.shape, spec.dtype) for spec in self.inputs})
        names = [node.name for node in self._session.get_outputs()]
        return {name: np.shape(answer) for name, answer in zip(names, answers, strict=True)}
