"""A fake accelerator for the workers' life-cycle tests: stock ONNX Runtime behind TI's call shapes.

Files in the folder FAKE_ACCELERATOR steer it (`fail_run`, `fail_create`, `slow_create`, `cpu_only`, `slow`), and in its
`events` it notes what happens to its sessions: TIDL frees one when the object goes, so that is what is watched here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import onnxruntime

VIRTUAL = True
SessionOptions = onnxruntime.SessionOptions
FOLDER = Path(os.environ["FAKE_ACCELERATOR"])


class Fail(Exception):
    """As ONNX Runtime's own: not a RuntimeError."""


def get_available_providers() -> list[str]:
    return ["TIDLExecutionProvider", "CPUExecutionProvider"]


def note(event: str) -> None:
    with (FOLDER / "events").open("a") as file:
        file.write(event + "\n")


def told(name: str) -> bool:
    return (FOLDER / name).exists()


class InferenceSession:
    def __init__(self, path: str, providers: Any, provider_options: Any, sess_options: Any) -> None:
        if told("fail_create"):
            raise Fail("Create state function failed. Return value:-1")
        if told("slow_create"):
            note("creating")
            time.sleep(0.5)
        self._session = onnxruntime.InferenceSession(path, sess_options, providers=["CPUExecutionProvider"])
        self._providers = ["CPUExecutionProvider"] if told("cpu_only") else get_available_providers()
        note(f"open {provider_options[0]['debug_level']}")

    def __del__(self) -> None:
        note("freed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_providers(self) -> list[str]:
        return self._providers

    def get_TI_benchmark_data(self) -> dict[str, int]:
        return {"ts:subgraph_subgraph_0_proc_start": 1000, "ts:subgraph_subgraph_0_proc_end": 2000}

    def run(self, names: list[str], feed: dict[str, Any]) -> list[Any]:
        note("run")
        if told("slow"):
            time.sleep(1.0)
        if told("fail_run"):
            raise Fail("TIDL Compute Invoke Failed.")
        return self._session.run(names, feed)
