"""What is committed is what the generator makes, and what Grafana and Alertmanager ask of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import alerting, dashboard
from tidegauge_dashboards.alertmanager import INHIBITIONS, configuration
from tidegauge_dashboards.alerts import alerts
from tidegauge_dashboards.files import boards, files, with_table
from tidegauge_dashboards.recording import rules

from needs import program
from unit.dashboards.conftest import DASHBOARDS

GRAFANA = DASHBOARDS / "grafana"
JSON = sorted((GRAFANA / "dashboards").glob("*.json"))
ROOT = DASHBOARDS.parent


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def test_committed_files_are_current() -> None:
    made = files()
    written = {
        str(path.relative_to(DASHBOARDS))
        for folder in ("prometheus", "alertmanager", "grafana")
        for path in (DASHBOARDS / folder).rglob("*")
        if path.is_file()
    }
    assert written == made.keys(), "run `make dashboards`, and remove what it no longer makes"
    for name, content in made.items():
        assert (DASHBOARDS / name).read_text() == content, f"{name}: run `make dashboards`"


@pytest.mark.parametrize("path", JSON, ids=lambda path: path.stem)
def test_a_dashboard_is_what_the_models_hold(path: Path) -> None:
    document = json.loads(path.read_text())
    model = dashboard.Dashboard.from_json(document)
    assert json.loads(JSONEncoder(sort_keys=True).encode(model)) == document
    assert document["uid"] == path.stem and document["schemaVersion"] >= 41 and document["editable"] is False


@pytest.mark.parametrize("path", JSON, ids=lambda path: path.stem)
def test_a_dashboard_is_complete(path: Path) -> None:
    document = json.loads(path.read_text())
    names = [variable["name"] for variable in document["templating"]["list"]]
    assert names[0] == "datasource" and "collector" in names
    ids = Counter(panel["id"] for panel in document["panels"])
    assert set(ids.values()) == {1}
    for panel in panels(document):
        where = f"{path.stem}: {panel['title']}"
        assert panel["description"].endswith("."), where
        assert panel["fieldConfig"]["defaults"]["unit"], where
        assert panel["datasource"]["uid"] == "${datasource}", where
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) and all(refs), where
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}", where
            assert not re.search(r"(rate|increase)\([^()]*\[\d", target["expr"]), f"{where}: a fixed range"


@pytest.mark.parametrize("path", JSON, ids=lambda path: path.stem)
def test_panels_fill_the_grid_and_cover_no_other(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert taken == {(x, y) for x in range(24) for y in range(1 + max(y for _, y in taken))}, "a hole, or too wide"


def test_links_lead_to_dashboards_and_pages_that_are_there() -> None:
    uids = {board.uid for board in boards()}
    template = (ROOT / "daemon/tidegauge/collector/templates/fleet.html").read_text()
    found = 0
    for path in JSON:
        for panel in panels(json.loads(path.read_text())):
            for link in panel["fieldConfig"]["defaults"].get("links", []):
                url, found = link["url"], found + 1
                if url.startswith("/d/"):
                    assert url.split("/")[2].split("?")[0] in uids
                else:
                    page, _, anchor = url.partition("#")
                    assert page == "${collector}/" and (not anchor or f'id="{anchor}"' in template), url
    assert found > 20


def test_every_metric_asked_for_is_exported() -> None:
    """A misspelt name is a panel without data, or an alert that never fires."""
    sources = [*(ROOT / "daemon/tidegauge/collector").glob("*.py"), ROOT / "daemon/tidegauge/metrics.py"]
    text = "\n".join(path.read_text() for path in sources)
    recorded = {rule.record for rule in rules()}
    asked = "\n".join(content for name, content in files().items() if not name.endswith("prometheus.yml"))
    names = set(re.findall(r"\b(?:[a-z_]+:)?tidegauge_[a-z_]+(?::[a-z_]+)?\b", asked)) - {"tidegauge_dashboards"}
    assert len(names) > 60
    for name in names - recorded:
        stem = re.sub(r"_bucket$", "", name.removeprefix("tidegauge_"))
        for prefix in ("collector_", "device_"):
            candidates = {
                stem,
                stem.removesuffix("_total"),
                stem.removeprefix(prefix),
                stem.removeprefix(prefix).removesuffix("_total"),
            }
            if any(f'"{candidate}"' in text or f'{candidate}"' in text for candidate in candidates):
                break
        else:
            pytest.fail(f"nothing exports {name}")


def test_grafana_alerts_on_the_same_expressions() -> None:
    groups = yaml.safe_load((GRAFANA / "provisioning/alerting/rules.yml").read_text())["groups"]
    managed = {rule["title"]: rule for group in groups for rule in group["rules"]}
    document = yaml.safe_load((DASHBOARDS / "prometheus/alerts.yml").read_text())
    plain = {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}
    assert managed.keys() == plain.keys() == {alert.name for alert in alerts()}
    uids = [rule["uid"] for rule in managed.values()]
    assert len(set(uids)) == len(uids) and max(map(len, uids)) <= 40
    for name, rule in managed.items():
        query = next(query for query in rule["data"] if query["refId"] == "query")
        assert query["model"]["expr"] == plain[name]["expr"]
        assert (rule["noDataState"], rule["execErrState"]) == ("OK", "Error")
        assert rule["for"] == plain[name].get("for", "0s") and rule["labels"] == plain[name]["labels"]
        assert rule["annotations"] == plain[name]["annotations"]
        assert not any("${" in note for note in rule["annotations"].values())
        assert rule["condition"] in {query["refId"] for query in rule["data"]}
        for query in rule["data"]:
            assert alerting.Query.from_json(query).ref_id == query["refId"]


def test_grafana_notifies_whom_alertmanager_does() -> None:
    points = yaml.safe_load((GRAFANA / "provisioning/alerting/contact-points.yml").read_text())["contactPoints"]
    (policy,) = yaml.safe_load((GRAFANA / "provisioning/alerting/policies.yml").read_text())["policies"]
    named = {point["name"] for point in points}
    by_severity = {route["object_matchers"][0][2]: route["receiver"] for route in policy["routes"]}
    routes = {route["matchers"][0].split('"')[1]: route["receiver"] for route in configuration()["route"]["routes"]}
    assert by_severity == routes and set(by_severity.values()) | {policy["receiver"]} <= named


def test_every_alert_says_its_effect_and_has_its_section_in_the_runbook() -> None:
    headings = set(re.findall(r"^### (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE))
    assert headings == {alert.name for alert in alerts()}
    for alert in alerts():
        assert len(alert.description) > 80 and alert.description.endswith("."), alert.name
        assert "{{ $value" not in alert.summary + alert.description, alert.name


def test_the_runbook_lists_the_alerts_as_they_are() -> None:
    text = (ROOT / "docs/runbook.md").read_text()
    assert with_table(text) == text, "run `make dashboards`"


def test_inhibitions_name_alerts_that_exist() -> None:
    known = {alert.name.removeprefix("Tidegauge") for alert in alerts()}
    for each in INHIBITIONS:
        assert {each.source, *each.targets} <= known and each.source not in each.targets


def test_alertmanager_takes_its_configuration() -> None:
    path = DASHBOARDS / "alertmanager" / "alertmanager.yml"
    command = [program("amtool", "prometheus-alertmanager"), "check-config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    for severity, receiver in (("critical", "pager"), ("warning", "operators"), ("info", "quiet")):
        command = [command[0], "config", "routes", "test", f"--config.file={path}", f"severity={severity}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.stdout.strip() == f"tidegauge-{receiver}"


def documented() -> list[str]:
    texts = [(ROOT / "docs" / name).read_text() for name in ("dashboards.md", "runbook.md")]
    found = [block for text in texts for block in re.findall(r"^```promql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    assert len(found) >= 10
    return found


def test_every_query_is_valid(tmp_path: Path) -> None:
    """Of panels, annotations and the documentation, as rules that are only parsed; the slow tests run them."""
    shown = [json.loads(path.read_text()) for path in JSON]
    asked = [target["expr"] for document in shown for panel in panels(document) for target in panel["targets"]]
    asked += [each["expr"] for document in shown for each in document["annotations"]["list"] if "expr" in each]
    asked = [expr.replace("$__rate_interval", "1m").replace("$device", ".+") for expr in [*asked, *documented()]]
    assert len(asked) > 90 and not [expr for expr in asked if "$" in expr]
    named = [{"record": f"r{number}", "expr": expr} for number, expr in enumerate(asked)]
    (tmp_path / "queries.json").write_text(json.dumps({"groups": [{"name": "queries", "rules": named}]}))
    command = [program("promtool", "prometheus"), "check", "rules", str(tmp_path / "queries.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_its_configuration() -> None:
    path = DASHBOARDS / "prometheus" / "prometheus.yml"
    done = subprocess.run(
        [program("promtool", "prometheus"), "check", "config", str(path)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_shows_a_token_where_the_example_says_so(tmp_path: Path) -> None:
    """To the collector, and to nobody else: a board asks for none, and would see it."""
    secret = tmp_path / "tidegauge.token"
    secret.write_text("secret")
    example = (DASHBOARDS / "prometheus" / "prometheus.yml").read_text()
    lines = [re.sub(r"# ( *)(authorization:|credentials_file:)", r"\1\2", line) for line in example.splitlines()]
    path = tmp_path / "prometheus.yml"
    path.write_text("\n".join(lines).replace("/etc/prometheus/tidegauge.token", str(secret)))
    for name in ("recording.yml", "alerts.yml"):
        shutil.copy(DASHBOARDS / "prometheus" / name, tmp_path)
    command = [program("promtool", "prometheus"), "check", "config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    collector, boards = yaml.safe_load(path.read_text())["scrape_configs"]
    shown = {"credentials_file": str(secret)}
    assert collector["authorization"] == boards["http_sd_configs"][0]["authorization"] == shown
    assert "authorization" not in boards
