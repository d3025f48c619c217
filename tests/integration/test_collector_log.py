"""What a real collector writes into the journal, and as text where there is none."""

from __future__ import annotations

import asyncio
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from integration.collector_peer import DEADLINE, Board, Process, bundle, mosquitto, needs_mosquitto, publish
from tidegauge import signing
from tidegauge.bundles.manifest import Manifest
from tidegauge.bundles.signature import sign
from tidegauge.collector import log_kinds
from tidegauge.link.wire import AlarmChange, encode, topic
from tidegauge.log_kinds import Kind
from unit.journal_peer import Peer

PROGRAM = (sys.executable, str(Path(__file__).with_name("journalled.py")))
Entry = dict[str, bytes]


class Journal:
    """A journal that is read while a collector writes to it. `environment`: says that stderr is its stream."""

    def __init__(self, folder: Path, stderr: Path) -> None:
        self.peer = Peer(folder)
        stderr.touch()
        found = stderr.stat()
        self.environment = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        self.entries: list[Entry] = []

    def until(self, wanted: Callable[[Entry], bool], what: str) -> Entry:
        """The first entry, of what was not looked at before, for which this holds."""
        seen, deadline = 0, time.monotonic() + DEADLINE
        while True:
            self.entries += self.peer.entries()
            for number, entry in enumerate(self.entries[seen:], seen):
                if wanted(entry):
                    self.entries = self.entries[number + 1 :]
                    return entry
            seen = len(self.entries)
            left = deadline - time.monotonic()
            assert left > 0, f"no {what} among {[entry['MESSAGE'] for entry in self.entries]}"
            select.select([self.peer.socket], [], [], left)

    def of(self, kind: Kind, **fields: str) -> Entry:
        """The next entry of a kind, whose fields are these."""
        named = {f"TIDEGAUGE_{name.upper()}": value.encode() for name, value in fields.items()}
        entry = self.until(lambda each: each.get("MESSAGE_ID") == kind.id.encode(), kind.word)
        assert {name: entry.get(name) for name in named} == named
        return entry


def started(tmp_path: Path, port: int) -> tuple[Process, Journal]:
    collector = Process(tmp_path, port)
    journal = Journal(tmp_path, tmp_path / "collector.log")
    collector.program = (*PROGRAM, journal.peer.address)
    collector.environment |= journal.environment
    collector.start()
    return collector, journal


def send(port: int, head: bytes, blobs: dict[str, bytes]) -> None:
    asyncio.run(Board(port, head, blobs, "cam-1").send())


@needs_mosquitto
def test_a_life_in_the_journal(tmp_path: Path) -> None:
    """What an operator looks for has its id and its fields; and each entry says which collector it is of."""
    (tmp_path / "broker").mkdir()
    with mosquitto(tmp_path / "broker") as port:
        collector, journal = started(tmp_path, port)
        start = journal.of(log_kinds.COLLECTOR_STARTED, pages=collector.url)
        assert start["SYSLOG_IDENTIFIER"] == b"tidegauge-collector" and start["PRIORITY"] == b"6"
        assert start["TIDEGAUGE_PROCESS"].decode() == (collector.data / "executor_id").read_text().strip()
        assert start["TIDEGAUGE_COLLECTOR"]
        journal.of(log_kinds.BROKER_UP)

        head, blobs = bundle("cam-1", "bundle-0001", 1000)
        send(port, head, blobs)
        journal.of(log_kinds.BUNDLE_COMPLETE, device="cam-1", bundle="bundle-0001")
        failed = journal.of(log_kinds.COMPARISON_FAILED, device="cam-1", bundle="bundle-0001")
        assert failed["PRIORITY"] == b"3" and failed["TIDEGAUGE_COLLECTOR"] == start["TIDEGAUGE_COLLECTOR"]

        send(port, b'{"schema": 1, "device": 5}', {})
        journal.of(log_kinds.MANIFEST_REFUSED, device="cam-1", reason="bad_manifest")
        _change_keys(journal, port, tmp_path)

        alarm = AlarmChange("a1", True, "golden", "accelerator", (), "Output is black.", 1.0, "b", 2.0)
        asyncio.run(publish(port, (topic("cam-1", "alarm"), encode(alarm)), (topic("cam-1", "alarm"), b"\x00")))
        journal.of(log_kinds.BOARD_ALARM, device="cam-1", detector="golden", verdict="accelerator", alarm="a1")
        journal.of(log_kinds.MESSAGE_IGNORED, device="cam-1", reason="bad_alarm")

        _send_nonsense(collector.url)
        said = journal.until(lambda each: each["TIDEGAUGE_PART"] == b"uvicorn.error", "line of the web server")
        assert said["PRIORITY"] == b"4" and "MESSAGE_ID" not in said
    journal.of(log_kinds.BROKER_DOWN)
    with mosquitto(tmp_path / "broker", port):
        journal.of(log_kinds.BROKER_UP)
        collector.stop()
    journal.of(log_kinds.COLLECTOR_STOPPING)
    assert collector.log() == "", "nothing goes past the journal"
    journal.peer.close()


