"""Runtime packages by name: imported late, their exceptions named, their versions and libraries told."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import platform
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from tidegauge.errors import TidegaugeError
from tidegauge.runtimes.errors import RuntimeFault

#: TI's libraries that decide what an inference computes.
TI_LIBRARIES = ("libvx_tidl_rt.so", "libtivision_apps.so", "libtidl_onnxrt_EP.so", "libtidl_tfl_delegate.so")
_PACKAGES = ("onnxruntime-tidl", "onnxruntime", "tflite-runtime", "ai-edge-litert", "numpy")
_ORT_STATE = "onnxruntime.capi.onnxruntime_pybind11_state"


def load_module(name: str, cure: str) -> Any:
    """The imported package or module. Raises RuntimeFault where it is missing or its binary does not load."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RuntimeFault(f"the Python module {name} can't be imported ({error})", cure) from error


def attribute(module: Any, name: str) -> Any:
    """A module's attribute. Raises RuntimeFault naming both where it is missing."""
    try:
        return getattr(module, name)
    except AttributeError as error:
        cure = "set runtime.module to a module with the call shapes of TI's runtime, or leave it empty"
        raise RuntimeFault(f"module {getattr(module, '__name__', module)} has no {name}", cure) from error


def is_virtual(module: Any) -> bool:
    """Whether a module declares itself an emulation, by its attribute `VIRTUAL`."""
    return getattr(module, "VIRTUAL", False) is True


def exceptions_of(module: Any) -> tuple[type[Exception], ...]:
    """What a runtime's calls raise.

    ONNX Runtime's own exceptions (Fail, RuntimeException, InvalidArgument, …) derive from Exception directly, so that
    RuntimeError misses them; they live in its extension module.
    """
    places: list[ModuleType | None] = [module, sys.modules.get(f"{module.__name__}.capi.onnxruntime_pybind11_state")]
    places.append(sys.modules.get(_ORT_STATE))
    own = {
        value
        for place in places
        if place is not None
        for value in vars(place).values()
        if isinstance(value, type)
        and issubclass(value, Exception)
        and value is not Exception
        # one with a cure of its own goes through as it is
        and not issubclass(value, TidegaugeError)
    }
    return (RuntimeError, ValueError, TypeError, OSError, *sorted(own, key=lambda kind: kind.__name__))


def require_library(name: str) -> None:
    """Raises RuntimeFault where the loader does not find a shared library: TI's runtime would abort the process."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        cure = "install the board's TIDL libraries (edgeai-tidl-tools, target libraries of this SDK)"
        raise RuntimeFault(f"{name} can't be loaded ({error})", cure) from error


def libraries(folder: Path = Path("/usr/lib")) -> dict[str, str]:
    """What computes: version by package (and "python"), SHA-256 hex by TI library found in `folder`."""
    told = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            told[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    for name in TI_LIBRARIES:
        path = folder / name
        if path.is_file():
            with path.open("rb") as file:
                told[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return told
