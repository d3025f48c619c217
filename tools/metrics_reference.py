"""Prints docs/metrics.md from the registries of agent and collector. `make docs`; a test compares the two."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase

from tidegauge import __version__
from tidegauge.collector import device_metrics
from tidegauge.collector.device_metrics import ActiveAlarm
from tidegauge.collector.metrics import CollectorMetrics
from tidegauge.collector.store import Store
from tidegauge.collector.tables import Device
from tidegauge.link import vitals
from tidegauge.metrics import AgentMetrics

HEAD = """\
# Metrics

Generated from the registries by `tools/metrics_reference.py`. What they mean together is in [dashboards and
alerts](dashboards.md) and, alert by alert, in the [runbook](runbook.md). Fixed values of a label stand in brackets;
they are exported from the start. Times are seconds, sizes bytes, ratios 0…1; a `counter` starts at zero with its
process.
"""
AGENT = """\
## The agent

On the board's own page (`[metrics]` of agent.toml). The workers have no pages: what camera, pipeline and shadow worker
do is counted by the agent, which outlives them.
"""
COLLECTOR = """\
## The collector

At `/metrics` of the collector. Counters are of this process; the rest is what its data base says at the scrape.
"""
DEVICES = f"""\
## Boards, as the collector tells of them

For boards that nobody can scrape (`http.device_metrics` of collector.toml): what each has told last, at most
{device_metrics.SERIES} series a board. A value that a board has not told is absent.
"""
COLUMNS = ("| metric | type | labels | |", "|---|---|---|---|")
#: A board that has told everything, so that every family is there. Its own values are no fixed ones of a label.
TOLD = (vitals.LOSS, vitals.SATURATION, vitals.CAMERA_PROBLEM, vitals.SPOOL, vitals.CERTIFICATE)
DETECTOR = "loss"
BOARD = Device(
    *("board", 1, "online", "0", False, "model", "watching", 1.0, DETECTOR),
    detail={**dict.fromkeys(TOLD, 0.5), vitals.EVIDENCE + DETECTOR: 1.0, vitals.LIMIT + DETECTOR: 9.0},
    last_seen=0.0,
)
OF_THE_EXAMPLE = {BOARD.device, BOARD.model, BOARD.version, DETECTOR, "no", __version__, ""}


def reference() -> str:
    lines = [HEAD, AGENT, *COLUMNS, *_of_agent(AgentMetrics(BOARD.model))]
    with tempfile.TemporaryDirectory(prefix="tidegauge-reference-") as folder:
        lines += ["", COLLECTOR, *COLUMNS, *_of_collector(Path(folder))]
    alarm = ActiveAlarm(BOARD.device, DETECTOR, "accelerator", 0.0)
    lines += ["", DEVICES, *COLUMNS, *map(_row, device_metrics.families([BOARD], [alarm]))]
    return "\n".join(lines) + "\n"


def _of_agent(metrics: AgentMetrics) -> list[str]:
    # Where a metric has no sample yet, only the library's own object knows the names of its labels.
    each = [found for found in vars(metrics).values() if isinstance(found, MetricWrapperBase)]
    labels = {family.name: found._labelnames for found in each for family in found.describe()}
    return [_row(family, labels[family.name]) for family in metrics.registry.collect()]


def _of_collector(folder: Path) -> list[str]:
    store = Store(folder / "collector.sqlite")
    certificate = folder / "link.pem"
    certificate.write_bytes(_certificate())
    try:
        registry = CollectorMetrics(store, by_device=True, certificate=str(certificate))._registry
        return [_row(family) for family in registry.collect()]
    finally:
        store.close()


def _certificate() -> bytes:
    """Of nobody: the metric of a link's certificate is there while one can be read."""
    key, now, name = Ed25519PrivateKey.generate(), datetime.now(UTC), x509.Name([])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    signed = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1)).sign(key, None)
    return signed.public_bytes(Encoding.PEM)


def _row(family: Metric, labels: Iterable[str] = ()) -> str:
    """One family; `labels` are asked of it where they are not given."""
    values: dict[str, dict[str, None]] = {name: {} for name in labels or getattr(family, "_labelnames", ())}
    for sample in family.samples:
        for label, value in sample.labels.items():
            values.setdefault(label, {})[value] = None
    edges = [edge for edge in values.pop("le", {}) if edge != "+Inf"]
    said = ", ".join(f"`{label}`{_fixed(found)}" for label, found in values.items())
    name = f"{family.name}_total" if family.type == "counter" else family.name
    words = " ".join(family.documentation.split()).replace("|", "\\|")
    return f"| `{name}` | {family.type} | {said} | {words}{_buckets(edges)} |"


def _buckets(edges: list[str]) -> str:
    return f" Buckets: {', '.join(edges)}." if edges else ""


def _fixed(values: Iterable[str]) -> str:
    found = [value for value in values if value not in OF_THE_EXAMPLE]
    return f" ({', '.join(found)})" if found else ""


if __name__ == "__main__":
    print(reference(), end="")
