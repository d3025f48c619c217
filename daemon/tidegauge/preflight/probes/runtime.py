"""The check `runtime`: package, provider or delegate, libraries; in this child, since a missing library aborts."""

from __future__ import annotations

from typing import Any

from tidegauge.preflight.context import Context, Settings
from tidegauge.preflight.probe import Finding, Probe, failed, ok
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.loading import attribute, is_virtual, libraries, load_module, require_library
from tidegauge.runtimes.onnx_tidl import LIBRARY
from tidegauge.runtimes.tflite_cpu import interpreter_module
from tidegauge.tidl.offload import TIDL_DELEGATE, TIDL_PROVIDER


def run(context: Context) -> Finding:
    settings = context.required
    try:
        return _onnx(settings) if settings.profile.runtime == "onnx" else _tflite(settings)
    except RuntimeFault as error:
        return failed(error.problem, error.cure)


def _onnx(settings: Settings) -> Finding:
    cure = "correct `runtime.module`" if settings.module else "install TI's onnxruntime_tidl wheel of this SDK"
    module = load_module(settings.module or "onnxruntime", cure)
    providers = [str(name) for name in attribute(module, "get_available_providers")()]
    if TIDL_PROVIDER not in providers:
        return failed(
            f"{module.__name__} has no {TIDL_PROVIDER} (only {', '.join(providers)}): the CPU would run the model",
            "install TI's onnxruntime_tidl instead of the stock onnxruntime",
        )
    return _loaded(module, f"{TIDL_PROVIDER} available", "" if settings.module else LIBRARY)


def _tflite(settings: Settings) -> Finding:
    cure = "correct `runtime.module`" if settings.module else "install TI's tflite_runtime wheel of this SDK"
    module = load_module(settings.module or interpreter_module(), cure)
    for name in ("Interpreter", "load_delegate"):
        attribute(module, name)
    return _loaded(module, "Interpreter and load_delegate available", "" if settings.module else TIDL_DELEGATE)


def _loaded(module: Any, what: str, library: str) -> Finding:
    if library:
        require_library(library)
    kind = " (virtual)" if is_virtual(module) else ""
    versions = ", ".join(f"{name} {version[:16]}" for name, version in sorted(libraries().items()))
    return ok(f"{module.__name__}{kind}: {what}{f', {library} loads' if library else ''}; {versions}")


PROBE = Probe(
    id="runtime",
    title="inference runtime: package, TIDL provider or delegate, library",
    why="the CPU runs the model in silence, or the process aborts at the first session",
    place="anywhere",
    run=run,
    deadline=lambda _context: 60.0,
)
