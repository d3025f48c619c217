"""`param.yaml` of a compiled model: how its input is made, and with which options it was compiled.

Source: real AM62A packages of edgeai-modelmaker and edgeai-benchmark (tools 10_00_08_00). `resize` and `crop` are one
number or [height, width]; a key that is null or absent is None here, never a default. edgeai-benchmark's ImageRead
always gives RGB, whatever the backend, so that `reverse_channels` means BGR.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidegauge.tidl import plain_yaml
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.plain_yaml import Yaml

_CURE = "give the param.yaml that belongs to the artifacts, as the compile wrote it"


class TensorDetail(msgspec.Struct, frozen=True):
    """A tensor of the model. `dtype`: NumPy's name, "" where the file's type is unknown."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class CompileParameters(msgspec.Struct, frozen=True):
    """What the file says; None for what it does not.

    `resize`, `crop`: (height, width). `keep_aspect`: the picture is padded, not stretched. `options`: the compile's
    runtime_options, as text. `runtime`: of `session_name`; None for one that is neither ONNX nor TFLite.
    `normalised_inside`: mean and scale were folded into the model (`input_optimization`): not for the caller.
    """

    task: str | None
    runtime: Literal["onnx", "tflite"] | None
    model_path: str | None
    artifacts: str | None
    resize: tuple[int, int] | None
    crop: tuple[int, int] | None
    keep_aspect: bool
    layout: Literal["NCHW", "NHWC"] | None
    reverse_channels: bool | None
    mean: tuple[float, ...] | None
    scale: tuple[float, ...] | None
    inputs: tuple[TensorDetail, ...]
    outputs: tuple[TensorDetail, ...]
    options: dict[str, str]
    normalised_inside: bool = False

    @property
    def channel_order(self) -> Literal["RGB", "BGR"] | None:
        """The order in which the model gets the channels."""
        return None if self.reverse_channels is None else "BGR" if self.reverse_channels else "RGB"


_RUNTIMES: dict[str, Literal["onnx", "tflite"]] = {"onnxrt": "onnx", "tflitert": "tflite"}
_LAYOUTS: dict[str, Literal["NCHW", "NHWC"]] = {"NCHW": "NCHW", "NHWC": "NHWC"}
_DTYPES = {
    "float": "float32",
    "double": "float64",
    **{name: name for name in ("uint8", "int8", "uint16", "int16", "int32", "int64", "float32", "float16", "bool")},
}


def parse(text: str) -> CompileParameters:
    """Raises FormatError; also for YAML that is no param.yaml (no `preprocess`, no `session`)."""
    root = plain_yaml.parse(text)
    if not isinstance(root, dict) or "session" not in root or "preprocess" not in root:
        raise FormatError("param.yaml: there is no `session` or no `preprocess`", _CURE)
    session, preprocess = _mapping(root, "session"), _mapping(root, "preprocess")
    pad = preprocess.get("resize_with_pad")
    layout = _text(preprocess, "data_layout")
    return CompileParameters(
        task=_text(root, "task_type"),
        runtime=_RUNTIMES.get(_text(session, "session_name") or ""),
        model_path=_text(session, "model_path") or _text(session, "model_file"),
        artifacts=_text(session, "artifacts_folder"),
        resize=_size(preprocess, "resize"),
        crop=_size(preprocess, "crop"),
        keep_aspect=bool(pad[0]) if isinstance(pad, list) and pad else bool(pad),
        layout=_LAYOUTS.get(layout) if layout else None,
        reverse_channels=_flag(preprocess, "reverse_channels"),
        mean=_numbers(session, "input_mean"),
        scale=_numbers(session, "input_scale"),
        inputs=_tensors(session, "input_details"),
        outputs=_tensors(session, "output_details"),
        options={key: _plain(value) for key, value in _mapping(session, "runtime_options").items()},
        normalised_inside=bool(_flag(session, "input_optimization")),
    )


def _mapping(tree: dict[str, Yaml], key: str) -> dict[str, Yaml]:
    value = tree.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FormatError(f"param.yaml: {key} is no mapping", _CURE)
    return value


def _text(tree: dict[str, Yaml], key: str) -> str | None:
    value = tree.get(key)
    if value is not None and not isinstance(value, str):
        raise FormatError(f"param.yaml: {key} is {str(value)[:40]!r}, not a text", _CURE)
    return value or None


def _flag(tree: dict[str, Yaml], key: str) -> bool | None:
    value = tree.get(key)
    if value is not None and not isinstance(value, bool):
        raise FormatError(f"param.yaml: {key} is {str(value)[:40]!r}, neither true nor false", _CURE)
    return value


def _size(tree: dict[str, Yaml], key: str) -> tuple[int, int] | None:
    value = tree.get(key)
    if value is None:
        return None
    pair = value if isinstance(value, list) else [value, value]
    if len(pair) != 2 or not all(type(size) is int and 1 <= size <= 65536 for size in pair):
        raise FormatError(f"param.yaml: {key} is {str(value)[:40]!r}, not a size or [height, width]", _CURE)
    height, width = pair
    assert isinstance(height, int)
    assert isinstance(width, int)
    return height, width


def _numbers(tree: dict[str, Yaml], key: str) -> tuple[float, ...] | None:
    value = tree.get(key)
    if value is None:
        return None
    items = value if isinstance(value, list) else [value]
    found = [float(item) for item in items if isinstance(item, (int, float)) and not isinstance(item, bool)]
    if len(found) != len(items) or not all(abs(item) < 1e9 for item in found):
        raise FormatError(f"param.yaml: {key} is {str(value)[:40]!r}, not a list of numbers", _CURE)
    return tuple(found)


def _tensors(tree: dict[str, Yaml], key: str) -> tuple[TensorDetail, ...]:
    value = tree.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise FormatError(f"param.yaml: {key} is no list", _CURE)
    return tuple(_tensor(item, key) for item in value)


def _tensor(item: Yaml, key: str) -> TensorDetail:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise FormatError(f"param.yaml: a tensor in {key} has no name", _CURE)
    shape = item.get("shape")
    sizes = [size for size in shape if type(size) is int and size >= 1] if isinstance(shape, list) else []
    if not isinstance(shape, list) or len(sizes) != len(shape):
        raise FormatError(f"param.yaml: the shape of {str(item['name'])[:60]} in {key} is not fixed", _CURE)
    word = _plain(item.get("type")).removeprefix("tensor(").rstrip(")")
    return TensorDetail(str(item["name"]), tuple(sizes), _DTYPES.get(word.rsplit(".", 1)[-1].strip("'<> "), ""))


def _plain(value: Yaml) -> str:
    return "" if value is None else str(value)
