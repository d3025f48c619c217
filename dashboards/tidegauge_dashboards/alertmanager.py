"""Alertmanager: who is told, and which alert speaks for which others, so that one fault is one message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Consequences of a dead accelerator.
_ACCELERATOR = ("AcceleratorHung", "AcceleratorCrashed", "AcceleratorSlow", "AcceleratorRestarting", "AgentStuck")


@dataclass(frozen=True)
class Inhibition:
    """While `source` fires, `targets` with the same labels `equal` are not notified of. Names without their prefix."""

    source: str
    targets: tuple[str, ...]
    equal: tuple[str, ...] = ("device",)


INHIBITIONS = (
    # A bundle of one drift: the surer verdict speaks.
    Inhibition("AcceleratorDrift", ("UndecidedDrift", "TensorErrors", "Saturation"), ("device", "model")),
    Inhibition("UndecidedDrift", ("Saturation",), ("device", "model")),
    Inhibition("TensorErrors", ("Saturation",), ("device", "model")),
    Inhibition("CameraFault", ("DataDrift", "ShadowStalled", "Saturation")),
    # The cause speaks for its consequences.
    Inhibition("NotOffloaded", ("AcceleratorDown", "ShadowStalled", *_ACCELERATOR)),
    Inhibition("AcceleratorDown", ("ShadowStalled", *_ACCELERATOR)),
    Inhibition("AcceleratorHung", ("AcceleratorCrashed", "AcceleratorRestarting", "AcceleratorSlow", "AgentStuck")),
    Inhibition("AcceleratorCrashed", ("AcceleratorRestarting",)),
    Inhibition("LinkDown", ("SpoolFilling", "LinkRefused")),
    Inhibition("LinkRefused", ("SpoolFilling",)),
    Inhibition("EvidenceDropped", ("SpoolFilling",)),
    # What was last heard of a silent board is old; that its answers were wrong or missing still counts.
    Inhibition(
        "DeviceSilent",
        (
            "TensorErrors",
            "ReferenceFault",
            "DataDrift",
            "CameraFault",
            "Saturation",
            "ShadowStalled",
            "SpoolFilling",
            "EvidenceDropped",
            "LinkDown",
            "LinkRefused",
            "AnswersDropped",
            *_ACCELERATOR,
        ),
    ),
    # A collector that hears nobody says nothing about the boards.
    Inhibition("CollectorDown", ("DeviceSilent", "CollectorDisconnected"), ()),
    Inhibition("CollectorDisconnected", ("DeviceSilent",), ()),
    Inhibition("CollectorStorage", ("ComparisonsFailing", "ComparisonsStalled"), ("job",)),
    Inhibition("ComparisonsFailing", ("ComparisonsStalled",), ("job",)),
)

#: Receiver and the seconds of `repeat_interval` by severity.
RECEIVERS = {
    "critical": ("tidegauge-pager", "4h"),
    "warning": ("tidegauge-operators", "1d"),
    "info": ("tidegauge-quiet", "7d"),
}
#: One message for all boards that a fault of one model's artifacts or release has hit.
GROUP_BY = ["alertname", "model"]


def configuration() -> dict[str, Any]:
    """The whole file, as data."""
    return {
        "route": {
            "receiver": "tidegauge-operators",
            "group_by": GROUP_BY,
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "1d",
            "routes": [
                {"matchers": [f'severity="{severity}"'], "receiver": receiver, "repeat_interval": repeat}
                for severity, (receiver, repeat) in RECEIVERS.items()
            ],
        },
        "inhibit_rules": [
            {
                "source_matchers": [f'alertname="Tidegauge{each.source}"'],
                "target_matchers": [f'alertname=~"{"|".join(f"Tidegauge{name}" for name in each.targets)}"'],
                "equal": list(each.equal),
            }
            for each in INHIBITIONS
        ],
        "receivers": [
            {"name": "tidegauge-pager", "webhook_configs": [{"url": "http://127.0.0.1:9099/page"}]},
            {"name": "tidegauge-operators", "webhook_configs": [{"url": "http://127.0.0.1:9099/operators"}]},
            {"name": "tidegauge-quiet"},
        ],
    }
