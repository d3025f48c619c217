"""A collector that starts before its database and its bucket: after a power cut nobody promises another order."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from integration import database_servers
from integration.collector_peer import DEADLINE, Process
from tidegauge.collector.blobs import open_bucket
from tidegauge.collector.config import BlobsConfig
from tidegauge.errors import TidegaugeError, Unreached
from tidegauge.link.config import LinkConfig

UNUSED = LinkConfig().port


def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


@pytest.mark.slow
def test_it_waits_for_database_and_bucket_and_then_runs(tmp_path: Path) -> None:
    database_servers.required()
    with database_servers.postgresql() as cluster, database_servers.s3() as s3:
        there = tmp_path / "socket"
        url = cluster.database().replace(str(cluster.folder), str(there))
        collector = Process(
            tmp_path,
            UNUSED,
            f'roles = ["compare"]\n[database]\nurl = "{url}"\n'
            f'[blobs]\nbucket = "{s3.bucket()}"\nendpoint = "{s3.endpoint}"\nregion = "us-east-1"\n',
            s3.environment,
        )
        starting = threading.Thread(target=collector.start)
        starting.start()
        log = tmp_path / "collector.log"
        until(lambda: log.exists() and collector.log().count("it is tried again in") >= 2, collector.log)
        assert "can't be opened" in collector.log() and "check `database.url` and that it runs" in collector.log()
        assert collector.process is not None and collector.process.poll() is None
        there.symlink_to(cluster.folder)
        starting.join(DEADLINE)
        assert not starting.is_alive() and collector.url, collector.log()
        assert collector.get("api/v1/bundles") == []
        collector.stop()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_while_it_waits_it_can_be_stopped(tmp_path: Path, number: int) -> None:
    config = tmp_path / "collector.toml"
    config.write_text(
        'data = "data"\n[http]\nport = 0\n[link]\n[database]\nurl = "postgresql://nobody@127.0.0.1:9/nothing"\n'
        '[blobs]\nbucket = "b"\nendpoint = "http://127.0.0.1:9"\n'
    )
    command = [sys.executable, "-m", "tidegauge", "collector", "run", "--config", str(config)]
    environment = {**database_servers.S3("").environment, "PATH": "/usr/bin:/bin"}
    log = tmp_path / "log"
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stderr=stderr, stdout=stderr, env=environment, preexec_fn=_interruptible) as process,
    ):
        try:
            until(lambda: "it is tried again in" in log.read_text(), log.read_text)
            process.send_signal(number)
            assert process.wait(DEADLINE) in (-signal.SIGTERM, 130)
        finally:
            process.kill()
    assert "Traceback" not in log.read_text()


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_refusal_for_good_is_not_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is not there, and a bucket that is not: only a person can make them."""
    database_servers.required()
    with database_servers.postgresql() as cluster, database_servers.s3() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(TidegaugeError, match=r"`blobs\.bucket`") as refused:
            open_bucket(BlobsConfig("no-such-bucket", endpoint=s3.endpoint, region="us-east-1"))
        assert not isinstance(refused.value, Unreached)
        collector = Process(
            tmp_path,
            UNUSED,
            f'[database]\nurl = "{cluster.url("no_such_database")}"\n'
            f'[blobs]\nbucket = "{s3.bucket()}"\nendpoint = "{s3.endpoint}"\nregion = "us-east-1"\n',
            s3.environment,
        )
        done = subprocess.run(
            [*collector.program, "collector", "run", "--config", str(collector.config)],
            capture_output=True,
            text=True,
            env=collector.environment,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 2 and 'database "no_such_database" does not exist' in done.stderr


def test_a_prefix_that_is_no_path_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in database_servers.S3("").environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TidegaugeError, match=r"`blobs\.bucket`.*empty path segment"):
        open_bucket(BlobsConfig("b", prefix="a//b", endpoint="http://127.0.0.1:9", region="us-east-1"))


def test_a_store_that_does_not_answer_may_come_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in database_servers.S3("").environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Unreached, match=r"`blobs\.bucket`"):
        open_bucket(BlobsConfig("b", endpoint="http://127.0.0.1:9", region="us-east-1"))
