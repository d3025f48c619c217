"""From a board that nobody can scrape to one message: MQTT, collector, Prometheus, Alertmanager, all of them real."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from integration.monitoring_servers import (
    DASHBOARDS,
    Notified,
    Prometheus,
    alertmanager,
    ask,
    eventually,
    prometheus,
    webhook,
)
from integration.test_collector import Process, mosquitto, publish
from tidegauge.link.wire import AlarmChange, Status, encode, topic

sys.path.insert(0, str(DASHBOARDS))

from tidegauge_dashboards.alertmanager import INHIBITIONS  # its folder is put on the path above


@dataclass
class Stack:
    broker: int
    collector: Process
    prometheus: Prometheus
    alertmanager: str
    notified: Notified


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("monitoring")
    with mosquitto(folder) as broker, webhook() as (notify, notified), alertmanager(folder, notify) as alerts:
        collector = Process(folder, broker)
        reach = '[scrape]\naddress = "{device}.invalid:9464"\ndevices = ["nat-1"]\n'
        collector.config.write_text(collector.config.read_text() + reach)
        collector.start()
        try:
            collector.until("api/v1/health", lambda health: health["broker_connected"])
            targets, discovery = {"collector": urlparse(collector.url).netloc}, f"{collector.url}api/v1/sd"
            with prometheus(folder, targets, alerts, discovery) as server:
                yield Stack(broker, collector, server, alerts, notified)
        finally:
            collector.kill(signal.SIGTERM)


def alarm(device: str, detector: str, active: bool = True) -> tuple[str, bytes]:
    change = AlarmChange(f"{device}-{detector}", active, detector, "accelerator", (), "Wrong.", 1.0, "boot", 2.0)
    return topic(device, "alarm"), encode(change)


def status(device: str, alarms: str = "") -> tuple[str, bytes]:
    return topic(device, "status"), encode(Status("online", 1, model="enhancer", phase="watching", alarm=alarms))


def firing(stack: Stack, device: str) -> set[str]:
    return {each["alertname"] for each in stack.prometheus.alerts() if each.get("device") == device}


def test_a_board_without_a_scrape_path_pages_once(stack: Stack) -> None:
    asyncio.run(publish(stack.broker, status("nat-1"), alarm("nat-1", "loss"), status("nat-1", "loss")))
    eventually(lambda: stack.notified.alerts("/page"), 40, lambda: (stack.prometheus.alerts(), stack.notified.messages))
    (message,) = stack.notified.alerts("/page")
    assert message["labels"]["alertname"] == "TidegaugeAcceleratorDrift" and message["labels"]["device"] == "nat-1"
    assert message["annotations"]["runbook_url"].endswith("/runbook#tidegaugeacceleratordrift")
    assert "nat-1" in message["annotations"]["summary"]
    assert not stack.notified.alerts("/operators")
    # It is over when the board says so, and that is told, too.
    asyncio.run(publish(stack.broker, alarm("nat-1", "loss", active=False), status("nat-1")))
    eventually(lambda: not firing(stack, "nat-1"), 20, stack.prometheus.alerts)
    eventually(
        lambda: [each for each in stack.notified.alerts("/page") if each["status"] == "resolved"],
        30,
        lambda: stack.notified.messages,
    )


def test_a_dead_accelerator_is_one_message(stack: Stack) -> None:
    both = "accelerator_hung, accelerator_down"
    said = [alarm("nat-2", "accelerator_hung"), alarm("nat-2", "accelerator_down"), status("nat-2", both)]
    asyncio.run(publish(stack.broker, status("nat-2"), *said))
    expected = {"TidegaugeAcceleratorHung", "TidegaugeAcceleratorDown"}
    eventually(lambda: firing(stack, "nat-2") == expected, 20, stack.prometheus.alerts)

    def told() -> list[str]:
        everywhere = stack.notified.alerts("/page") + stack.notified.alerts("/operators")
        return [each["labels"]["alertname"] for each in everywhere if each["labels"].get("device") == "nat-2"]

    eventually(told, 20, lambda: stack.notified.messages)
    url = f"http://{stack.alertmanager}/api/v2/alerts"
    states = {each["labels"]["alertname"]: each["status"]["state"] for each in ask(url, filter='device="nat-2"')}
    assert states == {"TidegaugeAcceleratorHung": "suppressed", "TidegaugeAcceleratorDown": "active"}
    assert set(told()) == {"TidegaugeAcceleratorDown"}


def test_prometheus_takes_what_the_collector_discovers(stack: Stack) -> None:
    asyncio.run(publish(stack.broker, status("nat-1"), status("nat-4")))
    (found,) = eventually(lambda: stack.prometheus.query('up{job="discovered"}'), 30, stack.collector.log)
    assert (found["metric"]["device"], found["metric"]["instance"]) == ("nat-1", "nat-1.invalid:9464")


def test_rules_run_without_errors(stack: Stack) -> None:
    asyncio.run(publish(stack.broker, status("nat-3")))
    eventually(
        lambda: stack.prometheus.query('device:tidegauge_collector_heard:age_seconds{device="nat-3"}'),
        20,
        lambda: "nat-3",
    )
    assert stack.prometheus.rule_errors() == []


def post(address: str, alerts: list[dict[str, str]]) -> None:
    body = json.dumps([{"labels": labels} for labels in alerts]).encode()
    request = urllib.request.Request(f"http://{address}/api/v2/alerts", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def states(address: str) -> dict[tuple[str, str], str]:
    """By alert and board (or job): "active" or "suppressed"."""
    found = {}
    for each in ask(f"http://{address}/api/v2/alerts"):
        labels = each["labels"]
        found[labels["alertname"], labels.get("device") or labels.get("job", "")] = each["status"]["state"]
    return found


def test_every_inhibition_holds_in_a_real_alertmanager(tmp_path: Path) -> None:
    """Each on boards of its own: beside it, the same targets on another board must stay active."""
    with webhook() as (notify, _), alertmanager(tmp_path, notify) as address:
        sent: list[dict[str, str]] = []
        expected: dict[tuple[str, str], str] = {}
        for number, each in enumerate(INHIBITIONS):
            label = "job" if "job" in each.equal else "device"
            for target in each.targets:
                where, elsewhere = f"with-{number}-{target}", f"without-{number}-{target}"
                labels = {"model": "m"} if "model" in each.equal else {}
                name = f"Tidegauge{target}"
                sent.append({"alertname": f"Tidegauge{each.source}", label: where, **labels})
                sent += [{"alertname": name, label: place, **labels} for place in (where, elsewhere)]
                expected[name, where] = "suppressed"
                # Without common labels the source speaks for all of them.
                expected[name, elsewhere] = "suppressed" if not each.equal else "active"
        for name, place in list(expected):
            if name in ("TidegaugeDeviceSilent", "TidegaugeCollectorDisconnected"):
                expected[name, place] = "suppressed"
        post(address, sent)
        # An alert is judged when it is dispatched; until then it is "unprocessed".
        eventually(lambda: "unprocessed" not in states(address).values(), 20, lambda: states(address))
        deadline = time.monotonic() + 20
        while (wrong := differences(states(address), expected)) and time.monotonic() < deadline:
            time.sleep(0.3)
        assert not wrong


def differences(found: dict[tuple[str, str], str], expected: dict[tuple[str, str], str]) -> dict[Any, Any]:
    return {key: (found.get(key), state) for key, state in expected.items() if found.get(key) != state}
