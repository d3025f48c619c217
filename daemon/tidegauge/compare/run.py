"""One comparison from a source to its answer, step by step: match, evaluate, name culprits, say it."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tidegauge import __version__
from tidegauge.compare import culprits as naming
from tidegauge.compare.baseline import Baseline
from tidegauge.compare.culprits import Suspect, Verdict
from tidegauge.compare.estimate import complete
from tidegauge.compare.evaluate import Evaluation, Layer, evaluate, prepare
from tidegauge.compare.findings import find_findings
from tidegauge.compare.float_traces import codes_of_floats
from tidegauge.compare.load import Source
from tidegauge.compare.match import match
from tidegauge.compare.model import Model, fold_batch_norms, load_model
from tidegauge.compare.reference import GROUP_BYTES
from tidegauge.compare.statistics import Encoding, measure, metrics, noise_floor
from tidegauge.compare.types import Comparison, Coverage, Culprit, LayerResult, OutputResult, Unmatched
from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

#: What a caller may watch: layers done, layers in all.
Progress = Callable[[int, int], None]


def compare(
    source: Source,
    *,
    min_coverage: float = 0.8,
    progress: Progress | None = None,
    group_bytes: int = GROUP_BYTES,
    baseline: Baseline | None = None,
) -> Comparison:
    """Compare a device run with the float model, layer by layer. Raises `TidegaugeError` for unusable input.

    `group_bytes` bounds the float values held at a time. `baseline`: limits from healthy runs of this model.
    """
    began = time.monotonic()
    if baseline is not None and baseline.model_sha256 != hashlib.sha256(source.model).hexdigest():
        raise TidegaugeError("the baseline is of another model", "make one with --write-baseline from a healthy run")
    model = load_model(source.model, source.model_name, source.model_folder)
    if not source.tensors:
        raise TidegaugeError(f"{source.subject.source} holds no traces", "capture again at debug_level 3")
    source.tensors = codes_of_floats(source.tensors)
    matches = match(model, [tensor.name for tensor in source.tensors])
    fold_batch_norms(model, [m.tensor for m in matches if m.tensor is not None])
    inputs = _bind_inputs(model, source.inputs)
    complete(model, inputs, source.tensors, matches)
    work = prepare(model, inputs, source.tensors, matches, group_bytes)
    if baseline is not None:
        for layer in work.layers:
            layer.limit = baseline.limit(layer.tensor.name)
            layer.codes_allowed = baseline.codes_allowed(layer.tensor.name)
            layer.ones_allowed = baseline.ones_allowed(layer.tensor.name)
    if not work.by_twin:
        first = next((layer for layer in work.layers), None)
        why = f"{first.tensor.name or first.tensor.file}: {first.reason}" if first else "there are none"
        raise TidegaugeError(
            f"no traced tensor can be compared ({why})", "give the model and the tempDir of this compile"
        )
    for done in evaluate(work, source.subgraphs):
        if progress is not None:
            progress(done, len(work.by_twin))
    outputs = _device_outputs(work, source.outputs)
    excess = naming.judge(work)
    wrong, harmless = naming.find(work, excess, outputs, source.step)
    return _answer(source, work, excess, wrong, harmless, outputs, min_coverage, began)


def _bind_inputs(model: Model, recorded: Mapping[str, Array]) -> dict[str, Array]:
    """The recorded input tensors under the model's names, shaped and typed as the model wants them."""
    named = dict(recorded)
    if list(named) == [""] and len(model.inputs) == 1:
        named = {model.inputs[0]: named[""]}
    bound = {}
    for name in model.inputs:
        if name not in named:
            raise TidegaugeError(
                f"the input tensor {name} of the model was not recorded", f"recorded are: {', '.join(named) or 'none'}"
            )
        bound[name] = _fit(model, name, named[name])
    return bound


def _fit(model: Model, name: str, value: Array) -> Array:
    shape, dtype = model.input_shapes[name], model.input_types[name]
    fixed = [n for n in shape if n > 0]
    if len(fixed) == len(shape):
        if value.size != math.prod(shape):
            raise TidegaugeError(
                f"the input tensor {name} has shape {list(value.shape)}, the model wants {list(shape)}",
                "give the tensor that was fed to the device",
            )
        value = value.reshape(shape)
    if not np.isfinite(value.astype(np.float64)).all():
        raise TidegaugeError(f"the input tensor {name} holds values that are not finite", "capture another frame")
    return np.ascontiguousarray(value.astype(dtype, copy=False))


def _device_outputs(work: Evaluation, recorded: Mapping[str, Array]) -> dict[str, Array]:
    """The device's network outputs: traced ones, else those recorded with the bundle."""
    found = {}
    for name in work.reference.model.outputs:
        if name in work.by_twin:
            found[name] = work.reference.feed(name)
        elif name in recorded:
            found[name] = recorded[name]
    return found


# --- saying it ---------------------------------------------------------------------------------------------------


