"""A stored answer judged again with other thresholds: from its sums and verdicts alone, no tensor is read."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np

from tidegauge.compare.culprits import STOPPED
from tidegauge.compare.raw_types import LayerSums, RawSums
from tidegauge.compare.statistics import Encoding, Sums, metrics, noise_floor
from tidegauge.compare.types import INPUT_FACTOR, Comparison, Coverage, Culprit, LayerResult, Metrics
from tidegauge.errors import TidegaugeError

#: What a stored answer can't tell of a layer that only the new threshold calls wrong.
_AGAIN = "judged from stored sums: for its cause and effect compare the traces again with this threshold"


def store(sums: Sums | None) -> RawSums | None:
    """The sums as they stand in the JSON."""
    if sums is None or not all(map(math.isfinite, (sums.d2, sums.g2, sums.dg))):
        return None
    arrays = {
        "channels": sums.channel_d2,
        "rows": sums.row_d2,
        "columns": sums.column_d2,
        "channels_f2": getattr(sums, "channel_f2", None),
        "rows_f2": getattr(sums, "row_f2", None),
    }
    return RawSums(
        count=sums.count,
        pivot=sums.pivot,
        d=sums.d,
        d2=sums.d2,
        abs_d=sums.abs_d,
        max_d=sums.max_d,
        g=sums.g,
        g2=sums.g2,
        dg=sums.dg,
        low=sums.low,
        high=sums.high,
        device_bad=sums.device_bad,
        reference_bad=sums.reference_bad,
        **{name: tuple(float(f"{v:.9g}") for v in array) for name, array in arrays.items() if array is not None},
    )


def restore(stored: RawSums) -> Sums:
    """The sums as the statistics use them."""
    sums = Sums(
        count=stored.count,
        pivot=stored.pivot,
        d=stored.d,
        d2=stored.d2,
        abs_d=stored.abs_d,
        max_d=stored.max_d,
        g=stored.g,
        g2=stored.g2,
        dg=stored.dg,
        low=stored.low,
        high=stored.high,
        device_bad=stored.device_bad,
        reference_bad=stored.reference_bad,
    )
    if stored.channels:
        sums.channel_d2, sums.row_d2, sums.column_d2 = (
            np.asarray(part, np.float64) for part in (stored.channels, stored.rows, stored.columns)
        )
    return sums


def merged(one: RawSums | None, other: RawSums | None) -> RawSums | None:
    """Sums over the elements of both, exactly: the second's are moved to the first's pivot."""
    if one is None or other is None:
        return one if other is None else other
    shift = other.pivot - one.pivot
    arrays = {
        name: tuple(a + b for a, b in zip(getattr(one, name), getattr(other, name), strict=True))
        if len(getattr(one, name)) == len(getattr(other, name))
        else ()
        for name in ("channels", "rows", "columns", "channels_f2", "rows_f2")
    }
    return RawSums(
        count=one.count + other.count,
        pivot=one.pivot,
        d=one.d + other.d,
        d2=one.d2 + other.d2,
        abs_d=one.abs_d + other.abs_d,
        max_d=max(one.max_d, other.max_d),
        g=one.g + other.g + shift * other.count,
        g2=one.g2 + other.g2 + 2 * shift * other.g + shift**2 * other.count,
        dg=one.dg + other.dg + shift * other.d,
        low=one.low + other.low,
        high=one.high + other.high,
        device_bad=one.device_bad + other.device_bad,
        reference_bad=one.reference_bad + other.reference_bad,
        **arrays,
    )


def encoding_of(layer: LayerResult) -> Encoding | None:
    """The encoding that a stored layer was compared with."""
    if layer.dtype is None or layer.scale is None or layer.zero_point is None:
        return None
    return Encoding(layer.dtype, layer.scale, layer.zero_point)


def numbers(layer: LayerResult, sums: LayerSums) -> tuple[Metrics | None, Metrics | None, float | None]:
    """Cumulative and local numbers, and the excess over the floor with weight noise, from sums."""
    encoding = encoding_of(layer)
    if encoding is None:
        return None, None, None
    cumulative, local, excess = None, None, None
    if sums.cumulative is not None and sums.cumulative.count:
        whole = restore(sums.cumulative)
        cumulative = metrics(whole, encoding, noise_floor(encoding, math.sqrt(whole.f2 / whole.count)))
    if sums.local is not None and sums.local.count:
        part = restore(sums.local)
        local = metrics(part, encoding, sums.floor)
        floor = sums.floor + sums.weight_noise
        excess = local.mse / floor if floor > 0 and local.mse is not None else (0.0 if local.mse == 0 else None)
    return cumulative, local, excess


def rejudge(answer: Comparison, *, threshold: float | None = None, min_coverage: float | None = None) -> Comparison:
    """The same answer with another threshold or another coverage. Raises `TidegaugeError` where it stores no sums.

    A layer that was wrong by its codes, or since a value is not finite, stays so: these are no matter of the threshold.
    """
    if threshold is not None and not any(layer.sums is not None for layer in answer.layers):
        raise TidegaugeError("the stored answer has no sums", "compare the traces again; this version stores them")
    coverage = answer.coverage
    if min_coverage is not None:
        coverage = Coverage(coverage.traced, coverage.compared, coverage.share, min_coverage)
    if threshold is None:
        code: Literal[0, 1, 3] = 3 if coverage.share < coverage.minimum else 1 if _wrong(answer) else 0
        return msgspec.structs.replace(answer, coverage=coverage, exit_code=code)
    wrong = {layer.index for layer in answer.layers if _over(layer, answer.threshold, threshold)}
    before = {culprit.index: culprit for culprit in (*answer.culprits, *answer.recovered)}
    kept = [before[i] for i in before if i in wrong]
    fresh = [_culprit(answer.layers[i]) for i in sorted(wrong - before.keys())]
    fresh.sort(key=lambda culprit: -(culprit.excess or 0.0))
    recovered = {culprit.index for culprit in answer.recovered}
    named = _ranked([c for c in kept if c.index not in recovered] + fresh)
    harmless = _ranked([c for c in kept if c.index in recovered])
    if not named and stopped(answer):
        raise TidegaugeError(
            "the stored answer ends at another input than the recorded one, so no layer behind it was judged",
            "compare the traces again with --past-input",
        )
    code = 3 if coverage.share < coverage.minimum else 1 if named or _elsewhere(answer) else 0
    return msgspec.structs.replace(
        answer,
        exit_code=code,
        coverage=coverage,
        threshold=threshold,
        culprits=named,
        recovered=harmless,
        layers=_relayer(answer, {c.index for c in named}, {c.index for c in harmless}),
        cure=answer.cure if {c.index for c in named} == {c.index for c in answer.culprits} else None,
        sentence=" ".join([*_fed(answer), _sentence(coverage, named, threshold)]),
    )


def _over(layer: LayerResult, before: float, now: float) -> bool:
    limit = layer.limit if layer.limit is not None else before
    wrong = layer.verdict in ("faulty", "recovers")
    if layer.excess is None:
        return wrong
    if wrong and layer.excess <= limit:
        return True  # by its codes, or by a range that is too narrow
    if layer.verdict == "undecided":
        return False
    return layer.excess > (layer.limit if layer.limit is not None else now)


def _wrong(answer: Comparison) -> bool:
    return bool(answer.culprits) or _elsewhere(answer)


def _elsewhere(answer: Comparison) -> bool:
    """Whether the input's range, another rung, or the comparison bit by bit says that something is wrong."""
    exact = answer.exact is not None and answer.exact.exit_code == 1
    return exact or bool(_fed(answer)) or (answer.rungs is not None and bool(answer.rungs.enters))


