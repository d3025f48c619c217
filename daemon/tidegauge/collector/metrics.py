"""Every metric of the collector in one place.

Counts of what is in the database are read from it at each scrape; counters are of this process and start at zero.
"""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from tidegauge import __version__, log_output
from tidegauge.clocks import Monotonic, Wall, monotonic, wall
from tidegauge.collector import device_metrics
from tidegauge.collector.findings import Finding
from tidegauge.collector.fleet_drift import FALSE_SHARE, Drifting
from tidegauge.collector.store import Store
from tidegauge.collector.tables import BUNDLE_STATES, TRANSFER_STATES
from tidegauge.errors import TidegaugeError
from tidegauge.link.certificates import expiry
from tidegauge.log_kinds import CERTIFICATE_REFUSED

_log = logging.getLogger(__name__)

MESSAGES = ("status", "alarm", "file", "command", "command-answer")
REFUSALS = (
    "bad_topic",
    "reserved_name",
    "bad_status",
    "bad_alarm",
    "bad_manifest",
    "bad_record",
    "bad_signature",
    "unsigned",
    "other_key",
    "bad_command",
)
POSTPONEMENTS = ("device_quota", "disk", "database", "budget", "elsewhere", "verifying")
RESULTS = ("fine", "culprit", "coverage", "failed")
#: Days for which a finding is told after its last evidence, and how many are told, those on most boards first.
FINDING_DAYS, FINDINGS = 7.0, 50
#: Boards that stand out from the fleet, by name.
FLEET_BOARDS = 50
#: Longest label that a comparison's answer may make.
_LABEL = 200
#: Seconds, and a number: see `_Boards`.
_LONG, _SHARE = 0.25, 10.0
#: Of gzip: the text of boards is much alike, and the quickest level makes a twentieth of it.
_LEVEL = 1
_AGE = "How old what is told of each board is in this answer, which is made anew at intervals where boards are many."
SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


class CollectorMetrics:
    """The collector's registry. All methods may be called from any thread.

    `by_device`: also what boards have told of themselves. `certificate`: of the link to the broker, a PEM file.
    """

    def __init__(self, store: Store, by_device: bool = True, certificate: str = "") -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped in the library
        self._registry = CollectorRegistry()
        self._registry.register(_FromStore(store))
        self._registry.register(_OfLog())
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
        self._boards = _Boards(store) if by_device else None
        if by_device:
            self._age = self._gauge("device_metrics_age_seconds", _AGE)
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

    def render(self, packed: bool = False) -> bytes:
        """The text format, `packed` by gzip; reads the database, so call it in a thread."""
        boards = b""
        if self._boards is not None:
            boards, age = self._boards.text()
            self._age.set(age)
        text = generate_latest(self._registry) + boards
        return gzip.compress(text, _LEVEL) if packed else text

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"tidegauge_collector_{name}", text, labels, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tidegauge_collector_{name}", text, labels, registry=self._registry)


class _Boards:
    """What boards behind NAT have last told, as text. Of a large fleet it is some ten megabytes: what took longer than
    `_LONG` to make is made anew only after `_SHARE` times as long, however many ask.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._made, self._due = Monotonic(0.0), Monotonic(0.0)
        self._text = b""

    def text(self) -> tuple[bytes, float]:
        """The text, and its age in seconds. Two who ask at once share the making of it."""
        with self._lock:
            began = monotonic()
            if began >= self._due:
                self._text = device_metrics.text(self._store.devices(), self._store.active_alarms())
                took = monotonic() - began
                self._made, self._due = began, Monotonic(began + (1 + _SHARE) * took if took > _LONG else began)
            return self._text, monotonic() - self._made


class _FromStore(Collector):
    """Gauges that are what the database says at the moment of the scrape."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())  # else the registry would read the database when this is registered

    def collect(self) -> Iterator[GaugeMetricFamily]:
        totals = self._store.totals()
        yield GaugeMetricFamily("tidegauge_collector_devices", "Devices known.", value=self._store.device_count())
        yield GaugeMetricFamily(
            "tidegauge_collector_clock_seconds",
            "The collector's own Unix time, to compare with its other times.",
            value=wall(),
        )
        yield _by_state("bundles", "Bundles by state.", BUNDLE_STATES, totals.bundles)
        yield _by_state("transfers", "Files of devices by state of their transfer.", TRANSFER_STATES, totals.transfers)
        yield GaugeMetricFamily("tidegauge_collector_blobs", "Blobs held.", value=totals.blobs)
        yield GaugeMetricFamily("tidegauge_collector_blobs_bytes", "Size of all blobs held.", value=totals.blob_bytes)
        yield from _fleet(self._store.standing_out())
        yield _findings(self._store.findings(Wall(wall() - FINDING_DAYS * 86400.0), FINDINGS))


def _fleet(found: Sequence[Drifting]) -> Iterator[GaugeMetricFamily]:
    """Boards that stand out when all are judged together; the first of them by name."""
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


class _OfLog(Collector):
    """What the log's own output counts."""

    def describe(self) -> Iterator[CounterMetricFamily]:
        return self.collect()

    def collect(self) -> Iterator[CounterMetricFamily]:
        output = log_output.installed()
        yield CounterMetricFamily(
            "tidegauge_collector_log_lines_lost",
            "Lines of the log that the journal did not take.",
            value=0 if output is None else output.lost,
        )


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
            _log.error("%s", error, extra=CERTIFICATE_REFUSED.of())
        yield family


def _by_state(name: str, text: str, states: tuple[str, ...], counts: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"tidegauge_collector_{name}", text, labels=["state"])
    for state in states:
        family.add_metric([state], counts.get(state, 0))
    return family
