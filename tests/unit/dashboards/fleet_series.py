"""Time series as Prometheus holds them: boards that are scraped, boards that only the collector hears, a collector.

A value is a function of the minute; None is a missing sample. A target that goes away leaves a staleness marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Value = Callable[[int], float | None]
Given = Value | float

CAUSES = ("accelerator", "reference", "data", "camera", "undecided")
REASONS = ("exited", "capture")
DROPS = ("evicted", "interrupted")
MODEL = 'model="enhancer"'


def always(_: int) -> bool:
    return True


def until(end: int) -> Callable[[int], bool]:
    return lambda t: t < end


def outside(start: int, end: int) -> Callable[[int], bool]:
    return lambda t: not start <= t < end


def from_minute(start: int, before: float = 0.0, after: float = 1.0) -> Value:
    return lambda t: after if t >= start else before


def between(start: int, end: int, inside: float = 1.0) -> Value:
    return lambda t: inside if start <= t < end else 0.0


def rising(per_minute: float, reset: int | None = None) -> Value:
    return lambda t: per_minute * (t if reset is None or t < reset else t - reset)


def alarm(cause: str) -> str:
    return f'tidegauge_drift_alarm{{{MODEL},cause="{cause}"}}'


def latched(detector: str, cause: str = "accelerator") -> str:
    return f'tidegauge_alarm_latched{{{MODEL},detector="{detector}",cause="{cause}"}}'


def restarts(reason: str) -> str:
    return f'tidegauge_accelerator_restarts_total{{{MODEL},reason="{reason}"}}'


def dropped(reason: str) -> str:
    return f'tidegauge_spool_dropped_total{{reason="{reason}"}}'


COMPARED = f'tidegauge_shadow_samples_total{{{MODEL},result="ok"}}'
RAN = f"tidegauge_inferences_total{{{MODEL}}}"
SATURATED = f'tidegauge_saturated_elements_ratio{{{MODEL},tensor="y",end="high"}}'
CAMERA = 'tidegauge_camera_problem{problem="no_frames"}'
CONNECTED = "tidegauge_mqtt_connected"
SPOOL = "tidegauge_spool_bytes"
REFUSED = 'tidegauge_mqtt_publishes_total{result="refused"}'
NOT_BELIEVED = "tidegauge_mqtt_answers_dropped_total"
TURNED_AWAY = "tidegauge_bundles_refused_total"
CERTIFICATE = 'tidegauge_certificate_expiry_timestamp_seconds{use="link"}'
UNWRITABLE = "tidegauge_state_unwritable"
CONFIGURED = "tidegauge_config_last_reload_successful"
REPLACED = "tidegauge_artifacts_refused"
STUCK = 'tidegauge_agent_state{state="stuck"}'

FAR = 1e9

_BOARD: dict[str, Given] = {
    **{alarm(cause): 0.0 for cause in CAUSES},
    **{restarts(reason): 0.0 for reason in REASONS},
    **{dropped(reason): 0.0 for reason in DROPS},
    COMPARED: rising(1),
    RAN: rising(600),
    SATURATED: 0.01,
    CAMERA: 0.0,
    CONNECTED: 1.0,
    SPOOL: 1e6,
    "tidegauge_spool_limit_bytes": 1e8,
    REFUSED: 0.0,
    TURNED_AWAY: 0.0,
    NOT_BELIEVED: 0.0,
    CERTIFICATE: FAR,
    STUCK: 0.0,
    UNWRITABLE: 0.0,
    CONFIGURED: 1.0,
    REPLACED: 0.0,
    'tidegauge_agent_state{state="running"}': 1.0,
}

COLLECTOR_CONNECTED = "tidegauge_collector_mqtt_connected"


def comparisons(result: str) -> str:
    return f'tidegauge_collector_comparisons_total{{result="{result}"}}'


def bundles(state: str) -> str:
    return f'tidegauge_collector_bundles{{state="{state}"}}'


def finding(layer: str, name: str = "0badc0de") -> str:
    labels = f'finding="{name}",{MODEL},sdk="11.1",layer="{layer}",cause="gain"'
    return f"tidegauge_collector_finding_boards{{{labels}}}"


def postponed(reason: str) -> str:
    return f'tidegauge_collector_postponed_total{{reason="{reason}"}}'


_COLLECTOR: dict[str, Given] = {
    'tidegauge_collector_build_info{version="0.1"}': 1.0,
    "tidegauge_collector_clock_seconds": lambda t: 60.0 * t,
    COLLECTOR_CONNECTED: 1.0,
    **{comparisons(result): 0.0 for result in ("fine", "culprit", "coverage", "failed")},
    **{bundles(state): 0.0 for state in ("complete", "comparing", "compared", "failed")},
    **{postponed(reason): 0.0 for reason in ("device_quota", "disk", "database")},
    CERTIFICATE: FAR,
}

_COPY: dict[str, Given] = {
    "tidegauge_collector_device_last_seen_timestamp_seconds": lambda t: 60.0 * t,
    "tidegauge_collector_device_online": 1.0,
    **{alarm(cause).replace("tidegauge_", "tidegauge_device_"): 0.0 for cause in CAUSES},
    f"tidegauge_device_saturated_elements_ratio{{{MODEL}}}": 0.01,
    "tidegauge_device_camera_problem": 0.0,
    "tidegauge_device_spool_used_ratio": 0.01,
    "tidegauge_device_certificate_expiry_timestamp_seconds": FAR,
}

SEEN = "tidegauge_collector_device_last_seen_timestamp_seconds"
ONLINE = "tidegauge_collector_device_online"


def copy_of(series: str) -> str:
    """The collector's name for what a board exports."""
    return series.replace("tidegauge_", "tidegauge_device_")