def _change_keys(journal: Journal, port: int, folder: Path) -> None:
    """The first signature makes the key known; then a bundle by another key is refused."""
    for name, kind, fields in (
        ("board", log_kinds.KEY_TAKEN, {}),
        ("thief", log_kinds.KEY_REFUSED, {"reason": "other_key"}),
    ):
        key = signing.create(folder / f"{name}.key")
        head, blobs = bundle("cam-1", f"bundle-{name}", 1000)
        send(port, msgspec.json.encode(sign(msgspec.json.decode(head, type=Manifest), key)), blobs)
        if kind is log_kinds.KEY_TAKEN:
            fields = {"key": key.public}
        journal.of(kind, device="cam-1", **fields)


def _send_nonsense(url: str) -> None:
    found = urlsplit(url)
    with socket.create_connection((found.hostname, found.port), DEADLINE) as connection:
        connection.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        assert b" 400 " in connection.recv(4096)


def test_a_refusal_has_its_id_in_the_journal_and_is_one_sentence_elsewhere(tmp_path: Path) -> None:
    stderr = tmp_path / "stderr"
    journal = Journal(tmp_path, stderr)
    config = tmp_path / "collector.toml"
    config.write_text('data = "data"\n[htpp]\n')
    command = [*PROGRAM, journal.peer.address, "collector", "run", "--config", str(config)]
    with stderr.open("ab") as file:
        run = subprocess.run(command, stderr=file, env=journal.environment, timeout=DEADLINE)
    entry = journal.of(log_kinds.COLLECTOR_REFUSED, exit_code="2")
    assert run.returncode == 2 and b"htpp" in entry["MESSAGE"] and stderr.read_text() == ""
    journal.peer.close()
    away = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=DEADLINE)
    assert away.returncode == 2
    assert re.fullmatch(r"tidegauge: .*htpp.*\n", away.stderr)


@needs_mosquitto
def test_without_a_journal_lines_are_text_with_time_level_and_part(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    with mosquitto(tmp_path / "broker") as port:
        collector = Process(tmp_path, port)
        collector.start()
        assert collector.kill(signal.SIGTERM) == 0
    lines = collector.log().splitlines()
    form = re.compile(r"\d\d:\d\d:\d\d (INFO   |WARNING|ERROR  ) tidegauge\.collector\.\w+: ")
    assert [line for line in lines if not form.match(line)] == []
    sentences = [line.partition(": ")[2] for line in lines]
    assert f"pages at {collector.url}" in sentences, lines
    assert "stopping" in sentences, lines


def test_what_the_queue_says_takes_the_same_way() -> None:
    """DBOS has an output of its own, which it makes when it starts unless there is one."""
    code = (
        "from tidegauge.collector import startup; startup.begin_log(); import dbos._logger as its;"
        "its.init_logger(); its.dbos_logger.warning('from the queue')"
    )
    run = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=DEADLINE)
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING dbos: from the queue\n", run.stderr)
