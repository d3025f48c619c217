"""What a compile is asked for and what it answers, in TIDL's own option names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.network import TwinLayer

_NAMES = {
    "tensor_bits": "tensor_bits",
    "advanced_options:output_feature_16bit_names_list": "output_feature_16bit_names_list",
    "advanced_options:params_16bit_names_list": "params_16bit_names_list",
    "advanced_options:quantization_scale_type": "quantization_scale_type",
    "advanced_options:calibration_frames": "calibration_frames",
}


class CompileOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The compile options the virtual board honours (names and defaults: TI's edgeai-tidl-tools README).

    `quantization_scale_type` 0: one symmetric scale a tensor; 4: one weight scale a channel, and zero points for
    8-bit activations of both signs. `calibration_frames`: at most so many frames are used.
    """

    tensor_bits: Literal[8, 16] = 8
    output_feature_16bit_names_list: tuple[str, ...] = ()
    params_16bit_names_list: tuple[str, ...] = ()
    quantization_scale_type: Literal[0, 4] = 0
    calibration_frames: int = 20

    def __post_init__(self) -> None:
        if self.calibration_frames < 1:
            raise TidegaugeError(
                f"advanced_options:calibration_frames is {self.calibration_frames}", "ask for one frame or more"
            )

    @classmethod
    def from_tidl(cls, options: Mapping[str, object]) -> CompileOptions:
        """From TIDL's dictionary of options (values may be strings). Raises `TidegaugeError` for an unknown key."""
        values: dict[str, object] = {}
        for key, value in options.items():
            if key not in _NAMES:
                raise TidegaugeError(
                    f"the virtual board does not know the compile option {key!r}", f"use one of {', '.join(_NAMES)}"
                )
            field = _NAMES[key]
            if field.endswith("_list"):
                values[field] = tuple(name.strip() for name in str(value).split(",") if name.strip())
            else:
                values[field] = value
        try:
            return msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as error:
            raise TidegaugeError(
                f"compile options can't be used: {error}", "see `tidegauge virtualboard compile -h`"
            ) from error


class CompileReport(msgspec.Struct, frozen=True):
    """What was compiled. `sqnr_db`: signal to quantisation noise of each graph output, twin against float, in
    decibels over all calibration frames; `net_sha256` identifies the artifacts."""

    layers: tuple[TwinLayer, ...]
    frames: int
    nodes: int
    sqnr_db: dict[str, float]
    net_sha256: str
    warnings: tuple[str, ...]
