"""Runs compiled artifacts frame by frame, as an application does that has a board to itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from tidegauge.errors import TidegaugeError
from tidegauge.tidl.offload import TIDL_DELEGATE
from tidegauge.virtualboard import creation, onnxruntime_tidl
from tidegauge.virtualboard.device import Device
from tidegauge.virtualboard.network import load_artifacts, subgraph_names
from tidegauge.virtualboard.offloaded import Offloaded, needs_model
from tidegauge.virtualboard.state import VARIABLE, BoardWatch
from tidegauge.virtualboard.tflite_model import is_tflite

Array = NDArray[Any]
Run = Callable[[Mapping[str, Array]], dict[str, Array]]
_ONNX = "onnxrtMetaData.txt"


def model_needed(artifacts: Path) -> bool:
    """Whether the CPU runs a part of the model. Raises `Fail`, `TidegaugeError`."""
    return needs_model(artifacts) if (artifacts / _ONNX).is_file() else not load_artifacts(artifacts).whole


def open_runner(artifacts: Path, model: Path | None, board: Path, level: int) -> Run:
    """What runs a frame on the board: a session as an application has it or, without the model, its TIDL side alone.

    Raises `TidegaugeError` where the artifacts can't be opened. Sets the environment's board.
    """
    os.environ[VARIABLE] = str(board)
    try:
        if model is None:
            return _alone(artifacts, board, level)
        return _tflite(artifacts, model, level) if is_tflite(model) else _onnx(artifacts, model, level)
    except Fail as error:
        cure = "float networks run with --target host only; else see the lines above"
        raise TidegaugeError(f"{artifacts} can't be opened ({error})", cure) from error
    except (RuntimeError, ValueError) as error:
        raise TidegaugeError(f"{model} can't be opened ({error})", "name the model that was compiled") from error


def _onnx(artifacts: Path, model: Path, level: int) -> Run:
    session = onnxruntime_tidl.InferenceSession(
        model,
        providers=[onnxruntime_tidl.TIDL, onnxruntime_tidl.CPU],
        provider_options=[{"artifacts_folder": str(artifacts), "debug_level": str(level)}, {}],
    )
    names = [item.name for item in session.get_outputs()]
    return lambda tensors: dict(zip(names, session.run(names, tensors), strict=True))


def _tflite(artifacts: Path, model: Path, level: int) -> Run:
    from tidegauge.virtualboard import tflite_runtime_tidl

    options = {"artifacts_folder": str(artifacts), "debug_level": str(level)}
    delegate = tflite_runtime_tidl.load_delegate(TIDL_DELEGATE, options)
    interpreter = tflite_runtime_tidl.Interpreter(model, experimental_delegates=[delegate])
    if interpreter.failed_subgraphs:
        # As an application TI's delegate would be told nothing, and get zeros.
        raise Fail(f"sub-graph {', '.join(interpreter.failed_subgraphs)} could not be created")
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()

    def run(tensors: Mapping[str, Array]) -> dict[str, Array]:
        for item in inputs:
            interpreter.set_tensor(item["index"], np.asarray(tensors[item["name"]]))
        interpreter.invoke()
        return {item["name"]: interpreter.get_tensor(item["index"]) for item in outputs}

    return run


def _alone(artifacts: Path, board: Path, level: int) -> Run:
    watch = BoardWatch(board)
    if (artifacts / _ONNX).is_file():
        side = Offloaded(watch, b"", artifacts, level)
        wanted = list(side.devices[0].network.outputs)
        return lambda tensors: side.run(wanted, tensors, {})
    [name] = subgraph_names(artifacts)
    device = Device(watch, creation.create(watch, artifacts, name, level), level)
    outputs = list(device.network.outputs)
    return lambda tensors: device.run(outputs, {key: tensors[key] for key in device.network.inputs}, {})
