"""Every query of every dashboard, variable and document, asked of a real Prometheus of a real agent and collector.

Grafana itself is not run. What it would ask is asked here, with its variables filled in.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlparse

import pytest

from integration.monitoring_servers import DASHBOARDS, Prometheus, eventually, prometheus
from integration.test_agent import Board, metrics, wait_for
from integration.test_collector import Process, mosquitto, publish
from tidegauge.demo.settings import DEVICE
from tidegauge.link.wire import AlarmChange, Status, encode, topic
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.state import inject

sys.path.insert(0, str(DASHBOARDS))

from tidegauge_dashboards.files import boards  # its folder is put on the path above
from tidegauge_dashboards.panels import Query
from tidegauge_dashboards.recording import EVIDENCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LAYER = "/conv3/Relu_output_0"
DOCUMENTS = [DASHBOARDS.parent / "docs" / name for name in ("dashboards.md", "runbook.md")]


def filled(expr: str) -> str:
    """As Grafana sends it for all boards and a scrape a second."""
    return expr.replace("$__rate_interval", "1m").replace("$device", ".+")


@dataclass
class Live:
    board: Board
    url: str
    collector: Process
    broker: int
    prometheus: Prometheus

    def empty(self, expr: str) -> bool:
        """Whether a query returns nothing, or nothing but "not a number"."""
        return not [each for each in self.prometheus.query(expr) if each["value"][1] != "NaN"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    board = Board(folder / "board")
    with mosquitto(folder) as broker:
        collector = Process(folder, broker)
        known = f'compile_library = "{board.places.library}"\n'
        collector.config.write_text(known + collector.config.read_text())
        collector.start()
        config = board.configure(
            link={"host": "127.0.0.1", "port": broker, "backoff_most": 1.0, "status_interval": 2.0},
            # On a machine that does much else, what is slow is not hung.
            runtime={"start_timeout": 180.0, "run_timeout": 120.0},
            camera={"open_timeout": 60.0, "read_timeout": 60.0},
        )
        try:
            with (
                board.running("virtualboard", "remote-log", str(board.places.virtual), log="remote.log"),
                board.running("agent", "run", "--config", str(config), log="agent.log"),
            ):
                url = board.metrics_url()
                targets = {
                    "tidegauge-boards": urlparse(url).netloc,
                    "tidegauge-collector": urlparse(collector.url).netloc,
                }
                with prometheus(folder, targets) as server:
                    live = Live(board, url, collector, broker, server)
                    until_all_is_well(live)
                    yield live
        finally:
            collector.kill(signal.SIGTERM)


def panel_queries() -> list[tuple[str, Query]]:
    return [
        (f"{board.uid}: {panel.title}", query)
        for board in boards()
        for row in board.rows
        for panel in row.panels
        for query in panel.queries
    ]


def committed() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((DASHBOARDS / "grafana" / "dashboards").glob("*.json"))]


def documented() -> list[tuple[str, str]]:
    found = []
    for path in DOCUMENTS:
        for block in re.findall(r"^```promql\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
            found.append((path.name, block.strip()))
    assert len(found) >= 10, found
    return found


def wrong(live: Live, *, also_quiet: tuple[str, ...] = ()) -> dict[str, str]:
    """Queries that should return data and don't; an error is raised by the asking."""
    return {
        f"{where}: {query.expr}": query.quiet
        for where, query in panel_queries()
        if live.empty(filled(query.expr)) and (not query.quiet or query.quiet in also_quiet)
    }


def until_all_is_well(live: Live) -> None:
    accepted = 'tidegauge_acceptance_progress_ratio{model="enhancer"}'
    wait_for(lambda: metrics(live.url).get(accepted) == 1, 400, "acceptance")
    limit = "tidegauge_drift_log_evidence_limit{"
    wait_for(lambda: any(name.startswith(limit) for name in metrics(live.url)), 60, limit)
    eventually(lambda: live.prometheus.query(EVIDENCE), 30, lambda: metrics(live.url))
    eventually(lambda: not wrong(live), 60, lambda: wrong(live))


def test_every_panel_has_data_while_all_is_well(live: Live) -> None:
    assert wrong(live) == {}
    assert live.prometheus.rule_errors() == []
    assert [each["alertname"] for each in live.prometheus.alerts()] == []


