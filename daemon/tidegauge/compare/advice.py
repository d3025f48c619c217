"""From a cause to what to change, in TIDL's own option names (edgeai-tidl-tools README, TIDL 10 and 11)."""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.compare.types import Advice, CauseName

_OUTPUT_16 = "advanced_options:output_feature_16bit_names_list"
_PARAMS_16 = "advanced_options:params_16bit_names_list"
_PROTO = "advanced_options:quant_params_proto_path"
_FRAMES = "advanced_options:calibration_frames"
_ITERATIONS = "advanced_options:calibration_iterations"
_CLIPPING = "advanced_options:activation_clipping"
_SCALES = "advanced_options:quantization_scale_type"
_DENY = "deny_list:layer_name"

#: Layers whose output TIDL can keep at 16 bits on request.
_WIDE = {
    "Conv",
    "BatchNormalization",
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "Add",
    "Mul",
    "Sub",
    "Relu",
    "Clip",
}


def advise(cause: CauseName, layer: str, operators: Sequence[str], detail: str, bits: int | None) -> tuple[Advice, ...]:
    """What to do about a culprit. `layer`: the ONNX name of its output, as TIDL's lists want it."""
    if operators == ("Input",) or _is_input(operators, layer):
        return _input(cause, detail)
    if cause in ("saturation_low", "saturation_high"):
        return _wider_range(layer, operators)
    if cause == "coarse_step":
        return (*_more_bits(layer, operators), *_wider_range(layer, ())[:1])
    if cause in ("row_band", "column_band", "channel_permutation", "transpose_hw", "channels"):
        return _data_flow(layer, cause)
    if cause == "non_finite":
        return _data_flow(layer, cause)
    if cause in ("all_zero", "constant"):
        return (
            Advice(
                _PROTO, "./qparams.prototxt", f"give {layer} a range and a scale: its output carries no information"
            ),
            *_data_flow(layer, cause),
        )
    if cause in ("gain", "offset"):
        return (
            Advice(
                _PROTO,
                "./qparams.prototxt",
                f"check the scale and the zero point of {layer} and of what it reads, and compile again from it",
            ),
            *_more_bits(layer, operators),
            *_data_flow(layer, cause),
        )
    return (*(_more_bits(layer, operators) if bits == 8 else ()), *_data_flow(layer, cause))


def _is_input(operators: Sequence[str], layer: str) -> bool:
    return tuple(operators) == ("Identity",) and layer.endswith("_netFormat")


def _input(cause: CauseName, detail: str) -> tuple[Advice, ...]:
    del cause
    return (
        Advice(
            "",
            "",
            f"the input layer changes the values ({detail}): apply mean and scale once, in the pre-processing or in "
            "the model, and use the same pre-processing at compile time and on the board",
        ),
        Advice("advanced_options:add_data_convert_ops", "3", "let TIDL convert type and layout itself"),
    )


def _wider_range(layer: str, operators: Sequence[str]) -> tuple[Advice, ...]:
    return (
        Advice(_FRAMES, "50", f"calibrate with frames that drive {layer} as far as the captured input does"),
        Advice(_ITERATIONS, "25", "TI's own advice for a range that is too narrow"),
        Advice(_CLIPPING, "0", "accuracy_level 9: don't clip activations during calibration"),
        *(_more_bits(layer, operators) if operators else ()),
    )


def _more_bits(layer: str, operators: Sequence[str]) -> tuple[Advice, ...]:
    found = []
    if not operators or _WIDE & set(operators):
        found.append(Advice(_OUTPUT_16, layer, f"keep the output of {layer} at 16 bits"))
    if {"Conv", "ConvTranspose", "Gemm", "MatMul"} & set(operators):
        found.append(Advice(_PARAMS_16, layer, f"keep the weights of {layer} at 16 bits"))
    return tuple(found)


def _data_flow(layer: str, cause: CauseName) -> tuple[Advice, ...]:
    words = {
        "row_band": "a band of rows points at how the layer is cut into tiles",
        "column_band": "a band of columns points at how the layer is cut into tiles or padded",
        "channel_permutation": "swapped channels point at a wrong layout or a wrong concatenation order",
        "transpose_hw": "swapped height and width point at a wrong layout or resize",
    }.get(cause, "the values can't come from quantisation")
    return (
        Advice(_DENY, layer, f"run {layer} on the Arm core until TI has an answer: {words}"),
        Advice("", "", "send TI this bundle: the trace of the layer and of what it reads reproduces the fault"),
    )


def diffuse() -> tuple[Advice, ...]:
    """What to do where no layer is to blame but the output is poor."""
    return (
        Advice(_SCALES, "4", "one scale a weight channel, zero points for activations"),
        Advice("accuracy_level", "1", "with more calibration frames and iterations (50 and 25)"),
        Advice("advanced_options:mixed_precision_factor", "1.5", "let TIDL choose layers for 16 bits"),
        Advice("tensor_bits", "16", "if the latency allows it"),
    )