def stopped(answer: Comparison) -> bool:
    """Whether another input than the recorded one ended the analysis, so that no layer was judged."""
    return any(layer.reason == STOPPED for layer in answer.layers)


def _fed(answer: Comparison) -> list[str]:
    return [finding.sentence for finding in answer.findings if finding.kind == INPUT_FACTOR]


def _culprit(layer: LayerResult) -> Culprit:
    operators = " + ".join(layer.operators)
    text = f"Layer {layer.name} ({operators}) is wrong by itself: its local error is {layer.excess or 0:.3g} times its"
    return Culprit(
        layer=layer.name,
        index=layer.index,
        rank=0,
        cause="unknown",
        explained=None,
        detail=_AGAIN,
        excess=layer.excess,
        effect=None,
        sentence=f"{text} healthy noise ({_AGAIN}).",
        advice=(),
        pictures=(),
    )


def _ranked(culprits: list[Culprit]) -> tuple[Culprit, ...]:
    return tuple(msgspec.structs.replace(c, rank=rank) for rank, c in enumerate(culprits, 1))


def _relayer(answer: Comparison, wrong: set[int], harmless: set[int]) -> tuple[LayerResult, ...]:
    """Verdicts again, in the order in which layers read each other."""
    spoiled: dict[str, str] = {}
    found = []
    for layer in answer.layers:
        source = next((spoiled[name] for name in layer.reads if name in spoiled), None)
        verdict, reason = layer.verdict, layer.reason
        if layer.index in wrong:
            if verdict != "faulty":
                verdict, reason = (
                    "faulty",
                    f"wrong by itself: its local error is {layer.excess or 0:.3g} times its noise",
                )
            spoiled[layer.tensor or ""] = layer.name
        elif layer.index in harmless:
            verdict = "recovers"
        elif verdict in ("faulty", "recovers", "inherits", "healthy"):
            verdict = "inherits" if source is not None else "healthy"
            reason = f"right by itself; its error comes from {source}" if source is not None else "right by itself"
        if source is not None and layer.tensor is not None:
            spoiled.setdefault(layer.tensor, source)
        found.append(msgspec.structs.replace(layer, verdict=verdict, reason=reason))
    return tuple(found)


def _sentence(coverage: Coverage, named: tuple[Culprit, ...], threshold: float) -> str:
    thin = ""
    if coverage.share < coverage.minimum:
        thin = f"Only {coverage.compared} of {coverage.traced} traced layers could be compared, too few for a verdict. "
    if not named:
        return f"{thin}No layer is wrong by itself at {threshold:g} times the healthy noise."
    more = f" {len(named) - 1} more layers are wrong by themselves." if len(named) > 1 else ""
    return thin + named[0].sentence + more
