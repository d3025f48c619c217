"""The answer of a comparison, put together from what every step found."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegauge import __version__
from tidegauge.compare import culprits as naming
from tidegauge.compare.culprits import Suspect, Verdict
from tidegauge.compare.findings import find_findings
from tidegauge.compare.layers import Evaluation, Layer
from tidegauge.compare.load import Source
from tidegauge.compare.match import Matches
from tidegauge.compare.ranges import calibration
from tidegauge.compare.raw_types import LayerSums
from tidegauge.compare.statistics import Encoding, measure, metrics, noise_floor
from tidegauge.compare.stored import store
from tidegauge.compare.types import (
    INPUT_FACTOR,
    Comparison,
    Coverage,
    Culprit,
    Finding,
    LayerResult,
    OutputResult,
    Unmatched,
)
from tidegauge.compare.whatif import Study

Array = NDArray[Any]


def answer(
    source: Source,
    work: Evaluation,
    excess: Mapping[int, float | None],
    wrong: list[Suspect],
    harmless: list[Suspect],
    worth: Study,
    outputs: Mapping[str, Array],
    min_coverage: float,
    began: float,
    matched: Matches,
    threshold: float,
    inputs: Sequence[Finding],
) -> Comparison:
    """`began`: the monotonic clock when the comparison began; `threshold`: the excess above which a layer is wrong;
    `inputs`: what the scale of the inputs says."""
    verdicts = naming.verdicts(work, wrong, harmless, excess)
    stopped = any(suspect.stops for suspect in wrong)
    index = {id(layer): i for i, layer in enumerate(work.layers)}
    coverage = _coverage(work, min_coverage)
    named, recovered = (
        tuple(worth.complete(s, naming.describe(s, rank, index[id(s.layer)])) for rank, s in enumerate(found, 1))
        for found in (wrong, harmless)
    )
    named, recovered = (tuple(_estimated(work, culprit) for culprit in found) for found in (named, recovered))
    results = _output_results(work, outputs)
    notes = [Finding("names_renumbered", "warning", note) for note in matched.notes]
    findings = find_findings(source, work, named, results, inputs)
    fed = [finding.sentence for finding in inputs if finding.kind == INPUT_FACTOR]
    code: Literal[0, 1, 3] = 3 if coverage.share < min_coverage else (1 if named or fed else 0)
    return Comparison(
        tool=__version__,
        subject=source.subject,
        exit_code=code,
        sentence=" ".join(
            [
                *fed,
                _sentence(
                    coverage,
                    named,
                    recovered,
                    results,
                    _doubtful(work, verdicts, excess),
                    stopped,
                    _thin(work, coverage),
                ),
            ]
        ),
        coverage=coverage,
        layers=tuple(
            _layer(work, layer, i, verdicts[id(layer)], excess[id(layer)], threshold)
            for i, layer in enumerate(work.layers)
        ),
        culprits=named,
        recovered=recovered,
        outputs=results,
        unmatched=_unmatched(work),
        findings=(
            *source.findings,
            *notes,
            *findings,
            *(() if fed else calibration(work)),  # other frames would calibrate the mistake in
            *worth.findings,
        ),
        scale_sources=dict(Counter(layer.tensor.source for layer in work.layers if layer.tensor.read is not None)),
        tracing_changed_output=source.tracing_changed_output,
        seconds=round(time.monotonic() - began, 3),
        cure=worth.cure,
        threshold=threshold,
    )


def _estimated(work: Evaluation, culprit: Culprit) -> Culprit:
    """A scale that is an estimate is said wherever something was concluded from it."""
    layer = work.layers[culprit.index]
    names = [layer.tensor.name] if layer.tensor.source == "estimate" else []
    names += [work.by_twin[n].tensor.name for n in layer.reads if work.by_twin[n].tensor.source == "estimate"]
    if not names:
        return culprit
    text = f"{culprit.sentence} The scale of {', '.join(names[:2])} is an estimate from the float run."
    return msgspec.structs.replace(culprit, sentence=text)


def _coverage(work: Evaluation, minimum: float) -> Coverage:
    wanted = [layer for layer in work.layers if layer.tensor.kind != "TIDL_DataLayer"]
    compared = [layer for layer in wanted if layer.cumulative is not None or _known_broken(work, layer)]
    share = len(compared) / len(wanted) if wanted else 0.0
    return Coverage(len(wanted), len(compared), share, minimum)


def _known_broken(work: Evaluation, layer: Layer) -> bool:
    return layer.status == "non_finite" and layer.match.tensor in work.by_twin


def _layer(
    work: Evaluation,
    layer: Layer,
    index: int,
    verdict: tuple[Verdict, str],
    excess: float | None,
    threshold: float,
) -> LayerResult:
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
        codes_beyond=None if layer.oracle is None else layer.oracle.beyond,
        codes_unexplained=None if layer.oracle is None else layer.unexplained,
        profiles=layer.profiles,
        histogram=layer.histogram,
        limit=None if layer.limit == threshold else layer.limit,
        nodes=_nodes(work, layer),
        reads=layer.reads,
        sums=_sums(layer),
        range_use=layer.range_use,
        reference="given" if work.given is not None and layer.match.tensor in work.given.used else "computed",
    )


def _nodes(work: Evaluation, layer: Layer) -> tuple[str, ...]:
    """The ONNX nodes of the region, by name; by their output where they have none."""
    if layer.match.tensor is None or layer.match.tensor not in work.by_twin:
        return ()
    part = work.reference.region(layer.match.tensor)
    nodes = [work.reference.model.nodes[i] for i in part.nodes] if part is not None else []
    return tuple(node.name or node.output[0] for node in nodes)


def _sums(layer: Layer) -> LayerSums | None:
    if layer.cumulative_sums is None:
        return None
    return LayerSums(store(layer.cumulative_sums), store(layer.local_sums), layer.floor, layer.weight_noise)


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
    """Device layers without a float twin, and float tensors that no trace and no region holds, with the reason."""
    device = [
        Unmatched(layer.tensor.name or layer.tensor.file, "device", layer.tensor.data_id, layer.reason)
        for layer in work.layers
        if layer.match.tensor is None
    ]
    return (*device, *_untraced(work))


def _untraced(work: Evaluation) -> list[Unmatched]:
    """Tensors inside a region are compared with its last one; what is left was never on the device, or not traced."""
    model = work.reference.model
    by_tensor = {layer.match.tensor: layer for layer in work.layers if layer.match.tensor is not None}
    covered = set(by_tensor) | set(model.inputs)
    for name in work.by_twin:
        part = work.reference.region(name)
        covered.update(o for i in (part.nodes if part is not None else ()) for o in model.nodes[i].output)
    found = []
    for node in model.nodes:
        for name in node.output:
            if not name or (name in covered and name not in model.outputs):
                continue
            if name not in by_tensor:
                what = "this network output" if name in model.outputs else "it, and no compared layer follows it"
                reason = f"no device tensor is {what}"
            elif by_tensor[name].tensor.read is None and name in model.outputs:
                reason = f"its layer was not traced: {by_tensor[name].reason}"
            else:
                continue
            found.append(Unmatched(name, "reference", None, reason))
    return found


def _doubtful(
    work: Evaluation, verdicts: Mapping[int, tuple[Verdict, str]], excess: Mapping[int, float | None]
) -> list[str]:
    """Layers that are off and can't be judged: they must not pass for right ones."""
    return [
        layer.tensor.name
        for layer in work.layers
        if verdicts[id(layer)][0] == "undecided" and (excess[id(layer)] or 0.0) > naming.limit(layer)
    ]


