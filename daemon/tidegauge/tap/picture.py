"""From an input tensor back to the picture it was made of, for what looks at pictures. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.profile import Preprocess


def picture(tensor: NDArray[Any], preprocess: Preprocess) -> NDArray[np.uint8] | None:
    """BGR, uint8, height × width × 3: the inverse of `pipeline.preprocess.input_tensor` but for resizing, rounded and
    clipped. `tensor` of shape (1, 3, height, width) or (1, height, width, 3). None where the profile's numbers have no
    inverse, or the tensor isn't of its shape.
    """
    size = (preprocess.height, preprocess.width)
    shape = (1, 3, *size) if preprocess.layout == "NCHW" else (1, *size, 3)
    if tensor.shape != shape or len(preprocess.mean) != 3 or len(preprocess.scale) != 3 or 0.0 in preprocess.scale:
        return None
    values = tensor[0].astype(np.float32)
    if preprocess.layout == "NCHW":
        values = values.transpose(1, 2, 0)
    values = values / np.array(preprocess.scale, np.float32) + np.array(preprocess.mean, np.float32)
    if preprocess.channel_order == "RGB":
        values = values[..., ::-1]
    return np.ascontiguousarray(np.rint(np.clip(np.nan_to_num(values), 0, 255)), dtype=np.uint8)
