"""From a cause to what to change, in TIDL's own option names (edgeai-tidl-tools README, TIDL 10 and 11).

The lines of one piece of advice are pasted together, so they never exclude each other: `quantization_scale_type` 4
never stands beside `quant_params_proto_path` (a proto is symmetric), and what only `accuracy_level` 9 knows never
beside the calibration frames of level 1. What could be done instead is marked as an alternative, and printed as a
comment.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.compare.types import Advice, CauseName

OUTPUT_16 = "advanced_options:output_feature_16bit_names_list"
PARAMS_16 = "advanced_options:params_16bit_names_list"
DENY = "deny_list:layer_name"
FRAMES = "advanced_options:calibration_frames"
ITERATIONS = "advanced_options:calibration_iterations"
SCALES = "advanced_options:quantization_scale_type"
PROTO = "advanced_options:quant_params_proto_path"
#: Options whose values are lists of names: several pieces of advice become one by joining them.
LISTS = frozenset({OUTPUT_16, PARAMS_16, DENY})
#: Pairs of which a compile can have one only.
EXCLUDE = ((frozenset({SCALES}), frozenset({PROTO})),)

#: Operators whose layers can have another precision than what they read (edgeai-tidl-tools docs, mixed precision:
#: convolution, batch normalisation with its activations, pooling but for maxima, element-wise). All others have one
#: precision for input and output, so that to name one is to name what it reads as well.
CHANGE_PRECISION = frozenset(
    {"Conv", "BatchNormalization", "AveragePool", "GlobalAveragePool", "Add", "Mul", "Sub", "Relu", "Clip"}
)
_NO_CPU = frozenset({"Input", "Identity"})

_REPORT = Advice("", "", "send TI this bundle: the trace of the layer and of what it reads reproduces the fault")


def advise(
    cause: CauseName,
    layer: str,
    operators: Sequence[str],
    detail: str,
    bits: int | None,
    fused: Sequence[str] = (),
    together: Sequence[str] = (),
) -> tuple[Advice, ...]:
    """What to do about a culprit, first choice first.

    `layer`: the ONNX name of its output, as TIDL's lists want it. `fused`: output names of all ONNX nodes in it; to
    deny a fused layer, each of them must be denied. `together`: what must change its precision with it.
    """
    if cause in ("saturation_low", "saturation_high"):
        return _wider_range(layer)
    if cause == "stale_frame":
        return _stale(layer)
    if operators == ("Input",) or layer.endswith("_netFormat"):
        return _input(cause, detail)
    if cause == "coarse_step" and bits == 8:
        return (wide(layer, together), *_alternative(cpu(layer, operators, fused, "its step is too coarse")))
    words = {
        "row_band": "a band of rows points at how the layer is cut into tiles",
        "column_band": "a band of columns points at how the layer is cut into tiles or padded",
        "channel_permutation": "swapped channels point at a wrong layout or a wrong concatenation order",
        "transpose_hw": "swapped height and width point at a wrong layout or resize",
        "gain": "a wrong factor points at a wrong requantisation",
        "wrong_operator": "the import or the kernel mistakes an operator, which no bits and no calibration can cure",
        "offset": "a shift points at a wrong zero point or bias",
    }.get(cause, "the values can't come from quantisation")
    return (*cpu(layer, operators, fused, words), _REPORT)


def _stale(layer: str) -> tuple[Advice, ...]:
    first = f"{layer} is left over from the frame before: wait for each run to end before its output buffer is read"
    return (
        Advice("", "", first),
        Advice("", "", "use one buffer a run, and write back or invalidate the cache on both sides"),
        _REPORT,
    )


#: Where the recorded input itself is of another scale than the calibration's pictures.
SCALE_ONCE = (
    "scale the pixels once, as at compile time: either the application or the model divides them, not both and not "
    "neither; then compare again. No compile option cures it"
)

#: What to look at first where the input on the device is not the recorded one.
_PREPROCESSING: dict[CauseName, str] = {
    "gain": "scale the pixels once, by the same factor where the compile is calibrated, on the board and in the model",
    "normalisation": "apply mean and std once, either in the pre-processing or in the model",
    "channel_permutation": "OpenCV and many cameras give blue first: convert once, to the order of the training",
    "layout": "give the tensor in the order of dims that the model's input has, or let TIDL convert it",
    "transpose_hw": "a picture has rows first: check where width and height are passed on",
    "flip": "turn or mirror the picture as it was in training, and only once",
    "padding_value": "fill the bars of the letter-box with the value of the training, on the board and at compile time",
    "other_input": "record the input in the same call that feeds it to the device, not the frame before or after",
    "shift": "put the bars of the letter-box, or the crop, where they were in training and at compile time",
}


def _input(cause: CauseName, detail: str) -> tuple[Advice, ...]:
    """No option cures a wrong input but the one that lets TIDL convert it."""
    same = "use the same pre-processing at compile time, in the reference and on the board"
    lines = [Advice("", "", f"the input on the device is not the recorded one ({detail}): {same}")]
    if cause in _PREPROCESSING:
        lines.append(Advice("", "", _PREPROCESSING[cause]))
    if cause in ("gain", "normalisation", "layout"):
        lines.append(Advice("advanced_options:add_data_convert_ops", "3", "let TIDL convert type and layout itself"))
    return tuple(lines)


def _wider_range(layer: str) -> tuple[Advice, ...]:
    return (
        Advice(FRAMES, "50", f"calibrate with frames that drive {layer} as far as the captured input does"),
        Advice("accuracy_level", "1", "the level that uses calibration frames"),
        Advice(
            "", "", "put frames like the captured one among those of the calibration: more of the same change nothing"
        ),
    )


def wide(layer: str, together: Sequence[str]) -> Advice:
    """16 bits for a layer's output and weights, and for what must change its precision with it."""
    names = list(dict.fromkeys([layer, *together]))
    return Advice(OUTPUT_16, ",".join(names), f"keep the output of {layer} at 16 bits")


