"""The check `python`: TI's wheels are built for one Python and for NumPy 1's binary interface.

Source: edgeai-tidl-tools, SDK 10 and 11: cp312 wheels, NumPy 1.26.4.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata

from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, not_applicable, ok, warning

_WHEELS = {"onnx": "onnxruntime-tidl", "tflite": "tflite-runtime"}
_TAG = re.compile(r"^Tag: (cp\d+)-", re.MULTILINE)


def run(context: Context) -> Finding:
    wheel = _WHEELS[context.required.profile.runtime]
    return judge(sys.version_info[:2], _version("numpy"), {wheel: _tags(wheel)})


def judge(python: tuple[int, int], numpy: str | None, wheels: Mapping[str, Sequence[str] | None]) -> Finding:
    """`wheels`: the Python tags of each wheel's own WHEEL file, None where it isn't installed."""
    if numpy is None:
        return failed("NumPy is not installed", "install the SDK's NumPy 1.26.4")
    running = f"cp{python[0]}{python[1]}"
    for name, tags in wheels.items():
        if tags is None:
            return not_applicable(f"TI's wheel {name} is not installed by pip: see `runtime`")
        if tags and running not in tags:
            return failed(
                f"{name} is built for {', '.join(tags)}, this Python is {running}",
                f"run Tidegauge with the board's own Python, or install the {running} wheel of {name}",
            )
    told = f"{running}, NumPy {numpy}, {', '.join(wheels)}"
    if int(numpy.partition(".")[0]) >= 2:
        return failed(f"{told}: the wheels are built against NumPy 1", "pip install 'numpy==1.26.4'")
    if not numpy.startswith("1.26."):
        return warning(f"{told}: TI's wheels are tested with NumPy 1.26.4", "pip install 'numpy==1.26.4'")
    return ok(told)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _tags(name: str) -> list[str] | None:
    try:
        return sorted(set(_TAG.findall(metadata.distribution(name).read_text("WHEEL") or "")))
    except metadata.PackageNotFoundError:
        return None


PROBE = Probe(
    id="python",
    title="Python and NumPy against TI's wheels",
    why="an import that fails, or one that crashes later: NumPy 2 can't serve a module built for NumPy 1",
    place="board",
    run=run,
)
