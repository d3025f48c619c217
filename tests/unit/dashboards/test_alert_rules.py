"""The shipped rules, by promtool: what fires, what does not, and what goes on firing."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tidegauge_dashboards.alerts import Alert, alerts
from tidegauge_dashboards.files import RUNBOOK, notes

from needs import program
from unit.dashboards.case import Case, Fires
from unit.dashboards.conftest import DASHBOARDS
from unit.dashboards.hazard_cases import CONDITIONS, ELSEWHERE, hazard_cases
from unit.dashboards.rule_cases import cases

RULES = [DASHBOARDS / "prometheus" / name for name in ("recording.yml", "alerts.yml")]


def rendered(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], text)


def expected(alert: Alert, labels: dict[str, str]) -> dict[str, Any]:
    annotations = {key: rendered(text, labels) for key, text in notes(alert, RUNBOOK).items()}
    return {"exp_labels": {**alert.labels, **labels}, "exp_annotations": annotations}


def whole(case: Case) -> dict[str, Any]:
    """One test of promtool's, which compares every alert with all its annotations."""
    return {
        "name": case.name,
        "interval": f"{case.step}m",
        "input_series": [line for target in case.targets for line in target.lines(case.minutes, case.step)],
        "alert_rule_test": [
            {
                "eval_time": f"{minute}m",
                "alertname": alert.name,
                "exp_alerts": [expected(alert, labels) for labels in fires.get(alert.name, [])],
            }
            for minute, fires in case.expected.items()
            for alert in alerts()
        ],
    }


def together(chosen: list[Case]) -> dict[str, Any]:
    """All of them in one test, each with boards and a collector of its own: it is many times faster."""
    series, asked = [], []
    for number, case in enumerate(chosen):
        for target in case.targets:
            series += [
                {**line, "series": own(line["series"], number)} for line in target.lines(case.minutes, case.step)
            ]
        boards, collector = f'device=~"{number}-.+"', f'job="{number}-collector"'
        firing = f'ALERTS{{alertstate="firing",{boards}}} or ALERTS{{alertstate="firing",{collector}}}'
        for minute, fires in case.expected.items():
            asked.append({"eval_time": f"{minute}m", "expr": firing, "exp_samples": samples(fires, number)})
    name = "; ".join(f"{number}: {case.name}" for number, case in enumerate(chosen))
    return {"name": name, "interval": f"{chosen[0].step}m", "input_series": series, "promql_expr_test": asked}


def own(text: str, number: int) -> str:
    """Names of boards, addresses and collectors with the number of their case."""
    text = text.replace('device="', f'device="{number}-').replace('instance="', f'instance="{number}-')
    return text.replace('job="collector"', f'job="{number}-collector"')


def samples(fires: Fires, number: int) -> list[dict[str, Any]]:
    known = {alert.name: alert for alert in alerts()}
    found = []
    for name, instances in fires.items():
        for labels in instances:
            expected(known[name], labels)  # its texts name no label that it has not
            pairs = {"alertname": name, "alertstate": "firing", **known[name].labels, **labels}
            text = ",".join(f'{key}="{value}"' for key, value in pairs.items())
            found.append({"labels": own(f"ALERTS{{{text}}}", number), "value": 1})
    return found


def run(folder: Path, chosen: list[Case]) -> subprocess.CompletedProcess[str]:
    paths = []
    order = ["tidegauge-recording", *dict.fromkeys(alert.group for alert in alerts())]
    for step in sorted({case.step for case in chosen}):
        of_step = [case for case in chosen if case.step == step]
        several = [case for case in of_step if not case.alone]
        document = {
            "rule_files": [str(path) for path in RULES],
            "evaluation_interval": f"{step}m",
            "group_eval_order": order,  # else at random, and a recorded value of the step before is stale
            "tests": [whole(case) for case in of_step if case.alone] + ([together(several)] if several else []),
        }
        paths.append(folder / f"every_{step}m.json")  # JSON is YAML
        paths[-1].write_text(json.dumps(document))
    command = [program("promtool", "prometheus"), "test", "rules", *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, timeout=350)


def test_rules_are_valid() -> None:
    command = [program("promtool", "prometheus"), "check", "rules", "--lint-fatal", *map(str, RULES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(400)
def test_every_alert_fires_and_is_silent_as_it_must(tmp_path: Path) -> None:
    done = run(tmp_path, cases())
    assert done.returncode == 0, (done.stdout + done.stderr)[:6000]


@pytest.mark.timeout(400)
def test_every_alert_holds_through_what_happens_to_boards_and_collectors(tmp_path: Path) -> None:
    done = run(tmp_path, hazard_cases())
    assert done.returncode == 0, (done.stdout + done.stderr)[:6000]
    assert {f"Tidegauge{name}" for name in {*CONDITIONS, *ELSEWHERE}} == {alert.name for alert in alerts()}


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    fired = {name for case in cases() for fires in case.expected.values() for name in fires}
    assert fired == {alert.name for alert in alerts()}


def test_a_wrong_expectation_is_noticed(tmp_path: Path) -> None:
    """Else a mistake in the notation of the series would pass as "nothing fires"."""
    healthy = next(case for case in cases() if case.name == "all is well")
    for alone in (True, False):
        silent: dict[int, Fires] = {10: {"TidegaugeDeviceSilent": [{"device": "cam-1"}]}}
        done = run(tmp_path, [Case("wrong", healthy.targets, silent, alone=alone)])
        assert done.returncode != 0 and "TidegaugeDeviceSilent" in done.stdout + done.stderr
