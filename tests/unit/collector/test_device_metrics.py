"""Metrics of boards that nobody can scrape, from what they have told: causes, bounds, and what is not known."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tidegauge.clocks import Wall
from tidegauge.collector import metrics
from tidegauge.collector.device_metrics import OUTDATED, SERIES, ActiveAlarm, families, text
from tidegauge.collector.metrics import CollectorMetrics
from tidegauge.collector.store import Store
from tidegauge.collector.tables import Device
from tidegauge.link import vitals
from tidegauge.link.wire import Status


def board(**changes: Any) -> Device:
    known = {
        "device": "cam-1",
        "session": 3,
        "state": "online",
        "version": "0.1",
        "virtual": False,
        "model": "enhancer",
        "phase": "watching",
        "progress": 1.0,
        "alarm": "",
        "detail": {},
        "last_seen": 1000.0,
    }
    return Device(**{**known, **changes})


def series(device: Device, *alarms: ActiveAlarm) -> dict[tuple[str, str], float]:
    """By metric and the value of its last label."""
    found = {}
    for family in families([device], alarms):
        for sample in family.samples:
            found[family.name.removeprefix("tidegauge_"), list(sample.labels.values())[-1]] = sample.value
    return found


def causes(device: Device, *alarms: ActiveAlarm) -> set[str]:
    return {last for (name, last), value in series(device, *alarms).items() if name == "device_drift_alarm" and value}


def test_an_alarm_counts_by_its_message_or_by_the_status() -> None:
    alarm = ActiveAlarm("cam-1", "loss", "accelerator", 999.0)
    assert causes(board()) == set()
    assert causes(board(), alarm) == {"accelerator"}
    assert causes(board(alarm="scene", detail={vitals.ALARM + "camera": 1.0})) == {"camera"}
    assert causes(board(alarm="black")) == {"undecided"}  # an alarm, and no word of its cause
    assert causes(board(), ActiveAlarm("cam-1", "x", "made up by the sender", 999.0)) == {"undecided"}
    assert causes(board(), ActiveAlarm("cam-2", "loss", "accelerator", 999.0)) == set()


def test_a_lost_clear_message_is_not_an_alarm_for_ever() -> None:
    alarm = ActiveAlarm("cam-1", "loss", "accelerator", 1000.0)
    assert causes(board(last_seen=1000.0 + OUTDATED + 1), alarm) == set()
    assert causes(board(last_seen=1000.0 + OUTDATED + 1, alarm="loss"), alarm) == {"accelerator"}
    assert causes(board(last_seen=1000.0 + OUTDATED + 1, state="lost"), alarm) == {"accelerator"}


def test_what_is_not_told_is_absent() -> None:
    found = series(board(detail={vitals.LOSS: float("inf")}))
    names = {name for name, _ in found}
    assert "device_shadow_last_disagreement_ratio" not in names and "device_camera_problem" not in names
    found = series(
        board(detail={vitals.CAMERA_PROBLEM: 0.0, vitals.EVIDENCE + "loss": 3.0, vitals.LIMIT + "loss": 9.0})
    )
    assert found["device_camera_problem", "cam-1"] == 0.0
    assert (found["device_drift_log_evidence", "loss"], found["device_drift_log_evidence_limit", "loss"]) == (3.0, 9.0)


KEYS = st.sampled_from(
    [vitals.LOSS, vitals.SATURATION, vitals.CAMERA_PROBLEM, vitals.SPOOL, vitals.CERTIFICATE, "else"]
) | st.builds(
    lambda head, tail: head + tail,
    st.sampled_from([vitals.ALARM, vitals.EVIDENCE, vitals.LIMIT]),
    st.text(max_size=8) | st.sampled_from(["loss", "nmse", "accelerator"]),
)


@settings(max_examples=100)
@given(
    detail=st.dictionaries(KEYS, st.floats(), max_size=40),
    alarms=st.lists(st.builds(ActiveAlarm, st.just("cam-1"), st.text(), st.text(), st.floats(0, 2000)), max_size=20),
)
def test_no_board_gets_more_than_its_series(detail: dict[str, float], alarms: list[ActiveAlarm]) -> None:
    found = [
        (family.name, tuple(sample.labels.items()))
        for family in families([board(alarm="x", detail=detail)], alarms)
        for sample in family.samples
    ]
    assert len(found) == len(set(found)) <= SERIES


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12) | st.sampled_from(
    ['a"b', "c\\n", "d\ne"]
)


@settings(max_examples=60)
@given(
    st.lists(
        st.builds(lambda model, detail: (model, detail), NAMES, st.dictionaries(KEYS, st.floats(), max_size=12)),
        max_size=4,
    ),
    st.lists(st.builds(ActiveAlarm, st.just("cam-1"), NAMES, st.text(), st.floats(0, 2000)), max_size=5),
)
def test_the_text_says_what_the_families_say(
    boards: list[tuple[str, dict[str, float]]], alarms: list[ActiveAlarm]
) -> None:
    devices = [board(device=f"cam-{n}", model=model, detail=detail) for n, (model, detail) in enumerate(boards)]

    def said(found: Iterable[Metric]) -> dict[str, tuple[str, str, list[tuple[dict[str, str], float]]]]:
        return {
            each.name: (each.type, each.documentation, [(sample.labels, sample.value) for sample in each.samples])
            for each in found
        }

    assert said(text_string_to_metric_families(text(devices, alarms).decode())) == said(families(devices, alarms))


def values(page: bytes) -> dict[str, float]:
    """Of the series without labels, or of one device."""
    found = [line.rsplit(" ", 1) for line in page.decode().splitlines() if not line.startswith("#")]
    return {name.partition("{")[0]: float(value) for name, value in found}


def test_what_took_long_to_make_is_kept_and_says_its_age(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, age = "tidegauge_device_shadow_last_disagreement_ratio", "tidegauge_collector_device_metrics_age_seconds"

    def told(value: float) -> None:
        store.set_status("cam-1", Status("online", 1, detail={vitals.LOSS: value}), Wall(1000.0))

    told(0.25)
    page = CollectorMetrics(store)
    assert values(page.render())[loss] == 0.25
    told(0.5)  # of a small fleet nothing is kept
    assert values(page.render())[loss] == values(gzip.decompress(page.render(packed=True)))[loss] == 0.5
    monkeypatch.setattr(metrics, "_LONG", 0.0)
    monkeypatch.setattr(metrics, "_SHARE", 1e9)
    page.render()
    told(0.75)
    for found in (values(page.render()), values(gzip.decompress(page.render(packed=True)))):
        assert found[loss] == 0.5 and found[age] > 0 and found["tidegauge_collector_devices"] == 1.0
    off = values(CollectorMetrics(store, by_device=False).render(packed=False))
    assert loss not in off and age not in off
