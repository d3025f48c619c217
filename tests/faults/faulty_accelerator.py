"""A fake accelerator for the agent's fault tests: stock ONNX Runtime behind TI's call shapes, failing on demand.

Files in the folder FAULTY_ACCELERATOR steer it: `fail_create`, `hang_create`, `abort_create`, `cpu_only`, `hang_run`,
`exit_run`, `slow_run`. A file `once_…` of the same kind is removed by the first that obeys it.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import onnxruntime

VIRTUAL = True
SessionOptions = onnxruntime.SessionOptions
FOLDER = Path(os.environ["FAULTY_ACCELERATOR"])


class Fail(Exception):
    """As ONNX Runtime's own: not a RuntimeError."""


def get_available_providers() -> list[str]:
    return ["TIDLExecutionProvider", "CPUExecutionProvider"]


def told(name: str) -> bool:
    once = FOLDER / f"once_{name}"
    if once.exists():
        once.unlink()
        return True
    return (FOLDER / name).exists()


def hang() -> None:
    while True:
        time.sleep(60)


class InferenceSession:
    def __init__(self, path: str, providers: Any, provider_options: Any, sess_options: Any) -> None:
        with (FOLDER / "creates").open("a") as file:
            main = threading.current_thread() is threading.main_thread()
            file.write(f"create {os.getpid()} {'main' if main else 'other'} {time.monotonic()}\n")
        if told("fail_create"):
            raise Fail("Create state function failed. Return value:-1")
        if told("hang_create"):
            hang()
        if told("abort_create"):
            os.abort()
        self._session = onnxruntime.InferenceSession(path, sess_options, providers=["CPUExecutionProvider"])
        self._providers = ["CPUExecutionProvider"] if told("cpu_only") else get_available_providers()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_providers(self) -> list[str]:
        return self._providers

    def get_TI_benchmark_data(self) -> dict[str, int]:
        return {"ts:subgraph_subgraph_0_proc_start": 1000, "ts:subgraph_subgraph_0_proc_end": 2000}

    def run(self, names: list[str], feed: dict[str, Any]) -> list[Any]:
        if told("hang_run"):
            print("[C7x_1 ]    100.000001 s: Processing Layer # -    3", flush=True)
            hang()
        if told("exit_run"):
            os._exit(255)
        if told("slow_run"):
            time.sleep(0.05)
        return list(self._session.run(names, feed))
