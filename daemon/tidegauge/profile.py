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
    """What the watched output is, how its loss is measured, and the size of one step, in the output's own unit.

    `kind` "image": a picture of `low`…`high`; "raw": any tensor; both lose the share of elements off by more than
    `step`, the difference the product does not mind (for a picture one display level, for instance 1/255). Other kinds
    decode both sides with the same code, and use `step` for named symptoms only. `also`: further outputs that the
    decoder needs, in its order. `activation`: what the model left out. `decoder`: of detection `tidl`, `ssd`, `yolov5`
    or `yolox`; of keypoints `tidl`, `points` or `heatmaps`. `threshold`: the product's score threshold; `overlap`: of
    suppression. `width`, `height`: the model's input, for `yolox`. `loss`: `top1` for classification, `pixels` for
    segmentation, the entry point's name for kind `custom`; empty for the kind's own.
    """

    name: str
    kind: Literal[
        "image",
        "raw",
        "classification",
        "detection",
        "segmentation",
        "keypoints",
        "depth",
        "embedding",
        "custom",
    ]
    step: Annotated[float, Meta(gt=0)]
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    channel_order: Literal["RGB", "BGR"] = "RGB"
    low: float = 0.0
    high: float = 1.0
    also: tuple[str, ...] = ()
    loss: str = ""
    activation: Literal["none", "softmax", "sigmoid"] = "none"
    decoder: Literal["tidl", "ssd", "yolov5", "yolox", "points", "heatmaps"] = "tidl"
    threshold: Annotated[float, Meta(gt=0)] = 0.5
    overlap: Annotated[float, Meta(gt=0, le=1)] = 0.45
    width: Annotated[int, Meta(ge=0)] = 0
    height: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        """What a kind can't do is refused when the profile is read, not at the first sample."""
        if not self.low < self.high:
            raise ValueError(f"`low` ({self.low:g}) must be below `high` ({self.high:g})")
        decoders = {"detection": ("tidl", "ssd", "yolov5", "yolox"), "keypoints": ("tidl", "points", "heatmaps")}
        losses = {"classification": ("", "top1"), "segmentation": ("", "pixels")}
        if self.kind in decoders and self.decoder not in decoders[self.kind]:
            raise ValueError(f"kind {self.kind} has no decoder {self.decoder}, but {', '.join(decoders[self.kind])}")
        if self.kind == "custom" and not self.loss:
            raise ValueError("kind custom needs `loss`, the name of an entry point")
        if self.kind != "custom" and self.loss not in losses.get(self.kind, ("",)):
            raise ValueError(f"kind {self.kind} has no loss {self.loss}")
        if self.kind == "detection" and self.decoder == "yolox" and not (self.width and self.height):
            raise ValueError("decoder yolox needs `width` and `height` of the model's input")


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model: its name, its runtime, its files (paths relative to the profile's own folder).

    `graph_optimization` of ONNX Runtime, as at the compile: allowedNode.txt counts the nodes of the optimised graph, so
    that with another level the wrong nodes would run on the accelerator. "default" is the runtime's own, as in TI's
    examples.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    runtime: Literal["onnx", "tflite"]
    model: str
    artifacts: str
    preprocess: Preprocess
    output: Output
    graph_optimization: Literal["default", "disabled", "basic", "extended", "all"] = "default"
