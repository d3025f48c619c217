"""The server guide, docs/server.md, as a reader follows it: its commands, in order, in a Debian tree that has booted.

The tree has the guide's packages and no network but its loopback. What the guide promises is then looked at inside:
units, broker, an uploaded run that is compared, Prometheus that scrapes, pages, a backup, and a reboot.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from board import offline
from board.tree import REPOSITORY, Tree, base_tree, wait_for
from tidegauge.collector.log_kinds import COLLECTOR_STARTED
from tidegauge.evaluation.figures import Figure, NotRun, Report, goal
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import build

PAGE = REPOSITORY / "docs" / "server.md"
MARKER = "<!-- commands: skip run by tests/board/server.py in a tree that boots -->\n"
UNITS = ("mosquitto", "tidegauge-collector", "prometheus", "prometheus-alertmanager", "postgresql")
#: What the guide has a reader copy.
COPIED = ("systemd", "agent_config", "dashboards", "docs", "requirements")
PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13"}
LAYER = "/dec/c3/Relu_output_0"
COLLECTOR, PROMETHEUS, ALERTMANAGER = (f"http://127.0.0.1:{port}" for port in (8420, 9090, 9093))
#: A block goes on where the one before it ended: folder and exported variables.
STATE = "/root/.guide"
SHELL = (
    'set -euo pipefail\nsource {state}\ntrap \'{{ export -p; printf "cd %q\\n" "$PWD"; }} > {state}\' EXIT\n{text}\n'
)


def guide(text: str) -> list[tuple[str, str]]:
    """(heading, commands) of the page's blocks that this test runs, in order."""
    found = []
    heading = ""
    for part in re.split(r"(?m)^(?=## )", text):
        heading = part.partition("\n")[0].removeprefix("## ") if part.startswith("## ") else ""
        found += [(heading, block) for block in re.findall(re.escape(MARKER) + r"```sh\n(.*?)^```$", part, re.S | re.M)]
    return found


def packages(text: str) -> list[str]:
    """What the guide installs by apt-get."""
    return re.findall(r"apt-get install -y --no-install-recommends (.+)", text)[0].split()


class Server(Tree):
    own_network = True