def test_every_variable_has_values(live: Live) -> None:
    asked = 0
    for document in committed():
        for variable in document["templating"]["list"]:
            if variable["type"] != "query":
                continue
            match = re.fullmatch(r"label_values\((?P<series>.*), (?P<label>\w+)\)", variable["query"])
            assert match is not None, variable["query"]
            assert live.prometheus.label_values(match["label"], match["series"]) == [DEVICE]
            asked += 1
    assert asked >= 3


def test_what_is_committed_is_what_was_asked() -> None:
    shown = {
        target["expr"]
        for document in committed()
        for panel in document["panels"]
        for target in panel.get("targets", [])
    }
    assert shown == {query.expr for _, query in panel_queries()}


def test_every_documented_query_runs(live: Live) -> None:
    for where, expr in documented():
        found = live.prometheus.query(expr)
        assert found or "==" in expr or "offset" in expr or "certificate" in expr, f"{where}: {expr}"


def test_a_fault_shows_on_the_panels_and_is_one_alert_of_drift_and_one_of_its_finding(live: Live) -> None:
    inject(live.board.places.virtual, (Fault(LAYER, "gain"),), live.board.places.board / "artifacts")
    drift = 'device_model_cause:tidegauge_drift_alarm:latched{cause="accelerator"} == 1'
    (found,) = eventually(lambda: live.prometheus.query(drift), 300, lambda: live.board.log("agent.log")[-3000:])
    assert (found["metric"]["device"], found["metric"]["model"]) == (DEVICE, "enhancer")

    def firing(*, finding: bool) -> list[str]:
        """Sorted; the alert of a finding comes with the comparison, sooner or later than what else is waited for."""
        names = [each["alertname"] for each in live.prometheus.alerts()]
        return sorted(name for name in names if (name == "TidegaugeFinding") is finding)

    eventually(lambda: firing(finding=False), 30, live.prometheus.alerts)
    # The collector's copy says the same, under the same name, and makes no second alert of it.
    copy = f'tidegauge_device_drift_alarm{{device="{DEVICE}",cause="accelerator"}} == 1'
    eventually(lambda: live.prometheus.query(copy), 30, lambda: live.collector.get("metrics"))
    assert firing(finding=False) == ["TidegaugeAcceleratorDrift"]
    compared = 'sum(tidegauge_collector_bundles{state="compared"}) > 0'
    eventually(lambda: live.prometheus.query(compared), 200, lambda: live.collector.log()[-3000:])
    quiet = ("while nothing is latched", "while no alert fires", "until a comparison has ended")
    eventually(lambda: not wrong(live, also_quiet=quiet), 60, lambda: wrong(live, also_quiet=quiet))
    eventually(lambda: firing(finding=True), 60, live.prometheus.alerts)
    assert (firing(finding=False), firing(finding=True)) == (["TidegaugeAcceleratorDrift"], ["TidegaugeFinding"])
    assert live.prometheus.rule_errors() == []
    for document in committed():
        (expr,) = [each["expr"] for each in document["annotations"]["list"] if "expr" in each]
        assert live.prometheus.query(filled(expr)), f"annotation of {document['uid']}"


def test_a_hang_shows_among_the_latched(live: Live) -> None:
    """Said by another board, which nobody scrapes."""
    change = AlarmChange("hang", True, "accelerator_hung", "accelerator", ("hung",), "It hung.", 1.0, "boot", 2.0)
    messages = [(topic("nat-1", "alarm"), encode(change)), (topic("nat-1", "status"), encode(Status("online", 1)))]
    asyncio.run(publish(live.broker, *messages))
    quiet = ("while supervision has latched nothing",)
    eventually(lambda: not wrong(live, also_quiet=quiet), 30, lambda: wrong(live, also_quiet=quiet))


def test_links_lead_to_pages_that_are_there(live: Live) -> None:
    pages = set()
    for document in committed():
        for panel in document["panels"]:
            for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", []):
                if link["url"].startswith("${collector}/"):
                    pages.add(link["url"].removeprefix("${collector}/"))
    assert pages
    for page in pages:
        path, _, anchor = page.partition("#")
        text = live.collector.get(path)
        assert not anchor or f'id="{anchor}"' in text, page