def _thin(work: Evaluation, coverage: Coverage) -> str:
    """Why there is no verdict, where too little was compared; empty where enough was."""
    if coverage.share >= coverage.minimum:
        return ""
    why = Counter(
        _NOT_COMPARED[layer.status]
        for layer in work.layers
        if layer.status in _NOT_COMPARED and layer.tensor.kind != "TIDL_DataLayer"
    )
    told = ", ".join(f"{count} {words}" for words, count in why.most_common())
    twice = why[_NOT_COMPARED["duplicate"]]
    mixed = " More than one capture lies in the folder: keep the traces of one." if twice > 1 else ""
    text = f"Only {coverage.compared} of {coverage.traced} traced layers could be compared, too few for a verdict"
    return f"{text}{f' ({told})' if told else ''}.{mixed} "


_NOT_COMPARED = {
    "missing": "without a trace",
    "truncated": "truncated",
    "shape_mismatch": "of another shape",
    "non_finite": "not finite",
    "duplicate": "with more than one trace",
    "unmatched": "without a float twin or a scale",
}


def _sentence(
    coverage: Coverage,
    named: tuple[Culprit, ...],
    recovered: tuple[Culprit, ...],
    outputs: tuple[OutputResult, ...],
    doubtful: Sequence[str],
    stopped: bool,
    thin: str,
) -> str:
    if stopped:
        return thin + named[0].sentence + " No layer is judged: all have seen another picture than the float run."
    if named:
        others = len(named) - 1
        more = {0: "", 1: " One more layer is wrong by itself."}.get(
            others, f" {others} more layers are wrong by themselves."
        )
        return thin + named[0].sentence + more
    quality = [f"{o.name} {o.metrics.sqnr_db:.1f} dB" for o in outputs if o.metrics.sqnr_db is not None]
    told = f" (output SQNR: {', '.join(quality)})" if quality else ""
    ignored = f"; {len(recovered)} wrong by itself without effect on the output" if recovered else ""
    off = ", ".join(doubtful[:3]) + (", …" if len(doubtful) > 3 else "")
    off += f" differ{'s' * (len(doubtful) == 1)} and can't be judged"
    if len(doubtful) >= coverage.compared > 0:
        return f"{thin}No layer is known to be right: {off}{told}."
    healthy = (
        "No layer is known to be wrong by itself: the others of" if doubtful else "No layer is wrong by itself: all"
    )
    agree = f"{coverage.compared} compared layers agree with the float model to within their rounding"
    return f"{thin}{healthy} {agree}{f'; but {off}' if doubtful else ''}{ignored}{told}."
