"""Every metric of the collector in one place.

Counts of what is in the database are read from it at each scrape; counters are of this process and start at zero.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from tidegauge import __version__
from tidegauge.clocks import Wall, wall
from tidegauge.collector import device_metrics
from tidegauge.collector.findings import Finding
from tidegauge.collector.fleet_drift import FALSE_SHARE, drifting
from tidegauge.collector.store import Store
from tidegauge.collector.tables import BUNDLE_STATES, TRANSFER_STATES, Device
from tidegauge.errors import TidegaugeError
from tidegauge.link.certificates import expiry

_log = logging.getLogger(__name__)

MESSAGES = ("status", "alarm", "file", "command", "command-answer")
REFUSALS = (
    "bad_topic",
    "bad_status",
    "bad_alarm",
    "bad_manifest",
    "bad_record",
    "bad_signature",
    "unsigned",
    "other_key",
    "bad_command",
)
POSTPONEMENTS = ("device_quota", "disk", "database", "budget", "elsewhere")
RESULTS = ("fine", "culprit", "coverage", "failed")
#: Days for which a finding is told after its last evidence, and how many are told, those on most boards first.
FINDING_DAYS, FINDINGS = 7.0, 50
#: Boards that stand out from the fleet, by name.
FLEET_BOARDS = 50
#: Longest label that a comparison's answer may make.
_LABEL = 200
SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


class CollectorMetrics:
    """The collector's registry. All methods may be called from any thread.

    `by_device`: also what boards have told of themselves. `certificate`: of the link to the broker, a PEM file.
    """

    def __init__(self, store: Store, by_device: bool = True, certificate: str = "") -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped in the library
        self._registry = CollectorRegistry()
        self._registry.register(_FromStore(store, by_device))
        if certificate:
            self._registry.register(_OfCertificate(Path(certificate)))
        self._connected = self._gauge("mqtt_connected", "Whether the broker is connected.")
        self._messages = self._counter("messages_total", "Messages of devices.", "kind")
        self._refused = self._counter("refused_total", "Messages and manifests that were not taken.", "reason")
        self._postponed = self._counter("postponed_total", "Transfers told to come back later.", "reason")
        self._received = self._counter("received_bytes_total", "Bytes of files received and written.")
        self._comparisons = self._counter("comparisons_total", "Comparisons that ended.", "result")
        self._seconds = Histogram(
            "tidegauge_collector_comparison_duration_seconds",
            "Time that a comparison took.",
            registry=self._registry,
            buckets=SECONDS,
        )
        self._gauge("build_info", "Version of the collector.", "version").labels(__version__).set(1)
        for counter, values in (
            (self._messages, MESSAGES),
            (self._refused, REFUSALS),
            (self._postponed, POSTPONEMENTS),
            (self._comparisons, RESULTS),
        ):
            for value in values:
                counter.labels(value)

    def connected(self, connected: bool) -> None:
        self._connected.set(connected)

    def message(self, kind: str) -> None:
        self._messages.labels(kind).inc()

    def refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def postponed(self, reason: str) -> None:
        self._postponed.labels(reason).inc()

    def received(self, size: int) -> None:
        self._received.inc(size)

    def compared(self, result: str, seconds: float) -> None:
        """`result`: one of RESULTS; a failure has no meaningful duration."""
        self._comparisons.labels(result).inc()
        if result != "failed":
            self._seconds.observe(seconds)

    def render(self) -> bytes:
        """The text format; reads the database, so call it in a thread."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"tidegauge_collector_{name}", text, labels, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tidegauge_collector_{name}", text, labels, registry=self._registry)


class _FromStore(Collector):
    """Gauges that are what the database says at the moment of the scrape; also what boards behind NAT last told."""

    def __init__(self, store: Store, by_device: bool) -> None:
        self._store, self._by_device = store, by_device

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())  # else the registry would read the database when this is registered

    def collect(self) -> Iterator[GaugeMetricFamily]:
        totals, devices = self._store.totals(), self._store.devices()
        yield GaugeMetricFamily("tidegauge_collector_devices", "Devices known.", value=len(devices))
        yield GaugeMetricFamily(
            "tidegauge_collector_clock_seconds",
            "The collector's own Unix time, to compare with its other times.",
            value=wall(),
        )
        yield _by_state("bundles", "Bundles by state.", BUNDLE_STATES, totals.bundles)
        yield _by_state("transfers", "Files of devices by state of their transfer.", TRANSFER_STATES, totals.transfers)
        yield GaugeMetricFamily("tidegauge_collector_blobs", "Blobs held.", value=totals.blobs)
        yield GaugeMetricFamily("tidegauge_collector_blobs_bytes", "Size of all blobs held.", value=totals.blob_bytes)
        yield from _fleet(devices)
        yield _findings(self._store.findings(Wall(wall() - FINDING_DAYS * 86400.0), FINDINGS))
        if self._by_device:
            yield from device_metrics.families(devices, self._store.active_alarms())


def _fleet(devices: Sequence[Device]) -> Iterator[GaugeMetricFamily]:
    """Boards that stand out when all are judged together; the first of them by name."""
    found = drifting(devices)
    yield GaugeMetricFamily(
        "tidegauge_collector_fleet_drift_boards",
        f"Boards whose evidence stands out from the whole fleet: at most {FALSE_SHARE:.0%} of them by chance.",
        value=len(found),
    )
    family = GaugeMetricFamily(
        "tidegauge_collector_fleet_drift_log_e",
        f"Logarithm of the e-value of a board that stands out from the fleet; the first {FLEET_BOARDS}.",
        labels=["device", "model"],
    )
    for each in found[:FLEET_BOARDS]:
        family.add_metric([each.device, each.model], each.log_e)
    yield family


def _findings(found: Sequence[Finding]) -> GaugeMetricFamily:
    """A series a fault, however many boards have it."""
    family = GaugeMetricFamily(
        "tidegauge_collector_finding_boards",
        f"Boards with the same fault (model, artifacts, SDK, layer, cause), told for {FINDING_DAYS:g} days after the "
        "last evidence of it.",
        labels=["finding", "model", "sdk", "layer", "cause"],
    )
    for each in found:
        labels = (each.id, each.model, each.sdk, each.layer, each.cause)
        family.add_metric([text[:_LABEL] for text in labels], each.devices)
    return family


class _OfCertificate(Collector):
    """Read at each scrape: it may be renewed. While it can't be read the metric is absent, and the log says why."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "tidegauge_certificate_expiry_timestamp_seconds", "When a certificate of the link ends.", labels=["use"]
        )
        try:
            family.add_metric(["link"], expiry(self._path))
        except TidegaugeError as error:
            _log.error("%s", error)
        yield family


def _by_state(name: str, text: str, states: tuple[str, ...], counts: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"tidegauge_collector_{name}", text, labels=["state"])
    for state in states:
        family.add_metric([state], counts.get(state, 0))
    return family
