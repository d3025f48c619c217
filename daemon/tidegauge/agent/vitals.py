"""The few figures that go with the status, read from the metrics, so that both say the same."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from tidegauge.link import vitals
from tidegauge.metrics import AgentMetrics

#: Metric → (prefix of the key, label whose value ends it).
_BY_LABEL = {
    "tidegauge_drift_alarm": (vitals.ALARM, "cause"),
    "tidegauge_drift_log_evidence": (vitals.EVIDENCE, "detector"),
    "tidegauge_drift_log_evidence_limit": (vitals.LIMIT, "detector"),
    "tidegauge_drift_evidence_observations": (vitals.OBSERVATIONS, "detector"),
}
#: Metric → key of the largest of its values.
_LARGEST = {
    "tidegauge_saturated_elements_ratio": vitals.SATURATION,
    "tidegauge_camera_problem": vitals.CAMERA_PROBLEM,
    "tidegauge_certificate_expiry_timestamp_seconds": vitals.CERTIFICATE,
    "tidegauge_spool_bytes": "spool_bytes",
    "tidegauge_spool_limit_bytes": "spool_limit",
}


def read(metrics: AgentMetrics) -> dict[str, float]:
    """By the keys of `link.vitals`, without the loss."""
    found: dict[str, float] = {}
    for key, value in _samples(metrics):
        found[key] = max(value, found.get(key, value))
    taken, limit = found.pop("spool_bytes", None), found.pop("spool_limit", None)
    if taken is not None and limit:
        found[vitals.SPOOL] = taken / limit
    return {key: round(value, 6) for key, value in found.items() if isfinite(value)}


def _samples(metrics: AgentMetrics) -> Iterator[tuple[str, float]]:
    for family in metrics.registry.restricted_registry([*_BY_LABEL, *_LARGEST]).collect():
        for sample in family.samples:
            if family.name in _LARGEST:
                yield _LARGEST[family.name], sample.value
            else:
                prefix, label = _BY_LABEL[family.name]
                yield prefix + sample.labels[label], sample.value
