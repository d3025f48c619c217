"""Which blobs of a bundle are asked for, by its manifest. Pure.

A rule says "all"; "manifest", none; or "suspicious": everything but the traces, and of these only the layers whose
fingerprint looks wrong by itself, with the ones before and after each, since a layer is judged on its own input.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from tidegauge.bundles.manifest import Fingerprint, Manifest, Trace, blobs_of
from tidegauge.collector.config import PullConfig, PullRule

#: A share of elements at either end of the code range from which on a layer is suspicious. ReLU puts many at the low
#: end of an unsigned layer, so that end alone tells nothing.
SATURATED = 0.02
#: Share of zeros from which on a layer is taken for dead.
DEAD = 0.999
_NEIGHBOURS = 1


def chosen(manifest: Manifest, config: PullConfig) -> frozenset[str] | None:
    """SHA-256 of the blobs asked for; None for all of them."""
    rule = next((each for each in config.rules if matches(each, manifest)), PullRule())
    if rule.blobs == "all":
        return None
    if rule.blobs == "manifest":
        return frozenset()
    wanted = suspicious(manifest.traces)
    if not wanted:
        return None  # the fingerprints tell nothing: all layers are as suspicious as any
    of_traces = {trace.blob.sha256 for trace in manifest.traces if trace.blob is not None}
    other = frozenset(blobs_of(manifest)) - of_traces
    return other | {trace.blob.sha256 for trace in wanted if trace.blob is not None}


def matches(rule: PullRule, manifest: Manifest) -> bool:
    """Whether a rule is for this bundle: by device, by detector and by verdict."""
    return (
        any(fnmatchcase(manifest.device, pattern) for pattern in rule.devices)
        and any(fnmatchcase(manifest.cause.detector, pattern) for pattern in rule.detectors)
        and any(fnmatchcase(manifest.cause.verdict, pattern) for pattern in rule.verdicts)
    )


def suspicious(traces: tuple[Trace, ...]) -> list[Trace]:
    """Traces whose fingerprint looks wrong, and their neighbours in the order of execution, which is that of data ids.

    One without a fingerprint is suspicious: nothing speaks for it.
    """
    ordered = sorted(traces, key=lambda trace: (trace.subgraph, trace.data_id))
    named = {
        near
        for place, trace in enumerate(ordered)
        if trace.fingerprint is None or looks_wrong(trace.fingerprint)
        for near in range(max(0, place - _NEIGHBOURS), min(len(ordered), place + _NEIGHBOURS + 1))
    }
    return [ordered[place] for place in sorted(named)]


def looks_wrong(told: Fingerprint) -> bool:
    """Not finite, constant, dead, or cut off at the high end of its range."""
    constant = told.count > 1 and told.minimum is not None and told.minimum == told.maximum
    return told.non_finite > 0 or constant or told.zero_share >= DEAD or told.high_share >= SATURATED