@contextmanager
def copied(suite: str) -> Iterator[Server]:
    """A tree of its own, with a copy of the repository and a folder of wheels in it."""
    folder = Path(tempfile.mkdtemp(prefix="tidegauge-server-"))
    tree = Server(folder / "tree")
    try:
        base = base_tree(suite, [*packages(PAGE.read_text()), "mosquitto-clients"])
        subprocess.run(["cp", "-a", str(base), str(tree.root)], check=True)
        clone = tree.root / "root/tidegauge"
        for name in COPIED:
            shutil.copytree(REPOSITORY / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
        wheels = clone / "systemd/wheels"
        wheels.mkdir()
        offline.download("x86_64", PYTHON_OF[suite], (), wheels, REPOSITORY / "requirements/collector.lock")
        own = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
        subprocess.run(own, cwd=REPOSITORY, check=True, capture_output=True, timeout=300)
        offline.sums(wheels)
        (tree.root / STATE[1:]).write_text("cd /root/tidegauge\n")
        yield tree
    finally:
        tree.pull_plug()
        shutil.rmtree(folder)


def faulty_run(folder: Path) -> bytes:
    """A zip of traces with a fault in `LAYER`, with model and artifacts, as somebody would upload it."""
    board = build(folder, "enhancer")
    traces = board.trace([Fault(LAYER, "band")])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(traces.iterdir()):
            archive.write(path, f"run/{path.name}")
        archive.write(board.model, board.model.name)
        for path in sorted(board.artifacts.rglob("*")):
            archive.write(path, f"{board.artifacts.name}/{path.relative_to(board.artifacts)}")
    return out.getvalue()


class ServerTest:
    """The steps, in order; each adds its figures."""

    def __init__(self, tree: Server) -> None:
        self.tree = tree
        self.figures: list[Figure] = []

    def figure(self, group: str, name: str, value: float, unit: str, at: float | None, note: str = "") -> None:
        found = Figure(f"server, {group}", name, value, unit, at, "<=", note)
        self.figures.append(found)
        print(f"  {name}: {value:.3g} {unit} {goal(found)} {note}".rstrip(), flush=True)

    def holds(self, group: str, name: str, truth: bool, note: str = "") -> None:
        found = Figure(f"server, {group}", name, float(truth), "", 1.0, ">=", note)
        self.figures.append(found)
        print(f"  {name}: {truth:d} {goal(found)} {note}".rstrip(), flush=True)

    def get(self, url: str, *options: str) -> str:
        """What a browser on the server would get; empty where it gets nothing or an error."""
        return self.tree.run("curl", "-sSf", "--max-time", "30", *options, url, check=False, timeout=60).stdout

    def asked(self, url: str, *options: str) -> Any:
        """The JSON there, None for none."""
        text = self.get(url, *options)
        return json.loads(text) if text else None

    # ---- the steps ----

    def boot(self) -> None:
        self.figure("boot", "answer of systemd", self.tree.boot(), "s", None)

    def followed(self) -> None:
        for heading, text in guide(PAGE.read_text()):
            began = time.monotonic()
            script = SHELL.format(state=STATE, text=text)
            done = self.tree.run("bash", "-c", script, check=False, timeout=600)
            said = f"{done.stdout}{done.stderr}".strip().replace("\n", " ")[-300:] if done.returncode else ""
            first = text.strip().splitlines()[0].split()[0]
            self.holds("the guide", f"{heading}, from `{first}`: ended with 0", done.returncode == 0, said)
            self.figure("the guide", f"{heading}, from `{first}`", time.monotonic() - began, "s", None)
            if done.returncode:
                raise AssertionError(f"the guide ends at {heading}: {said}")

    def supervised(self) -> None:
        for unit in UNITS:
            active = wait_for(lambda unit=unit: self.tree.unit("ActiveState", unit) == "active", 60, f"active {unit}")
            enabled = self.tree.run("systemctl", "is-enabled", unit, check=False).stdout.strip()
            self.holds("units", f"{unit} is active, and enabled", active and enabled == "enabled", enabled)
        asked = ("journalctl", "-q", "-x", "-u", "tidegauge-collector", f"MESSAGE_ID={COLLECTOR_STARTED.id}")
        found = COLLECTOR_STARTED.subject in self.tree.run(*asked).stdout
        self.holds("units", "the journal finds the collector's start by its id, and explains it", found)
        done = self.tree.run("systemd-analyze", "verify", "--man=no", "tidegauge-collector.service", check=False)
        own = [line for line in done.stderr.splitlines() if "tidegauge" in line]
        self.holds("units", "`systemd-analyze verify` has nothing to say", not own, " ".join(own)[:200])
        said = self.tree.run("systemd-analyze", "--no-pager", "security", "tidegauge-collector", check=False).stdout
        exposure = re.search(r"Overall exposure level[^:]*: ([0-9.]+)", said)
        self.figure("units", "exposure of the collector", float(exposure[1]) if exposure else 10.0, "of 10", 2.0)

    def broker(self) -> None:
        connected = "\ntidegauge_collector_mqtt_connected 1"
        wait_for(lambda: connected in self.get(f"{COLLECTOR}/metrics"), 60, "collector at the broker")
        self.holds("broker", "the collector is connected by TLS, by its own certificate", True)
        ask = ["mosquitto_pub", "-h", "localhost", "-p", "8883", "-t", "tidegauge/v1/cam-07/test", "-m", "", "-q", "1"]
        ask += ["--cafile", "/root/authority/ca.pem"]
        pair = ["--cert", "/root/authority/cam-07.pem", "--key", "/root/authority/cam-07.key"]
        self.holds("broker", "a board gets in with its certificate", self.tree.run(*ask, *pair).returncode == 0)
        self.holds("broker", "nobody gets in without", self.tree.run(*ask, check=False).returncode != 0)

    def compared(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            (self.tree.root / "root/traces.zip").write_bytes(faulty_run(Path(scratch)))
        jar = ["-b", "/root/jar", "-c", "/root/jar"]
        token = self.asked(f"{COLLECTOR}/api/v1/session", *jar)["csrf_token"]
        began = time.monotonic()
        head = ["-H", f"x-csrf-token: {token}", "-H", "content-type: application/octet-stream"]
        sent = [*jar, *head, "--data-binary", "@/root/traces.zip"]
        upload = self.asked(f"{COLLECTOR}/api/v1/uploads/traces?name=traces.zip", *sent)["upload"]
        row = self._ended(f"{COLLECTOR}/api/v1/uploads/{upload}", "checked upload")
        run = row["result"]["run"]
        done = self._ended(f"{COLLECTOR}/api/v1/runs/{run}", "comparison")
        self.figure("a run", "uploaded, checked and compared", time.monotonic() - began, "s", 180)
        found = (done["state"], done["culprit"])
        self.holds("a run", "the layer with the fault is named", found == ("done", LAYER), str(found))
        self.holds("a run", "its report names it", LAYER in self.get(f"{COLLECTOR}/reports/runs/{run}/report.html"))
        self.holds("a run", "the fleet page answers", "<html" in self.get(f"{COLLECTOR}/"))

    def _ended(self, url: str, what: str) -> Any:
        def ended() -> Any:
            row = self.asked(url)
            return row if row and row["state"] in ("done", "failed") else None

        return wait_for(ended, 180, what)

    def watched(self) -> None:
        scraped = "tidegauge_collector_mqtt_connected"
        for query in ('up{job="tidegauge-collector"}', scraped):
            wait_for(lambda query=query: self._value(query) == 1.0, 120, f"{query} in Prometheus")
            self.holds("Prometheus", f"{query} is 1", True)
        groups = wait_for(lambda: self.asked(f"{PROMETHEUS}/api/v1/rules"), 60, "rules")["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        bad = [rule["name"] for rule in rules if rule["health"] == "err"]
        self.holds("Prometheus", "rules are loaded, none fails", len(rules) > 0 and not bad, f"{len(rules)} rules")
        told = wait_for(lambda: self.asked(f"{PROMETHEUS}/api/v1/alertmanagers"), 60, "answer")["data"]
        self.holds("Prometheus", "knows Alertmanager", len(told["activeAlertmanagers"]) == 1)
        receivers = {
            row["name"] for row in wait_for(lambda: self.asked(f"{ALERTMANAGER}/api/v2/receivers"), 60, "answer")
        }
        self.holds("Alertmanager", "has the receivers of the repository", "tidegauge-pager" in receivers)

    def _value(self, query: str) -> float | None:
        found = self.asked(f"{PROMETHEUS}/api/v1/query", "-G", "--data-urlencode", f"query={query}")
        rows = found["data"]["result"] if found else []
        return float(rows[0]["value"][1]) if len(rows) == 1 else None

    def prepared(self) -> None:
        names = sorted(path.name for path in (REPOSITORY / "dashboards/grafana/dashboards").glob("*.json"))
        there = sorted(path.name for path in (self.tree.root / "var/lib/grafana/dashboards/tidegauge").iterdir())
        self.holds("Grafana", "its folders hold what it will want", names == there, f"{len(there)} dashboards")
        kept = self.tree.root / "var/backups/tidegauge/collector"
        self.holds("backup", "has the database", any(kept.rglob("*.sqlite")))

    def rebooted(self) -> None:
        self.tree.power_off(90)
        began = time.monotonic()
        self.tree.boot()
        wait_for(lambda: self.get(f"{COLLECTOR}/readyz"), 120, "collector after a reboot")
        self.figure("reboot", "the collector is ready again after", time.monotonic() - began, "s", 120)
        runs = json.dumps(self.asked(f"{COLLECTOR}/api/v1/runs"))
        self.holds("reboot", "what it had found is still there", LAYER in runs)


STEPS = ("boot", "followed", "supervised", "broker", "compared", "watched", "prepared", "rebooted")


def measure(suite: str) -> Report:
    """All steps on a fresh tree. A step that could not be done is a missed goal, with its reason."""
    with copied(suite) as tree:
        test = ServerTest(tree)
        for step in STEPS:
            print(f"server: {step}", flush=True)
            try:
                getattr(test, step)()
            except (TimeoutError, AssertionError, subprocess.TimeoutExpired, OSError, TypeError) as error:
                test.holds(step, "done", False, str(error).replace("\n", " ")[:300])
                if step in ("boot", "followed"):
                    break
        return Report(0, False, test.figures, [NotRun("server", "Grafana", "it is no package of Debian")])
