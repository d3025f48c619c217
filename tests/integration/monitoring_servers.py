"""A real Prometheus and a real Alertmanager on the shipped files, made faster; and somebody who is notified."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from needs import program
from tidegauge.demo.broker import free_port

DASHBOARDS = Path(__file__).resolve().parents[2] / "dashboards"


def ask(url: str, **parameters: str) -> Any:
    """JSON; raises AssertionError with the server's own words where it refuses."""
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    try:
        with urllib.request.urlopen(url + query, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{url}{query}: {error.read().decode()}") from error


def eventually(condition: Callable[[], Any], seconds: float, what: Callable[[], object]) -> Any:
    """What `condition` returns, as soon as it is true; while a server starts, a refused connection is not yet."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = condition()
        except (urllib.error.URLError, ConnectionError):
            found = None
        if found:
            return found
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


class Prometheus:
    """Asks a running one."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/api/v1"

    def query(self, expr: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(f"{self.url}/query", query=expr)["data"]["result"]
        return found

    def label_values(self, label: str, match: str) -> list[str]:
        found: list[str] = ask(f"{self.url}/label/{label}/values", **{"match[]": match})["data"]
        return found

    def rule_errors(self) -> list[str]:
        groups = ask(f"{self.url}/rules")["data"]["groups"]
        return [f"{rule['name']}: {rule['lastError']}" for g in groups for rule in g["rules"] if rule.get("lastError")]

    def alerts(self, state: str = "firing") -> list[dict[str, str]]:
        return [each["labels"] for each in ask(f"{self.url}/alerts")["data"]["alerts"] if each["state"] == state]


@contextmanager
def running(command: list[str], log: Path, ready: str) -> Iterator[None]:
    """A server, until the block ends; `ready`: address that answers when it can be used."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:

        def answers() -> bool:
            assert process.poll() is None, log.read_text()
            with urllib.request.urlopen(ready, timeout=5) as answer:
                return bool(answer.status == 200)

        eventually(answers, 30, log.read_text)
        yield
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def prometheus(
    folder: Path, targets: dict[str, str], alertmanager: str = "", discovery: str = ""
) -> Iterator[Prometheus]:
    """With the shipped rules, each second; `targets`: address of each job; `discovery`: who names boards."""
    for name in ("recording.yml", "alerts.yml"):
        text = (DASHBOARDS / "prometheus" / name).read_text()
        assert "interval: 30s" in text
        (folder / name).write_text(text.replace("interval: 30s", "interval: 1s"))
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s"},
        "rule_files": ["recording.yml", "alerts.yml"],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in targets.items()
        ],
    }
    if discovery:
        job = {"job_name": "discovered", "http_sd_configs": [{"url": discovery, "refresh_interval": "1s"}]}
        config["scrape_configs"].append(job)
    if alertmanager:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        program("prometheus", "prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with running(command, folder / "prometheus.log", f"http://127.0.0.1:{port}/-/ready"):
        yield Prometheus(port)


class Notified:
    """Who is notified: `messages` are (path, what Alertmanager said)."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []

    def alerts(self, path: str) -> list[dict[str, Any]]:
        return [alert for at, message in self.messages if at == path for alert in message["alerts"]]


@contextmanager
def webhook() -> Iterator[tuple[str, Notified]]:
    heard = Notified()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            heard.messages.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def alertmanager(folder: Path, notify: str) -> Iterator[str]:
    """With the shipped routes and inhibitions, without their waiting; its address."""
    text = (DASHBOARDS / "alertmanager" / "alertmanager.yml").read_text().replace("127.0.0.1:9099", notify)
    config = yaml.safe_load(text)
    # An inhibition only works on an alert that is there when the group is sent: a moment is left for both to come.
    config["route"] |= {"group_wait": "3s", "group_interval": "1s"}
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        program("prometheus-alertmanager", "prometheus-alertmanager"),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with running(command, folder / "alertmanager.log", f"http://127.0.0.1:{port}/-/ready"):
        yield f"127.0.0.1:{port}"
