"""A fake accelerator for measurements: a run takes as long as the environment says, and costs the CPU nothing.

TI's call shapes, so that it is loaded by the key `runtime.module`. Its answer is the float model's to one fixed input,
whatever it is fed: what is measured is the time around it.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import onnxruntime

VIRTUAL = True
SessionOptions = onnxruntime.SessionOptions
#: Seconds of a run.
SECONDS = "TIDEGAUGE_WAITING_ACCELERATOR"


def get_available_providers() -> list[str]:
    return ["TIDLExecutionProvider", "CPUExecutionProvider"]


class InferenceSession:
    def __init__(self, path: str, providers: Any, provider_options: Any, sess_options: Any) -> None:
        self._seconds = float(os.environ[SECONDS])
        sess_options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, sess_options, providers=["CPUExecutionProvider"])
        self._inputs, self._outputs = session.get_inputs(), session.get_outputs()
        rng = np.random.default_rng(0)
        feed = {each.name: rng.random(each.shape, np.float32) for each in self._inputs}
        self._answer = dict(zip([each.name for each in self._outputs], session.run(None, feed), strict=True))

    def get_inputs(self) -> Any:
        return self._inputs

    def get_outputs(self) -> Any:
        return self._outputs

    def get_providers(self) -> list[str]:
        return get_available_providers()

    def get_TI_benchmark_data(self) -> dict[str, int]:
        return {"ts:subgraph_subgraph_0_proc_start": 1, "ts:subgraph_subgraph_0_proc_end": 1 + int(self._seconds * 1e9)}

    def run(self, names: list[str], feed: dict[str, Any]) -> list[Any]:
        started = time.monotonic()
        answers = [self._answer[name].copy() for name in names]
        time.sleep(max(0.0, self._seconds - (time.monotonic() - started)))
        return answers
