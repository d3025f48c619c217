"""What a reader must know besides the culprits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tidegauge.compare.culprits import FAULTY
from tidegauge.compare.cutgraph import part_for, run_part
from tidegauge.compare.float_traces import FLOAT_NETWORK, is_float_network
from tidegauge.compare.layers import Evaluation
from tidegauge.compare.layout import PROMISED
from tidegauge.compare.load import Source
from tidegauge.compare.types import INPUT_FACTOR, Culprit, Finding, OutputResult

#: Without a culprit, an output below this has lost accuracy bit by bit.
POOR_SQNR_DB = 20.0
#: Share (and number) of codes off by one that right arithmetic does not reach: it stays below 1.2 % on healthy runs.
OFF_BY_ONE, FEW = 0.02, 64


def find_findings(
    source: Source,
    work: Evaluation,
    culprits: Sequence[Culprit],
    outputs: Sequence[OutputResult],
    inputs: Sequence[Finding],
) -> list[Finding]:
    """Findings in the order in which a reader needs them; `inputs`: those on the scale of the inputs."""
    fed = any(finding.kind == INPUT_FACTOR for finding in inputs)
    return [
        *_tracing(source),
        *_float_network(source),
        *(work.given.findings() if work.given is not None else ()),
        *inputs,
        *(() if fed else _diffuse(culprits, outputs)),  # a poor output is what such an input gives
        *_unusable(work),
        *_layouts(work),
        *_biases(work),
        *_rounding(work),
        *_scales(work),
        *_model(work),
    ]


def _tracing(source: Source) -> Iterator[Finding]:
    if source.tracing_changed_output:
        text = (
            "The outputs with tracing differ from those without: what is compared here is not quite what the product "
            "computes."
        )
        yield Finding("tracing_changed_output", "warning", text)


def _float_network(source: Source) -> Iterator[Finding]:
    if is_float_network(source.tensors):
        yield Finding("float_network", "note", FLOAT_NETWORK.format(source.subject.source))


def _diffuse(culprits: Sequence[Culprit], outputs: Sequence[OutputResult]) -> Iterator[Finding]:
    if culprits:
        return
    for output in outputs:
        if output.metrics.sqnr_db is not None and output.metrics.sqnr_db < POOR_SQNR_DB:
            text = (
                f"Output {output.name} has an SQNR of {output.metrics.sqnr_db:.1f} dB although no layer is wrong by "
                "itself: rounding adds up. Try advanced_options:quantization_scale_type=4, more calibration frames, "
                "advanced_options:mixed_precision_factor, or tensor_bits=16."
            )
            yield Finding("accumulated_error", "warning", text)


def _unusable(work: Evaluation) -> Iterator[Finding]:
    for status in ("missing", "truncated", "shape_mismatch", "duplicate", "non_finite"):
        layers = [layer.tensor.name or layer.tensor.file for layer in work.layers if layer.status == status]
        if layers:
            listed = ", ".join(layers[:5]) + (", …" if len(layers) > 5 else "")
            yield Finding(status, "warning", f"{len(layers)} traced tensors are {status.replace('_', ' ')}: {listed}.")


def _layouts(work: Evaluation) -> Iterator[Finding]:
    """Other layouts than the documents promise: those that were read as they fit, and those that were not."""
    for layer in work.layers:
        name = layer.tensor.name
        if layer.layout is not None and (layer.tensor.kind, layer.layout) != PROMISED:
            text = f"The trace of {name} is laid out as {layer.layout}, which no document promises; it was read so."
            yield Finding("layout", "warning", text, name)
        if layer.laid_otherwise is not None:
            text = (
                f"The bytes of {name} fit the float model as {layer.laid_otherwise}, not as its dims say; it counts as "
                "wrong, since that is what the next layer reads."
            )
            yield Finding("layout", "warning", text, name)


def _rounding(work: Evaluation) -> Iterator[Finding]:
    """Codes that differ by one from the predicted ones: harmless for the product, but not the compile's arithmetic."""
    layers = [
        f"{layer.tensor.name} ({layer.off_by_one:.0%})"
        for layer in work.layers
        if layer.off_by_one is not None
        and layer.off_by_one > OFF_BY_ONE
        and layer.off_by_one * layer.tensor.count >= FEW
        and layer.tensor.source != "estimate"
        and (layer.local is not None and (layer.local.excess or 0.0) <= FAULTY)
    ]
    if layers:
        listed = ", ".join(layers[:5]) + (", …" if len(layers) > 5 else "")
        text = f"{len(layers)} layers round otherwise than predicted: codes off by one in {listed}."
        yield Finding("off_by_one", "note", text)


def _biases(work: Evaluation) -> Iterator[Finding]:
    """Biases that calibration moved and no table tells: such a layer is as the compile wanted it."""
    layers = [
        f"{layer.tensor.name} ({layer.bias_moved:.2g} steps)" for layer in work.layers if layer.bias_moved is not None
    ]
    if layers:
        listed = ", ".join(layers[:5]) + (", …" if len(layers) > 5 else "")
        text = (
            f"Biases of {len(layers)} layers were moved by calibration (accuracy_level 1): {listed}. With them the "
            "layers are right, and nearer to the float run's means than without. No table tells them: compile with "
            "advanced_options:quant_params_proto_path to have them compared in full."
        )
        yield Finding("biases_moved", "note", text)


def _scales(work: Evaluation) -> Iterator[Finding]:
    few = [layer.tensor.name for layer in work.layers if layer.tensor.source == "estimate" and layer.tensor.coarse]
    if few:
        listed = ", ".join(few[:5]) + (", …" if len(few) > 5 else "")
        text = (
            f"The compile's tables print too few digits of the scales of {len(few)} tensors of large values ({listed}):"
            " they are estimated from the float run, within what is printed. A quantisation proto tells them in full."
        )
        yield Finding("coarse_scales", "warning", text)
    estimated = [
        layer.tensor.name for layer in work.layers if layer.tensor.source == "estimate" and not layer.tensor.coarse
    ]
    if estimated:
        text = f"The scales of {len(estimated)} tensors are estimated from the float run: a wrong scale would not show."
        yield Finding("estimated_scales", "warning", text)


def _model(work: Evaluation) -> Iterator[Finding]:
    count = work.reference.model.subnormal
    if count:
        text = (
            f"{count} weights are smaller than the smallest normal float32 and were taken for zero. With that smallest "
            f"number in their place {_flushing(work)}."
        )
        yield Finding("subnormal_weights", "note", text)


def _flushing(work: Evaluation) -> str:
    """What flushed weights do to the outputs, as a bound that is measured at the speed of normal numbers."""
    model, tiny = work.reference.model, np.finfo(np.float32).tiny
    replaced = {
        name: np.where(signs != 0, signs * tiny, model.weights[name]).astype(model.weights[name].dtype)
        for name, signs in model.flushed.items()
        if name in model.weights and model.weights[name].shape == signs.shape
    }
    outputs = [name for name in model.outputs if name in model.producer]
    part = part_for(model, outputs, set())
    feeds = {name: work.reference.inputs[name] for name in part.reads_inputs}
    values = run_part(model, part, set(), feeds, replaced)
    worst = 0.0
    for name, value in values.items():
        float_run = work.reference.outputs[name].astype(np.float64)
        worst = max(worst, float(np.abs(value.astype(np.float64) - float_run).max(initial=0.0)))
    return f"no output value changes by more than {worst:.2g}" if worst else "no output value changes"