@dataclass(frozen=True)
class Target:
    """One target that Prometheus scrapes. `alive` by the minute; `series` with their values."""

    labels: str
    series: Mapping[str, Given]
    alive: Callable[[int], bool] = always

    def lines(self, minutes: int, step: int) -> list[dict[str, str]]:
        """In promtool's notation, a sample every `step` minutes."""
        return [
            {"series": _labelled(name, self.labels), "values": self._values(value, range(0, minutes + 1, step))}
            for name, value in self.series.items()
        ]

    def _values(self, value: Given, times: range) -> str:
        texts, present = [], False
        for t in times:
            found = (value(t) if callable(value) else value) if self.alive(t) else None
            texts.append(f"{found:g}" if found is not None else "stale" if present else "_")
            present = found is not None
        return " ".join(texts)


def _labelled(name: str, labels: str) -> str:
    return f"{name[:-1]},{labels}}}" if name.endswith("}") else f"{name}{{{labels}}}"


def board(
    changes: Mapping[str, Given] | None = None,
    device: str = "cam-1",
    alive: Callable[[int], bool] = always,
    address: str = "",
) -> Target:
    """A board that Prometheus scrapes; healthy but for `changes`."""
    labels = f'job="boards",instance="{address or device}:9464"'
    name: dict[str, Given] = {f'tidegauge_device_info{{device="{device}"}}': 1.0}
    return Target(labels, {**name, **_BOARD, **(changes or {})}, alive)


@dataclass(frozen=True)
class Heard:
    """A board as the collector knows it; healthy but for `changes`."""

    changes: Mapping[str, Given] = field(default_factory=dict)
    device: str = "cam-1"

    def series(self) -> dict[str, Given]:
        found = {**_COPY, **self.changes}
        return {_labelled(name, f'device="{self.device}"'): value for name, value in found.items()}


def gone(at: int) -> dict[str, Given]:
    """What the collector says of a board that left without a word."""
    return {SEEN: lambda t: 60.0 * min(t, at), ONLINE: from_minute(at + 2, 1.0, 0.0)}


def collector(
    *heard: Heard, changes: Mapping[str, Given] | None = None, alive: Callable[[int], bool] = always
) -> Target:
    """A collector and the boards that it hears."""
    copies = {name: value for each in heard for name, value in each.series().items()}
    return Target('job="collector",instance="collector:8420"', {**_COLLECTOR, **copies, **(changes or {})}, alive)
