"""What boards have told of themselves, as metrics by device: for boards that nobody can scrape. Pure.

At most `SERIES` a device, whatever it sends. A value that a board has not told is absent, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import Protocol

import msgspec
from prometheus_client.core import GaugeMetricFamily

from tidegauge.collector.tables import Device
from tidegauge.link import vitals

SERIES = 20
CAUSES = ("accelerator", "reference", "data", "camera", "undecided")
#: Detectors whose evidence is exported, in this order; then by name.
EVIDENCE_OF = ("loss", "nmse")
EVIDENCES = 2
LATCHED = 3
#: An alarm that the board's status does not name any more, this long after it came, was cleared: the message that said
#: so was lost. Seconds; the status follows an alarm at once, and is repeated.
OUTDATED = 300.0


class ActiveAlarm(msgspec.Struct, frozen=True):
    """An alarm that was raised and not cleared, by the messages that came. `received`: collector's Unix seconds."""

    device: str
    detector: str
    verdict: str
    received: float


class _Sink(Protocol):
    def add(self, name: str, text: str, labels: dict[str, str], value: float) -> None:
        """A series of the metric `tidegauge_<name>`; `labels` have the same names each time."""


class _Families:
    """The metric families, filled device by device."""

    def __init__(self) -> None:
        self.all: dict[str, GaugeMetricFamily] = {}

    def add(self, name: str, text: str, labels: dict[str, str], value: float) -> None:
        family = self.all.get(name)
        if family is None:
            family = self.all[name] = GaugeMetricFamily(f"tidegauge_{name}", text, labels=list(labels))
        family.add_metric(list(labels.values()), value)


class _Text:
    """The same as the text that Prometheus reads. The library takes seconds for the series of ten thousand boards."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}

    def add(self, name: str, text: str, labels: dict[str, str], value: float) -> None:
        lines = self.lines.get(name)
        if lines is None:
            lines = self.lines[name] = [f"# HELP tidegauge_{name} {text}", f"# TYPE tidegauge_{name} gauge"]
        pairs = ",".join([f'{label}="{escaped(said)}"' for label, said in sorted(labels.items())])
        lines.append(f"tidegauge_{name}{{{pairs}}} {float(value)!r}")


def text(devices: Iterable[Device], alarms: Iterable[ActiveAlarm]) -> bytes:
    """`families` in the text format (Prometheus, "Exposition formats")."""
    out = _Text()
    _all(out, devices, alarms)
    return "".join(f"{line}\n" for lines in out.lines.values() for line in lines).encode()


def escaped(said: str) -> str:
    """A label's value between its quotes."""
    if "\\" in said or '"' in said or "\n" in said:
        return said.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return said


def families(devices: Sequence[Device], alarms: Iterable[ActiveAlarm]) -> Iterator[GaugeMetricFamily]:
    """One family a metric, over all devices."""
    out = _Families()
    _all(out, devices, alarms)
    yield from out.all.values()


def _all(out: _Sink, devices: Iterable[Device], alarms: Iterable[ActiveAlarm]) -> None:
    by_device: dict[str, list[ActiveAlarm]] = {}
    for alarm in alarms:
        by_device.setdefault(alarm.device, []).append(alarm)
    for device in devices:
        _one(out, device, [each for each in by_device.get(device.device, []) if not _outdated(device, each)])


def _outdated(device: Device, alarm: ActiveAlarm) -> bool:
    return device.state == "online" and not device.alarm and device.last_seen - alarm.received > OUTDATED


def _one(out: _Sink, device: Device, alarms: list[ActiveAlarm]) -> None:
    name = {"device": device.device}
    out.add(
        "collector_device_last_seen_timestamp_seconds",
        "When a device last sent something, by the collector's clock.",
        name,
        device.last_seen,
    )
    out.add(
        "collector_device_online",
        "Whether a device is connected, by its own last status.",
        name,
        float(device.state == "online"),
    )
    identity = {**name, "model": device.model, "version": device.version, "virtual": "yes" if device.virtual else "no"}
    out.add("device_version_info", "What a device runs, by its own last status.", identity, 1.0)
    _alarms(out, device, alarms)
    _evidence(out, device)
    for key, metric, text in (
        (vitals.LOSS, "shadow_last_disagreement_ratio", "Loss of the newest shadow sample that a device has told."),
        (
            vitals.SATURATION,
            "saturated_elements_ratio",
            "Largest share of an output's elements at an end of its range.",
        ),
    ):
        if (value := _told(device, key)) is not None:
            out.add(f"device_{metric}", text, {**name, "model": device.model}, value)
    for key, metric, text in (
        (vitals.CAMERA_PROBLEM, "camera_problem", "1 while a device's camera has a problem."),
        (vitals.SPOOL, "spool_used_ratio", "Share of a device's spool that is taken."),
        (vitals.CERTIFICATE, "certificate_expiry_timestamp_seconds", "When the certificate of a device's link ends."),
    ):
        if (value := _told(device, key)) is not None:
            out.add(f"device_{metric}", text, name, value)


def _alarms(out: _Sink, device: Device, alarms: list[ActiveAlarm]) -> None:
    label = {"device": device.device, "model": device.model}
    causes = {_cause(each.verdict) for each in alarms}
    causes |= {cause for cause in CAUSES if _told(device, vitals.ALARM + cause)}
    if (device.alarm or alarms) and not causes and not _tells_causes(device):
        causes.add("undecided")  # it has an alarm, and has not said of what
    for cause in CAUSES:
        text = "1 while an alarm of this cause is latched, by what a device has told."
        out.add("device_drift_alarm", text, {**label, "cause": cause}, float(cause in causes))
    pairs = sorted(
        {(each.detector[:64], _cause(each.verdict)) for each in alarms}, key=lambda pair: (_supervised(pair[0]), pair)
    )
    for detector, verdict in pairs[:LATCHED]:
        text = "1 for a detector whose alarm is latched, by what a device has told."
        out.add("device_alarm_latched", text, {**label, "detector": detector, "cause": verdict}, 1.0)


def _cause(verdict: str) -> str:
    """A message may say anything; a label may not."""
    return verdict if verdict in CAUSES else "undecided"


def _tells_causes(device: Device) -> bool:
    return any(key.startswith(vitals.ALARM) for key in device.detail)


def _supervised(detector: str) -> bool:
    """What supervision found comes after what a detector of drift found."""
    return detector.startswith("accelerator_") or detector == "not_offloaded"


def _evidence(out: _Sink, device: Device) -> None:
    found = {key.removeprefix(vitals.EVIDENCE) for key in device.detail if key.startswith(vitals.EVIDENCE)}
    order = [name for name in EVIDENCE_OF if name in found] + sorted(found - set(EVIDENCE_OF))
    for detector in order[:EVIDENCES]:
        label = {"device": device.device, "model": device.model, "detector": detector}
        for prefix, metric, text in (
            (vitals.EVIDENCE, "evidence", "Logarithm of a detector's evidence, by what a device has told."),
            (vitals.LIMIT, "evidence_limit", "The evidence at which the detector raises its alarm."),
        ):
            if (value := _told(device, prefix + detector)) is not None:
                out.add(f"device_drift_log_{metric}", text, label, value)


def _told(device: Device, key: str) -> float | None:
    value = device.detail.get(key)
    return value if value is not None and isfinite(value) else None
