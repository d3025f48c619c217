"""Hosts that compare, killed: what they were at goes on elsewhere. Real processes, PostgreSQL and S3; only the
comparison itself is a fake program."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration import collector_peer, collector_worker, database_servers
from integration.database_servers import S3, Cluster
from tidegauge.bundles.manifest import Manifest
from tidegauge.bundles.reader import decode_manifest
from tidegauge.clocks import Wall
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.jobs import WORKFLOW_VERSION
from tidegauge.collector.store import Store
from tidegauge.collector.tables import Bundle

pytestmark = pytest.mark.slow

#: What it does is the first word of the bundle's id; each run leaves a line with its process id.
PROGRAM = """
import json, os, pathlib, signal, sys, time
place = pathlib.Path(__file__).parent
name = json.loads((pathlib.Path(sys.argv[1]) / "manifest.json").read_text())["bundle_id"]
with (place / "runs").open("a") as log:
    log.write(f"{name} {os.getpid()}\\n")
what = name.split("-")[0]
runs = [line for line in (place / "runs").read_text().splitlines() if line.startswith(name)]
if what == "sticks" and len(runs) == 1:
    time.sleep(600)
if what == "kills":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
answer = {"exit_code": 0, "sentence": "Fine.", "culprits": [], "coverage": {"share": 1.0}, "seconds": 0.1}
json_path, html_path = sys.argv[-3::2]
pathlib.Path(json_path).write_text(json.dumps(answer))
pathlib.Path(html_path).write_text("<h1>report</h1>")
"""


class Hosts:
    """Workers of one collector, each with a folder of its own."""

    def __init__(self, folder: Path, cluster: Cluster, s3: S3) -> None:
        self.folder, self.database, self.bucket, self.s3 = folder, cluster.database(), s3.bucket(), s3
        self.store, self.blobs = Store(self.database), BlobStore(s3.store(self.bucket))
        (folder / "program.py").write_text(PROGRAM)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, version: str = WORKFLOW_VERSION) -> None:
        data = self.folder / name
        data.mkdir(exist_ok=True)
        arguments = [data, self.database, self.bucket, self.s3.endpoint, self.folder / "program.py", version]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, collector_worker.__file__, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self.running[name] = process
        assert process.stdout is not None and process.stdout.readline() == b"ready\n", self.log(name)

    def kill(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGKILL)
        self.gone(name)

    def gone(self, name: str) -> None:
        process = self.running.pop(name)
        process.wait(60)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def add(self, bundle: str) -> None:
        head, blobs = collector_peer.bundle("cam-1", bundle, 100)
        manifest: Manifest = decode_manifest(head, "the test")
        names = {hashlib.sha256(head).hexdigest(): head, **blobs}
        for sha256, data in names.items():
            source = self.folder / "incoming"
            source.write_bytes(data)
            self.store.add_blob(sha256, self.blobs.put(sha256, source), Wall(1.0))
        assert self.store.add_bundle(manifest, next(iter(names)), Wall(float(len(self.store.bundles()))))

    def until(self, bundle: str, state: str) -> Bundle:
        found: Bundle = self.wait(lambda: self._in(bundle, state), f"{bundle} {state}")
        return found

    def _in(self, bundle: str, state: str) -> Bundle | None:
        row = self.store.bundle("cam-1", bundle)
        return row if row is not None and row.state == state else None

    def runs(self, bundle: str) -> list[int]:
        path = self.folder / "runs"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(bundle)]

    def wait(self, look: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + 120
        while not (found := look()):
            logs = "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))
            assert time.monotonic() < deadline, f"{what} does not come\n{self.store.bundles()}\n{logs}"
            time.sleep(0.1)
        return found


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Cluster, S3]]:
    database_servers.required()
    with database_servers.postgresql() as cluster, database_servers.s3() as s3:
        yield cluster, s3


@pytest.fixture
def hosts(tmp_path: Path, servers: tuple[Cluster, S3]) -> Iterator[Hosts]:
    made = Hosts(tmp_path, *servers)
    yield made
    for name in list(made.running):
        made.kill(name)
    made.store.close()


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_killed_hosts_comparison_goes_on_at_another(hosts: Hosts) -> None:
    hosts.add("sticks-0001")
    hosts.start("one")
    hosts.wait(lambda: hosts.runs("sticks-0001"), "the first run")
    hosts.start("two")
    hosts.add("good-000001")
    assert hosts.until("sticks-0001", "comparing").attempts == 1
    hosts.kill("one")
    row = hosts.until("sticks-0001", "compared")
    first, second = hosts.runs("sticks-0001")
    assert row.sentence == "Fine." and row.attempts == 2 and not alive(first) and first != second
    hosts.until("good-000001", "compared")
    (left,) = hosts.wait(lambda: one_left(hosts), "the burial")
    assert left.host == "host-two"
    assert "has died; 1 comparisons of it go on elsewhere" in hosts.log("two")


def one_left(hosts: Hosts) -> Any:
    found = hosts.store.executors()
    return found if len(found) == 1 else None


def test_comparison_goes_on_in_a_newer_version_of_the_workflow(hosts: Hosts) -> None:
    hosts.add("sticks-0001")
    hosts.add("good-000001")  # queued behind it, and never begun
    hosts.start("old", version="1")
    hosts.wait(lambda: hosts.runs("sticks-0001"), "the first run")
    hosts.kill("old")
    hosts.start("new")
    assert hosts.until("sticks-0001", "compared").sentence == "Fine."
    assert hosts.until("good-000001", "compared").sentence == "Fine."
    assert len(hosts.runs("sticks-0001")) == 2 and len(hosts.runs("good-000001")) == 1


def test_bundle_that_kills_its_host_is_given_up_and_blocks_no_other(hosts: Hosts) -> None:
    hosts.add("kills-00001")
    for number in range(collector_worker.ATTEMPTS):
        hosts.start(f"host-{number}")
        hosts.gone(f"host-{number}")  # by its own bundle
    hosts.add("good-000001")
    hosts.start("last")
    row = hosts.until("kills-00001", "failed")
    assert row.reason == "its comparison was begun 2 times and never came to an end"
    assert hosts.until("good-000001", "compared").sentence == "Fine."
    assert len(hosts.runs("kills-00001")) == collector_worker.ATTEMPTS
