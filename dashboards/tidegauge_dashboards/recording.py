"""Recording rules: one word a board on each question, whoever heard it last.

A board is known by its own name, `device`, which it exports itself (`tidegauge_device_info`) and under which the
collector re-exports what the board has told over MQTT. So a rule on `device` works for boards that Prometheus scrapes,
for boards that only the collector hears, and for those that both do, and then fires once.
"""

from __future__ import annotations

from dataclasses import dataclass

#: How long the last word of a board that has gone is kept, where only Prometheus has heard it.
HOLD = "6h"

SEEN = "instance:tidegauge_device_info:seen_timestamp_seconds"
KNOWN = "instance:tidegauge_device_info:known"
ALARM = "device_model_cause:tidegauge_drift_alarm:latched"
DETECTOR = "device_model_detector_cause:tidegauge_alarm_latched:latched"
CAMERA = "device:tidegauge_camera_problem:state"
SPOOL = "device:tidegauge_spool_used:ratio"
SATURATION = "device_model:tidegauge_saturated_elements:max_ratio"
LOSS = "device_model:tidegauge_shadow_disagreement:last_ratio"
EVIDENCE = "device_model_detector:tidegauge_drift_evidence:share_of_limit"
CERTIFICATE = "device:tidegauge_certificate_expiry:timestamp_seconds"
HEARD = "device:tidegauge_collector_heard:age_seconds"
LINK = "device:tidegauge_mqtt_connected:state"

_ONLINE = "(tidegauge_collector_device_online == 1)"
_JOIN = f"* on (job, instance) group_left (device) {KNOWN}"


@dataclass(frozen=True)
class Recording:
    """`record` names the new series, `why` says what it is for."""

    record: str
    expr: str
    why: str


def of_board(expr: str) -> str:
    """A board's own series with its name as label `device`. Not for series without `job` and `instance`."""
    return f"({expr}) {_JOIN}"


def latest(labels: str, live: str, last: str, copy: str) -> str:
    """A board's own word while it is scraped, else the collector's copy while it is online, else the last of both.

    `last` is `live` over the time that a board may be gone; `copy` is the collector's metric.
    """
    return "\n".join(
        (
            f"max by ({labels}) ({of_board(live)})",
            f"or max by ({labels}) ({copy} and on (device) {_ONLINE})",
            f"or max by ({labels}) (",
            f"    {copy}",
            f"  or (last_over_time({copy}[{HOLD}]) unless on (device) tidegauge_collector_device_online)",
            f"  or {of_board(f'{last} unless on (job, instance) tidegauge_device_info')}",
            ")",
        )
    )


def _gauge(labels: str, metric: str, copy: str, window: str = "") -> str:
    live = f"max_over_time({metric}[{window}])" if window else metric
    return latest(labels, live, f"last_over_time({metric}[{HOLD}])", copy)


def _ratio(over: str, under: str, hold: str = "") -> str:
    if hold:
        return f"(last_over_time({over}[{hold}]) / (last_over_time({under}[{hold}]) > 0))"
    return f"({over} / ({under} > 0))"


def _drift() -> list[Recording]:
    evidence = ("tidegauge_drift_log_evidence", "tidegauge_drift_log_evidence_limit")
    copied = ("tidegauge_device_drift_log_evidence", "tidegauge_device_drift_log_evidence_limit")
    labels = "device, model, detector"
    shares = "\n".join(
        (
            f"max by ({labels}) ({of_board(_ratio(*evidence))})",
            f"or max by ({labels}) {_ratio(*copied)}",
            f"or max by ({labels}) ({of_board(_ratio(*evidence, hold=HOLD))})",
        )
    )
    return [
        Recording(
            ALARM,
            _gauge("device, model, cause", "tidegauge_drift_alarm", "tidegauge_device_drift_alarm"),
            "1 while an alarm of this cause is latched",
        ),
        Recording(
            DETECTOR,
            _gauge("device, model, detector, cause", "tidegauge_alarm_latched", "tidegauge_device_alarm_latched"),
            "1 while an alarm of this detector is latched",
        ),
        Recording(EVIDENCE, shares, "evidence as a share of the one that raises the alarm; 1 is the alarm"),
        Recording(
            LOSS,
            _gauge(
                "device, model",
                "tidegauge_shadow_last_disagreement_ratio",
                "tidegauge_device_shadow_last_disagreement_ratio",
            ),
            "loss of the newest shadow sample",
        ),
        Recording(
            SATURATION,
            _gauge("device, model", "tidegauge_saturated_elements_ratio", "tidegauge_device_saturated_elements_ratio"),
            "largest share of an output's elements that are at an end of the range",
        ),
    ]


def _board() -> list[Recording]:
    heard = "clamp_min(-(tidegauge_collector_device_last_seen_timestamp_seconds - on (job, instance) group_left ()"
    spool = ("tidegauge_spool_bytes", "tidegauge_spool_limit_bytes")
    link = f"last_over_time(tidegauge_mqtt_connected[{HOLD}])"
    return [
        Recording(
            CAMERA,
            _gauge("device", "tidegauge_camera_problem", "tidegauge_device_camera_problem", "5m"),
            "1 while the camera has a problem of any kind, with the last five minutes, so that flapping is one problem",
        ),
        Recording(
            SPOOL,
            latest("device", _ratio(*spool), _ratio(*spool, hold=HOLD), "tidegauge_device_spool_used_ratio"),
            "share of the spool that is taken",
        ),
        Recording(
            CERTIFICATE,
            _gauge(
                "device",
                "tidegauge_certificate_expiry_timestamp_seconds",
                "tidegauge_device_certificate_expiry_timestamp_seconds",
            ),
            "when the certificate of a board's link ends",
        ),
        Recording(
            HEARD,
            f"min by (device) ({heard} tidegauge_collector_clock_seconds), 0))",
            "seconds since the collector heard of a board, both by the collector's clock",
        ),
        Recording(
            LINK,
            f"max by (device) ({of_board('max_over_time(tidegauge_mqtt_connected[5m])')})\n"
            "or max by (device) (tidegauge_collector_device_online)\n"
            f"or max by (device) ({of_board(link)})",
            "1 while the board has its link",
        ),
    ]


def rules() -> list[Recording]:
    """In the order in which they must be evaluated."""
    known = "\n".join(
        (
            "max by (job, instance, device) (tidegauge_device_info)",
            "or on (job, instance)",
            f"0 * topk by (job, instance) (1, last_over_time({SEEN}[{HOLD}])) + 1",
        )
    )
    return [
        Recording(
            SEEN,
            "0 * max by (job, instance, device) (tidegauge_device_info) + time()",
            "when a scraped address was last seen to be this board",
        ),
        Recording(KNOWN, known, "which board a scraped address is, also while it is gone; one board an address"),
        *_drift(),
        *_board(),
    ]
