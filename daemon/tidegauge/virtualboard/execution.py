"""Runs a twin: ONNX Runtime on one thread, with faults built into the arithmetic of single layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from tidegauge.virtualboard.fault_graph import Memory, insert
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import TwinNetwork

Array = NDArray[Any]


class Twin:
    """A network ready to run. The same input gives the same bits, but for the faults that remember earlier runs.

    Not thread-safe.
    """

    def __init__(self, network: TwinNetwork, faults: tuple[Fault, ...] = ()) -> None:
        """Raises `TidegaugeError` for a fault that the network has no layer for."""
        self.network = network
        self.faults = faults
        self._memories: tuple[Memory, ...] = ()
        graph = network.twin
        if faults:
            model = onnx.ModelProto.FromString(network.twin)
            self._memories = insert(model, network, faults)
            graph = model.SerializeToString()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Codes between layers are the twin's whole point: nothing may merge them away.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        self._session: Any = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self._runs = 0
        self._before = {memory.before: np.zeros(memory.shape, np.float32) for memory in self._memories}

    def run(self, feeds: Mapping[str, Array], wanted: Iterable[str]) -> dict[str, Array]:
        """Tensors by layer name: codes, or float32 for the output data-convert layers."""
        names = list(wanted)
        given = dict(feeds) | self._before
        given |= {memory.runs: np.asarray(self._runs, np.float32) for memory in self._memories}
        kept = [memory.now for memory in self._memories]
        values = self._session.run([*names, *kept], given)
        self._before = dict(zip(self._before, values[len(names) :], strict=True))
        self._runs += 1
        return dict(zip(names, values, strict=False))
