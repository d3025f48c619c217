"""From a profile to an opened session."""

from __future__ import annotations

from tidegauge.profile import Profile
from tidegauge.runtimes.loading import libraries
from tidegauge.runtimes.onnx_cpu import OnnxCpuSession
from tidegauge.runtimes.onnx_tidl import OnnxTidlSession
from tidegauge.runtimes.session import Session
from tidegauge.runtimes.tflite_cpu import TfliteCpuSession
from tidegauge.runtimes.tflite_tidl import TfliteTidlSession

__all__ = ["libraries", "open_device", "open_reference"]


def open_device(profile: Profile, module: str = "", debug_level: int = 0) -> Session:
    """The model on the accelerator. `profile` paths are absolute; `module` is `runtime.module`, empty for TI's own.

    Open and run it in a process that can be replaced: TI's libraries can block for ever, abort or exit. Raises
    RuntimeFault.
    """
    if profile.runtime == "onnx":
        return OnnxTidlSession(profile, module, debug_level)
    return TfliteTidlSession(profile, module, debug_level)


def open_reference(profile: Profile) -> Session:
    """The same model in float on one CPU thread. Raises RuntimeFault."""
    return OnnxCpuSession(profile) if profile.runtime == "onnx" else TfliteCpuSession(profile)
