"""An ONNX model as a graph, where the package `onnx` is at hand: a board has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def load(path: Path, *, shapes: bool = False) -> Any | None:
    """The model, with inferred shapes if asked for; None where `onnx` is missing or the file is no model."""
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        return None
    try:
        model = onnx.load(str(path), load_external_data=False)
        return onnx.shape_inference.infer_shapes(model) if shapes else model
    except (OSError, ValueError, RuntimeError, DecodeError):  # the check `model` says what is wrong with it
        return None
