"""The profile of a model: how a picture becomes its input tensor, and how wrong an answer is.

An operator keeps profiles in `agent_config/`; agent, workers, bundles and collector share this one type.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]


class Preprocess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From a BGR 8-bit picture to the input tensor: resize, reorder, `(value - mean) * scale`, layout.

    The numbers must be those of the compile (`param.yaml`: preprocess, input_mean, input_scale).
    """

    width: Positive
    height: Positive
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    scale: tuple[float, ...] = (1.0, 1.0, 1.0)
    channel_order: Literal["RGB", "BGR"] = "RGB"
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    dtype: Literal["float32", "uint8", "int8"] = "float32"


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the watched output is, and the size of one step of its loss, in the output's own unit.

    `kind` "image": a picture of `low`…`high`; "raw": any tensor. `step` is the difference the product does not
    mind (for a picture one display level, for instance 1/255); the loss is the share of elements off by more.
    """

    name: str
    kind: Literal["image", "raw"]
    step: Annotated[float, Meta(gt=0)]
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    channel_order: Literal["RGB", "BGR"] = "RGB"
    low: float = 0.0
    high: float = 1.0


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model: its name, its runtime, its files (paths relative to the profile's own folder)."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    runtime: Literal["onnx", "tflite"]
    model: str
    artifacts: str
    preprocess: Preprocess
    output: Output
