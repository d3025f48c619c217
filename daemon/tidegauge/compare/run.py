"""One comparison from a source to its answer, step by step: match, evaluate, name culprits, say it."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegauge.compare import culprits as naming
from tidegauge.compare.answer import answer
from tidegauge.compare.baseline import Baseline
from tidegauge.compare.estimate import complete
from tidegauge.compare.evaluate import evaluate, prepare
from tidegauge.compare.evidence import Values
from tidegauge.compare.float_traces import codes_of_floats
from tidegauge.compare.given import check_names
from tidegauge.compare.input_scale import input_scale
from tidegauge.compare.layers import Evaluation
from tidegauge.compare.load import Source
from tidegauge.compare.match import Matches, match_tensors
from tidegauge.compare.model import Model, fold_batch_norms, load_model
from tidegauge.compare.reference import GROUP_BYTES, Reference
from tidegauge.compare.stale import Before
from tidegauge.compare.tflite_check import check_tflite
from tidegauge.compare.tflite_file import is_tflite
from tidegauge.compare.tflite_model import load_tflite
from tidegauge.compare.tolerance import tolerate
from tidegauge.compare.types import INPUT_FACTOR, Comparison
from tidegauge.compare.whatif import study
from tidegauge.errors import TidegaugeError

Array = NDArray[Any]

#: What a caller may watch: layers done, layers in all, and the name of the one that was done last.
Progress = Callable[[int, int, str], None]


def compare(
    source: Source,
    *,
    min_coverage: float = 0.8,
    progress: Progress | None = None,
    group_bytes: int = GROUP_BYTES,
    baseline: Baseline | None = None,
    target_db: float | None = None,
    threshold: float | None = None,
    previous: Source | None = None,
    past_input: bool = False,
) -> Comparison:
    """Compare a device run with the float model, layer by layer. Raises `TidegaugeError` for unusable input.

    `group_bytes` bounds the float values held at a time. `baseline`: limits from healthy runs of this model.
    `target_db`: the SQNR that every output shall reach; the smallest set of changes that does is then looked for.
    `threshold`: the excess above which a layer is wrong where the baseline sets no limit, instead of the default.
    `previous`: the frame before, of the same compile; what is left over from it is recognised then. `past_input`: judge
    the layers also where the pre-processing has fed the device another input.
    """
    began = time.monotonic()
    if baseline is not None and baseline.model_sha256 != hashlib.sha256(source.model).hexdigest():
        raise TidegaugeError("the baseline is of another model", "make one with --write-baseline from a healthy run")
    tflite = is_tflite(source.model)
    if tflite:
        model = load_tflite(source.model, source.model_name)
    else:
        model = load_model(source.model, source.model_name, source.model_folder)
    if not source.tensors:
        raise TidegaugeError(f"{source.subject.source} holds no traces", "capture again at debug_level 3")
    source.tensors = codes_of_floats(source.tensors)
    inputs = _bind_inputs(model, _with_given(model, source))
    if tflite:
        source.findings = [*source.findings, *check_tflite(source.model, source.model_name, model, inputs)]
    matched = _matches(model, inputs, source)
    matches = matched.found
    fold_batch_norms(model, [m.tensor for m in matches if m.tensor is not None])
    complete(model, inputs, source.tensors, matches)
    work = prepare(model, inputs, source.tensors, matches, group_bytes)
    work.given = source.reference
    if baseline is not None:
        for layer in work.layers:
            layer.limit = baseline.limit(layer.tensor.name)
            layer.codes_allowed = baseline.codes_allowed(layer.tensor.name)
            layer.ones_allowed = baseline.ones_allowed(layer.tensor.name)
    limit = naming.FAULTY if threshold is None else threshold
    for layer in work.layers:
        layer.limit = limit if layer.limit is None else layer.limit
    if not work.by_twin:
        first = next((layer for layer in work.layers), None)
        why = f"{first.tensor.name or first.tensor.file}: {first.reason}" if first else "there are none"
        cure = "give the model and the tempDir of this compile"
        if any(layer.status == "duplicate" for layer in work.layers):
            cure = "keep the traces of one run in the folder"
        strange = next((f.sentence for f in source.findings if f.kind == "unknown_subgraph"), None)
        if strange is not None and not any(layer.tensor.file for layer in work.layers):
            why, cure = strange.removesuffix("."), "give the tempDir of the compile that these traces are of"
        raise TidegaugeError(f"no traced tensor can be compared ({why})", cure)
    ordered = sorted(work.by_twin, key=lambda name: model.producer.get(name, -1))
    total = len(ordered)
    for done in evaluate(work, source.subgraphs):
        if progress is not None:
            progress(done, total, ordered[min(done, total) - 1])
    for (
        layer
    ) in work.layers:  # the other outputs of a layer with several are no hidden part of it where they are traced
        layer.hidden = tuple(name for name in layer.hidden if name not in work.by_twin)
    outputs = _device_outputs(work, source.outputs)
    tolerate(work, baseline)
    excess = naming.judge(work)
    wrong, harmless = naming.find(work, excess, outputs, source.step, _before(model, previous), past_input)
    stopped = any(suspect.stops for suspect in wrong)
    scales = list(input_scale(work))
    scaled = not any(finding.kind == INPUT_FACTOR for finding in scales)
    worth = study(work, wrong, harmless, outputs, source.subgraphs, None if stopped else target_db, scaled)
    return answer(source, work, excess, wrong, harmless, worth, outputs, min_coverage, began, matched, limit, scales)


def _before(model: Model, previous: Source | None) -> Before | None:
    if previous is None:
        return None
    tensors = {(t.subgraph, t.data_id): t for t in codes_of_floats(previous.tensors)}
    return Before(_bind_inputs(model, _with_given(model, previous)), tensors)


def _matches(model: Model, inputs: Mapping[str, Array], source: Source) -> Matches:
    """Matches; the float model is run for them only where nothing but values can tell."""

    def run(names: Sequence[str]) -> dict[str, Array]:
        sizes = {n: math.prod(model.shapes.get(n, (1 << 20,))) for n in names if n in model.producer}
        found = {name: value for name, value in inputs.items() if name in names}
        for values in Reference(model, inputs, {}, sizes).walk():
            found.update({name: value.reshape(-1) for name, value in values.items()})
        return found

    return match_tensors(model, source.tensors, source.subgraphs, Values(run))


def _with_given(model: Model, source: Source) -> dict[str, Array]:
    """The recorded inputs; where none was recorded, those that the reference's folder holds."""
    if source.reference is None:
        return source.inputs
    check_names(source.reference, model)
    if source.inputs:
        return source.inputs
    found = {name: source.reference.input(name) for name in model.inputs}
    return {name: value for name, value in found.items() if value is not None}


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
    if name in model.nhwc and value.size == math.prod(model.nhwc[name]):
        value = value.reshape(model.nhwc[name]).transpose(0, 3, 1, 2)
    fixed = [n for n in shape if n > 0]
    if len(fixed) == len(shape):
        if value.size != math.prod(shape):
            raise TidegaugeError(
                f"the input tensor {name} has shape {list(value.shape)}, the model wants {list(shape)}",
                "give the tensor that was fed to the device",
            )
        value = value.reshape(shape)
    if name in model.codes and value.dtype.kind in "iu":
        scale, zero = model.codes[name]
        value = (value.astype(np.float32) - zero) * np.float32(scale)
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
            value = recorded[name]
            found[name] = value.transpose(0, 3, 1, 2) if work.reference.model.nhwc and value.ndim == 4 else value
    return found
