"""What goes with the status is what the metrics say; what they don't say is absent."""

from __future__ import annotations

from tidegauge.agent.vitals import read
from tidegauge.link import vitals
from tidegauge.metrics import CAUSES, AgentMetrics


def test_nothing_is_made_up_at_the_start() -> None:
    found = read(AgentMetrics("enhancer"))
    assert {key: found[key] for key in found if key.startswith(vitals.ALARM)} == {
        vitals.ALARM + cause: 0.0 for cause in CAUSES
    }
    assert vitals.SATURATION not in found and vitals.SPOOL not in found and vitals.CERTIFICATE not in found
    assert not [key for key in found if key.startswith((vitals.EVIDENCE, vitals.LIMIT))]


def test_the_worst_of_several_is_told() -> None:
    metrics = AgentMetrics("enhancer")
    metrics.alarm.labels("enhancer", "accelerator").set(1)
    metrics.evidence.labels("enhancer", "loss").set(3.5)
    metrics.evidence_limit.labels("enhancer", "loss").set(9.0)
    metrics.evidence_observations.labels("enhancer", "loss").set(140)
    metrics.saturated.labels("enhancer", "enhanced", "low").set(0.1)
    metrics.saturated.labels("enhancer", "enhanced", "high").set(0.4)
    metrics.camera_problem.labels("no_frames").set(1)
    metrics.spool_bytes.set(25)
    metrics.spool_limit.set(100)
    metrics.last_loss.labels("enhancer").set(float("nan"))
    found = read(metrics)
    assert found[vitals.ALARM + "accelerator"] == 1.0 and found[vitals.ALARM + "data"] == 0.0
    assert (found[vitals.EVIDENCE + "loss"], found[vitals.LIMIT + "loss"]) == (3.5, 9.0)
    assert found[vitals.OBSERVATIONS + "loss"] == 140.0
    assert (found[vitals.SATURATION], found[vitals.CAMERA_PROBLEM], found[vitals.SPOOL]) == (0.4, 1.0, 0.25)