def _answer(
    source: Source,
    work: Evaluation,
    excess: Mapping[int, float | None],
    wrong: list[Suspect],
    harmless: list[Suspect],
    outputs: Mapping[str, Array],
    min_coverage: float,
    began: float,
) -> Comparison:
    verdicts = naming.verdicts(work, wrong, harmless, excess)
    index = {id(layer): i for i, layer in enumerate(work.layers)}
    coverage = _coverage(work, min_coverage)
    named = tuple(naming.describe(s, rank, index[id(s.layer)]) for rank, s in enumerate(wrong, 1))
    recovered = tuple(naming.describe(s, rank, index[id(s.layer)]) for rank, s in enumerate(harmless, 1))
    results = _output_results(work, outputs)
    code: Literal[0, 1, 3] = 3 if coverage.share < min_coverage else (1 if named else 0)
    return Comparison(
        tool=__version__,
        subject=source.subject,
        exit_code=code,
        sentence=_sentence(coverage, named, recovered, results),
        coverage=coverage,
        layers=tuple(_layer(layer, i, verdicts[id(layer)], excess[id(layer)]) for i, layer in enumerate(work.layers)),
        culprits=named,
        recovered=recovered,
        outputs=results,
        unmatched=_unmatched(work),
        findings=(*source.findings, *find_findings(source, work, named, results)),
        scale_sources=dict(Counter(layer.tensor.source for layer in work.layers if layer.tensor.read is not None)),
        tracing_changed_output=source.tracing_changed_output,
        seconds=round(time.monotonic() - began, 3),
    )


def _coverage(work: Evaluation, minimum: float) -> Coverage:
    wanted = [layer for layer in work.layers if layer.tensor.kind != "TIDL_DataLayer"]
    compared = [layer for layer in wanted if layer.cumulative is not None or _known_broken(work, layer)]
    share = len(compared) / len(wanted) if wanted else 0.0
    return Coverage(len(wanted), len(compared), share, minimum)


def _known_broken(work: Evaluation, layer: Layer) -> bool:
    return layer.status == "non_finite" and layer.match.tensor in work.by_twin


def _layer(layer: Layer, index: int, verdict: tuple[Verdict, str], excess: float | None) -> LayerResult:
    tensor = layer.tensor
    reason = layer.reason if layer.status != "ok" and layer.reason else verdict[1]
    return LayerResult(
        name=tensor.name,
        index=index,
        data_id=tensor.data_id,
        file=tensor.file,
        tensor=layer.match.tensor,
        operators=layer.operators,
        dims=tensor.dims,
        dtype=tensor.dtype,
        scale=tensor.scale,
        zero_point=tensor.zero_point,
        scale_source=tensor.source,
        status=layer.status,
        matched=layer.match.how,
        verdict=verdict[0],
        reason=reason,
        cumulative=layer.cumulative,
        local=layer.local,
        excess=excess if excess is not None and math.isfinite(excess) else None,
        float_excess=layer.float_excess,
        clipping_excess=layer.clipping if layer.local is not None else None,
        clipped_share=layer.clipped_share if layer.local is not None else None,
        weights=layer.weights,
        low_share=layer.low_share,
        high_share=layer.high_share,
        codes_off_by_one=layer.off_by_one,
        codes_off_by_more=layer.off_by_more,
        profiles=layer.profiles,
        histogram=layer.histogram,
        limit=layer.limit,
    )


def _output_results(work: Evaluation, outputs: Mapping[str, Array]) -> tuple[OutputResult, ...]:
    found = []
    for name, device in outputs.items():
        reference = work.reference.outputs[name].astype(np.float32)
        if device.size != reference.size:
            continue
        encoding = Encoding("float32")
        sums = measure(device.reshape(reference.shape).astype(np.float32), reference, encoding, profiles=False)
        rms = math.sqrt(sums.f2 / sums.count) if sums.count else 0.0
        found.append(OutputResult(name, metrics(sums, encoding, noise_floor(encoding, rms)), sums.device_bad))
    return tuple(found)


def _unmatched(work: Evaluation) -> tuple[Unmatched, ...]:
    traced = {layer.match.tensor for layer in work.layers}
    device = [
        Unmatched(layer.tensor.name or layer.tensor.file, "device", layer.tensor.data_id, layer.reason)
        for layer in work.layers
        if layer.match.tensor is None
    ]
    reference = [
        Unmatched(name, "reference", None, "no device tensor has the name of this network output")
        for name in work.reference.model.outputs
        if name not in traced
    ]
    return (*device, *reference)


def _sentence(
    coverage: Coverage, named: tuple[Culprit, ...], recovered: tuple[Culprit, ...], outputs: tuple[OutputResult, ...]
) -> str:
    thin = ""
    if coverage.share < coverage.minimum:
        thin = f"Only {coverage.compared} of {coverage.traced} traced layers could be compared, too few for a verdict. "
    if named:
        others = len(named) - 1
        more = {0: "", 1: " One more layer is wrong by itself."}.get(
            others, f" {others} more layers are wrong by themselves."
        )
        return thin + named[0].sentence + more
    healthy = f"No layer is wrong by itself: all {coverage.compared} compared layers agree with the float model"
    quality = [f"{o.name} {o.metrics.sqnr_db:.1f} dB" for o in outputs if o.metrics.sqnr_db is not None]
    told = f" (output SQNR: {', '.join(quality)})" if quality else ""
    ignored = f"; {len(recovered)} wrong by itself without effect on the output" if recovered else ""
    return f"{thin}{healthy} to within their rounding{ignored}{told}."