def _alternative(lines: Sequence[Advice]) -> tuple[Advice, ...]:
    return tuple(Advice(line.option, line.value, line.why, alternative=True) for line in lines)


def cpu(layer: str, operators: Sequence[str], fused: Sequence[str], why: str) -> tuple[Advice, ...]:
    """To run a layer on the Arm core; nothing for one that the runtime itself adds."""
    if set(operators) <= _NO_CPU:
        return ()
    names = list(dict.fromkeys([*fused, layer]))
    return (Advice(DENY, ",".join(names), f"run {layer} on the Arm core until TI has an answer: {why}"),)


def diffuse() -> tuple[Advice, ...]:
    """What to do where no layer is to blame but the output is poor, and no set of layers is known to cure it."""
    return (
        Advice(SCALES, "4", "one scale a weight channel, zero points for activations"),
        Advice("accuracy_level", "1", "with more calibration frames and iterations"),
        Advice(FRAMES, "50", "more calibration frames"),
        Advice(ITERATIONS, "25", "more rounds of bias calibration"),
        Advice("tensor_bits", "16", "if the latency allows it", alternative=True),
    )


def joined(pieces: Sequence[Advice]) -> tuple[Advice, ...]:
    """Several pieces as one that can be pasted: names of one list in one line, each option once, nothing that excludes
    another. Alternatives and deeds in words are left out."""
    lists: dict[str, list[str]] = {}
    values: dict[str, Advice] = {}
    for item in pieces:
        if not item.option or item.alternative:
            continue
        if item.option in LISTS:
            names = lists.setdefault(item.option, [])
            names += [name for name in item.value.split(",") if name not in names]
        else:
            values.setdefault(item.option, item)
    for first, second in EXCLUDE:
        if first & values.keys() and second & values.keys():
            values = {option: item for option, item in values.items() if option not in second}
    why = {OUTPUT_16: "outputs at 16 bits", PARAMS_16: "weights at 16 bits", DENY: "on the Arm core"}
    merged = [Advice(option, ",".join(names), why[option]) for option, names in lists.items()]
    return (*merged, *values.values())
