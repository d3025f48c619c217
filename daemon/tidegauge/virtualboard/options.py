"""What a compile is asked for and what it answers, in TIDL's own option names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.network import TwinLayer

_NAMES = {
    "tensor_bits": "tensor_bits",
    "accuracy_level": "accuracy_level",
    "deny_list:layer_name": "deny_list_layer_name",
    "advanced_options:output_feature_16bit_names_list": "output_feature_16bit_names_list",
    "advanced_options:params_16bit_names_list": "params_16bit_names_list",
    "advanced_options:quantization_scale_type": "quantization_scale_type",
    "advanced_options:calibration_frames": "calibration_frames",
    "advanced_options:calibration_iterations": "calibration_iterations",
    "advanced_options:quant_params_proto_path": "quant_params_proto_path",
    "advanced_options:high_resolution_optimization": "high_resolution_optimization",
}
_LISTS = frozenset({"output_feature_16bit_names_list", "params_16bit_names_list", "deny_list_layer_name"})
#: They say where things are or how much to print: nothing to warn of.
_SILENT = frozenset({"tidl_tools_path", "artifacts_folder", "debug_level", "platform", "version", "model_type"})
#: Further options of TI's tools 11.x (edgeai-tidl-tools README and docs/model_compilation.md).
_WITHOUT_EFFECT = frozenset(
    {
        "max_num_subgraphs",
        "deny_list",
        "deny_list:layer_type",
        "allow_list:layer_name",
        "ti_internal_nc_flag",
        *(
            f"advanced_options:{name}"
            for name in (
                "mixed_precision_factor",
                "activation_clipping",
                "weight_clipping",
                "bias_calibration",
                "channel_wise_quantization",
                "prequantized_model",
                "enable_tfr_optimization",
                "add_data_convert_ops",
                "pre_batchnorm_fold",
                "optimize_batchnorm_higherdims",
                "enable_shape_folding",
                "network_name",
                "c7x_firmware_version",
                "max_num_subgraph_nodes",
                "enable_rt_multi_subgraph_support",
                "inference_mode",
                "num_cores",
                "batch_mode",
                "packetize_mode",
                "enable_custom_layers",
                "custom_layers_names_list",
                "net_inelement_type",
                "partial_init_during_compile",
                "log_file_name",
                "temp_buffer_dir",
                "nc_temp_info_dir",
            )
        ),
    }
)


class CompileOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The compile options the virtual board honours (names and defaults: TI's edgeai-tidl-tools README).

    `tensor_bits` 32: float, for host emulation only. `quantization_scale_type` 0: one symmetric scale a tensor; 1: the
    same, a power of two; 4: one weight scale a channel, and zero points for 8-bit activations of both signs.
    `calibration_frames`: at most so many frames are used. `calibration_iterations`: of bias calibration, at
    `accuracy_level` 1 (0, unlike TIDL's 50: none). `deny_list_layer_name`: nodes, by name or output, that stay on the
    CPU, and so cut the network into sub-graphs. `quant_params_proto_path`: a file of ranges, scales and zero points,
    written where there is none, else read. `high_resolution_optimization` 1: large convolutions are super-tiled, so
    that their traces are written once a tile, in full size each time. `ignored`: keys of `from_tidl` that are none of
    these.
    """

    tensor_bits: Literal[8, 16, 32] = 8
    output_feature_16bit_names_list: tuple[str, ...] = ()
    params_16bit_names_list: tuple[str, ...] = ()
    quantization_scale_type: Literal[0, 1, 4] = 0
    calibration_frames: int = 20
    calibration_iterations: int = 0
    accuracy_level: Literal[0, 1, 2, 9] = 1
    deny_list_layer_name: tuple[str, ...] = ()
    quant_params_proto_path: str = ""
    high_resolution_optimization: Literal[0, 1] = 0
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("calibration_frames", 1), ("calibration_iterations", 0)):
            if getattr(self, name) < least:
                raise TidegaugeError(f"advanced_options:{name} is {getattr(self, name)}", f"ask for {least} or more")

    @classmethod
    def from_tidl(cls, options: Mapping[str, object]) -> CompileOptions:
        """From TIDL's dictionary of options (values may be strings). A key that isn't known is ignored, as TIDL does,
        and listed in the compile's warnings. Raises `TidegaugeError` for a value that can't be used."""
        values: dict[str, object] = {"ignored": tuple(key for key in options if key not in _NAMES)}
        for key, value in options.items():
            field = _NAMES.get(key)
            if field in _LISTS:
                values[field] = tuple(name.strip() for name in str(value).split(",") if name.strip())
            elif field is not None:
                values[field] = value
        try:
            return msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as error:
            raise TidegaugeError(
                f"compile options can't be used: {error}", "see `tidegauge virtualboard compile -h`"
            ) from error

    def warnings(self) -> list[str]:
        """A sentence for each ignored key. TIDL itself says nothing."""
        said = []
        for key in self.ignored:
            if key in _WITHOUT_EFFECT or key.startswith("object_detection:"):
                said.append(f"{key} has no effect on the virtual board")
            elif key not in _SILENT:
                said.append(f"{key} is no compile option of TIDL: ignored")
        return said


class CompileReport(msgspec.Struct, frozen=True):
    """What was compiled. `layers`: of all sub-graphs; `nodes`: of the model, `offloaded`: of them on the C7x.
    `sqnr_db`: signal to quantisation noise of each graph output, twin against float, in decibels over all calibration
    frames; `net_sha256` identifies the artifacts by the network of the first sub-graph."""

    layers: tuple[TwinLayer, ...]
    frames: int
    nodes: int
    sqnr_db: dict[str, float]
    net_sha256: str
    warnings: tuple[str, ...]
    subgraphs: tuple[str, ...] = ("subgraph_0",)
    offloaded: int = 0
