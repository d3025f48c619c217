"""What a scrape sees: every known label from the start, a bounded number of series, no negative observation."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tidegauge import metrics as known
from tidegauge.agent import supervision
from tidegauge.agent.alarms import AlarmBook
from tidegauge.agent.bus import Bus
from tidegauge.agent.state import Latched, StateStore
from tidegauge.agent.verdicts import PAIRED
from tidegauge.attribution import TERMS, Fault
from tidegauge.detectors.camera import CONDITIONS
from tidegauge.metrics import AgentMetrics

#: Every detector that an alarm may name, and what its verdicts are.
DETECTORS = {
    **dict.fromkeys(PAIRED | {"invariant", "change"} | supervision.NAMES, "accelerator"),
    **{f"known_answer_{side}": "accelerator" for side in known.KNOWN_ANSWER_SIDES},
    "input_drift": "data",
}
CAMERA = tuple(f"camera_{name}" for name in CONDITIONS)
#: Longest label values that a configuration allows.
NAMES = st.from_regex(r"\A[A-Za-z0-9_.-]{1,64}\Z")
LIMIT = 300


def series(page: str) -> set[str]:
    return {line.rpartition(" ")[0] for line in page.splitlines() if line and not line.startswith("#")}


def exported(metrics: AgentMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"tidegauge_{name}", labels)


def test_zero_is_exported_for_every_known_label_at_start() -> None:
    metrics = AgentMetrics("m")
    expected = [
        *(("frames_dropped_total", {"reason": each}) for each in known.FRAME_DROPS),
        *(("camera_problem", {"problem": each}) for each in known.CAMERA_PROBLEMS),
        *(("shadow_samples_total", {"model": "m", "result": each}) for each in known.SAMPLE_RESULTS),
        *(("shadow_held_out_total", {"model": "m", "reason": each}) for each in known.HELD_OUT),
        *(("accelerator_restarts_total", {"model": "m", "reason": each}) for each in known.RESTART_REASONS),
        *(("drift_alarm", {"model": "m", "cause": each}) for each in known.CAUSES),
        *(("drift_alarms_total", {"model": "m", "cause": each}) for each in known.CAUSES),
        *(("drift_loss_change_ratio", {"model": "m", "term": each}) for each in TERMS[:3]),
        *(("drift_observation_samples", {"model": "m", "context": each}) for each in known.LIGHT_CONTEXTS),
        *(("light_context", {"context": each}) for each in known.LIGHT_CONTEXTS),
        *(("captures_total", {"result": each}) for each in known.CAPTURE_RESULTS),
        *(("captures_refused_total", {"reason": each}) for each in known.REFUSALS),
        *(("mqtt_publishes_total", {"result": each}) for each in known.PUBLISH_RESULTS),
        *(("agent_state", {"state": each}) for each in known.HEALTH_STATES),
        ("shadow_empty_total", {"model": "m"}),
        ("inferences_total", {"model": "m"}),
        ("inference_errors_total", {"model": "m"}),
        ("shadow_disagreement_ratio_count", {"model": "m"}),
        ("shadow_nmse_ratio_count", {"model": "m"}),
        ("event_loop_lag_seconds_count", {}),
    ]
    for name, labels in expected:
        assert exported(metrics, name, **labels) == 0, (name, labels)
    assert set(known.CAUSES) == set(get_args(Fault))
    for stream in known.STREAMS:  # no evidence is not evidence of nothing: it comes with a reference
        assert exported(metrics, "drift_log_evidence", model="m", detector=stream) is None


@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    model=NAMES,
    other=NAMES,
    outputs=st.lists(NAMES, max_size=12, unique=True),
    runtimes=st.tuples(NAMES, NAMES),
    device=NAMES,
)
def test_an_agent_with_two_models_exports_a_bounded_number_of_series(
    tmp_path_factory: pytest.TempPathFactory,
    model: str,
    other: str,
    outputs: list[str],
    runtimes: tuple[str, str],
    device: str,
) -> None:
    """Everything that a configuration can name is named, and every alarm has been raised once."""
    pages = [
        everything(tmp_path_factory.mktemp("one"), model, outputs, runtimes, device, camera=True),
        everything(tmp_path_factory.mktemp("two"), f"{other}.", outputs, runtimes, device, camera=False),
    ]
    assert len(set.union(*pages)) <= LIMIT
    assert len(pages[0]) > 150, "the count is of real pages"


def everything(
    folder: Path, model: str, outputs: list[str], runtimes: tuple[str, str], device: str, *, camera: bool
) -> set[str]:
    metrics = AgentMetrics(model)
    metrics.device.labels(device).set(1)
    metrics.build.labels("1.0", "no").set(1)
    metrics.artifact.labels(model, "0" * 12, *runtimes).set(1)
    for use in ("ca", "client"):
        metrics.certificate.labels(use).set(1)
    for name in known.STREAMS:
        metrics.evidence.labels(model, name).set(1)
        metrics.evidence_limit.labels(model, name).set(7)
    for bound in known.BOUNDS:
        metrics.distance.labels(model, bound).set(0)
    for name in outputs[: metrics.outputs_limit]:
        for end in ("low", "high"):
            metrics.saturated.labels(model, name, end).set(0)
    verdicts = DETECTORS | (dict.fromkeys(CAMERA, "camera") if camera else {})
    store = StateStore(folder)
    store.update(alarms=tuple(Latched("id", detector, verdict, "…", 0.0) for detector, verdict in verdicts.items()))
    AlarmBook(store, Bus(), metrics).show()
    return series(metrics.render().decode())


@pytest.mark.parametrize("name", ["inference_seconds", "shadow_seconds", "loss", "nmse", "loop_lag"])
@given(value=st.floats(max_value=0, exclude_max=True) | st.just(float("nan")))
@settings(max_examples=10, deadline=None)
def test_a_negative_observation_is_refused_and_never_reaches_a_histogram(name: str, value: float) -> None:
    metrics = AgentMetrics("m")
    histogram = getattr(metrics, name)
    child = histogram if name == "loop_lag" else histogram.labels("m")
    before = histogram.collect()
    child.observe(value)
    assert histogram.collect() == before
    assert exported(metrics, "observations_refused_total") == 1
    child.observe(0.5)
    assert histogram.collect() != before
