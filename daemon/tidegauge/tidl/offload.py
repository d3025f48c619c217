"""The proof that the accelerator computed an answer; TIDL's ways to fall back to the CPU are silent.

Source: TI's ORT 1.15 (inference_session.cc: `ts:subgraph_<name>_{copy_in,proc,copy_out}_{start,end}`, nanoseconds,
for every TIDL node; onnxruntime_inference_collection.py: a failed provider is replaced by the CPU's without an
exception); tfl_delegate.cpp, SDK 11.1 (a failed create is ignored, then outputs are zeros).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegauge.errors import TidegaugeError
from tidegauge.runtimes.session import Offload

TIDL_PROVIDER = "TIDLExecutionProvider"
TIDL_DELEGATE = "libtidl_tfl_delegate.so"
_PREFIX, _START, _END = "ts:subgraph_", "_proc_start", "_proc_end"
_CURE = "read the worker's log for 'EP Error', 'Falling back' or 'without any delegation'; check the artifacts folder"


class NotOffloaded(TidegaugeError):
    """The CPU computed the answer, or nobody did."""


def subgraphs(benchmark: Mapping[str, int]) -> tuple[str, ...]:
    """Names of the sub-graphs that the accelerator has processed: processing began, and ended later."""
    names = [key[len(_PREFIX) : -len(_START)] for key in benchmark if key.startswith(_PREFIX) and key.endswith(_START)]
    return tuple(
        name
        for name in sorted(names)
        if 0 < benchmark[_PREFIX + name + _START] < benchmark.get(_PREFIX + name + _END, 0)
    )


def fallback_told(printed: str) -> str | None:
    """Why ONNX Runtime has left TIDL, from what its Python code printed while it opened a session; else None.

    Its words are `EP Error {reason} when using {providers}`, then `Falling back to {providers} and retrying.`
    """
    lines = [line.strip() for line in printed.splitlines()]
    if not any(line.startswith("Falling back to ") for line in lines):
        return None
    reasons = [line for line in lines if line.startswith("EP Error")]
    return reasons[0][:300] if reasons else "it gives no reason"


def prove_onnx(providers: Sequence[str], benchmark: Mapping[str, int], *, virtual: bool = False) -> Offload:
    """From `get_providers()` and `get_TI_benchmark_data()` after a run. Raises NotOffloaded."""
    if not providers or providers[0] != TIDL_PROVIDER:
        told = ", ".join(providers) or "none"
        raise NotOffloaded(f"not offloaded: the session's providers are {told}, not {TIDL_PROVIDER} first", _CURE)
    return Offload(TIDL_PROVIDER, _processed(benchmark), virtual=virtual)


def prove_tflite(operators: Sequence[str], benchmark: Mapping[str, int], *, virtual: bool = False) -> Offload:
    """From the names of the interpreter's operators, without default delegates, and `get_TI_benchmark_data()`."""
    nodes = sum(name == "DELEGATE" for name in operators)
    if nodes == 0:
        raise NotOffloaded("not offloaded: the interpreter holds no DELEGATE operator", _CURE)
    return Offload(TIDL_DELEGATE, _processed(benchmark), nodes=nodes, virtual=virtual)


def _processed(benchmark: Mapping[str, int]) -> tuple[str, ...]:
    named = subgraphs(benchmark)
    if not named:
        raise NotOffloaded(f"not offloaded: the benchmark data has no processing time ({_PREFIX}…{_START})", _CURE)
    return named
