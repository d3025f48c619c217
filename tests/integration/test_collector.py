"""A real mosquitto, the real collector as a process, and the board's own sender between them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tidegauge.bundles.manifest import Blob, Cause, Inventory, Manifest, StoredFile, StoredTensor
from tidegauge.clocks import Stamp, monotonic
from tidegauge.link import mqtt
from tidegauge.link.commands import chunk_topic, response_topic
from tidegauge.link.config import LinkConfig
from tidegauge.link.sender import Action, Done, Outgoing, Refused, Sender
from tidegauge.link.transfer import FileRef, Publish, SendChunk, SenderLimits
from tidegauge.link.wire import AlarmChange, FileResponse, Status, decode, encode, topic
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.tensors import TensorSpec

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
if MOSQUITTO is None and os.environ.get("CI") == "true":
    pytest.fail("mosquitto is not installed; CI must not skip these tests", pytrace=False)
pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")

DEADLINE = 60.0


class Process:
    """A collector process on a data folder that outlives it."""

    def __init__(self, folder: Path, broker_port: int) -> None:
        self.folder, self.data = folder, folder / "data"
        self.config = folder / "collector.toml"
        self.config.write_text(
            f'data = "data"\n[http]\nport = 0\n[link]\nport = {broker_port}\nbackoff_first = 0.2\nbackoff_most = 0.5\n'
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        log = (self.folder / "collector.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidegauge", "collector", "run", "--config", str(self.config)],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("collector ready: http://127.0.0.1:"), self.log()
        self.url = line.split()[-1]
        assert json.loads((self.data / "collector.json").read_text()) == {"url": self.url}

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(number)
        code = self.process.wait(20)
        self.process.stdout.close()
        self.process = None
        return code

    def stop_in_time(self) -> None:
        began = time.monotonic()
        assert self.kill(signal.SIGTERM) == 0, self.log()
        assert time.monotonic() - began < 5.0
        assert not (self.data / "collector.json").exists()

    def log(self) -> str:
        return (self.folder / "collector.log").read_text()

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            body = answer.read()
        return json.loads(body) if "json" in answer.headers["content-type"] else body.decode()

    def until(self, path: str, done: Callable[[Any], bool]) -> Any:
        deadline = time.monotonic() + DEADLINE
        while True:
            answer = self.get(path)
            if done(answer):
                return answer
            assert time.monotonic() < deadline, f"{path} stays {answer}\n{self.log()}"
            time.sleep(0.05)


@contextlib.contextmanager
def mosquitto(folder: Path) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = [f"listener {port} 127.0.0.1", "allow_anonymous true", "persistence false"]
    settings += ["user root"] if os.geteuid() == 0 else []
    (folder / "mosquitto.conf").write_text("\n".join(settings) + "\n")
    assert MOSQUITTO is not None
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([MOSQUITTO, "-c", str(folder / "mosquitto.conf")], stdout=log, stderr=log)
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            break
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.02)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with mosquitto(tmp_path_factory.mktemp("broker")) as port:
        yield port


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory, broker: int) -> Iterator[Process]:
    """Starting takes seconds: one for all tests, each with a device of its own."""
    process = Process(tmp_path_factory.mktemp("collector"), broker)
    process.start()
    process.until("api/v1/health", lambda health: health["broker_connected"])
    yield process
    process.stop_in_time()


def bundle(device: str, name: str, ballast: int) -> tuple[bytes, dict[str, bytes]]:
    """A valid manifest and its blobs; one of them has `ballast` bytes."""
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> Blob:
        sha256 = hashlib.sha256(data).hexdigest()
        blobs[sha256] = data
        return Blob(sha256, len(data), len(data), "raw")

    manifest = Manifest(
        bundle_id=name,
        device=device,
        virtual=True,
        created=Stamp(1_780_000_000.0, "boot", 12.0),
        cause=Cause("golden", "accelerator", ("black_output",), {}, "The golden test fails."),
        profile=Profile("enhancer", "onnx", "m.onnx", "a", Preprocess(8, 8), Output("enhanced", "image", 1 / 255)),
        inventory=Inventory({}, "cd" * 32, {}, {}),
        options={},
        benchmark={},
        inputs=(StoredTensor(TensorSpec("input", (1, 3, 8, 8), "float32"), blob(bytes(768))),),
        device_outputs=(),
        reference_outputs=(),
        traced_outputs=(),
        tracing_changed_output=False,
        errors=(),
        loss=0.9,
        traces=(),
        logs=(StoredFile("worker.log", blob(Random(name).randbytes(ballast))),),
        model=None,
        artifacts=(),
    )
    return msgspec.json.encode(manifest), blobs


class Board:
    """The sender's state machine on a real connection."""

    def __init__(self, port: int, head: bytes, blobs: dict[str, bytes], device: str) -> None:
        self.files = {hashlib.sha256(head).hexdigest(): head, **blobs}
        refs = {name: FileRef(name, len(data), name) for name, data in blobs.items()}
        self.outgoing = Outgoing("b", FileRef(next(iter(self.files)), len(head), "manifest.json"), refs)
        limits = SenderLimits(chunk=16384, window=4, answer_timeout=0.5, retry_cap=0.5, max_rounds=1000)
        self.sender = Sender(device, limits, Random(1))
        self.port, self.device, self.chunks, self.answers = port, device, 0, 0

    async def send(self, on_chunk: Callable[[int], None] = lambda _: None) -> Done | Refused:
        async with asyncio.timeout(DEADLINE), self._connection() as connection:
            todo = [*self.sender.add(self.outgoing, monotonic()), *self.sender.connected(None, monotonic())]
            answers = aiter(connection.messages())
            listening: asyncio.Task[tuple[str, bytes]] = asyncio.ensure_future(anext(answers))
            try:
                while True:
                    end = await self._carry_out(connection, todo, on_chunk)
                    if end is not None:
                        return end
                    done, _ = await asyncio.wait([listening], timeout=0.1)
                    todo = list(self.sender.tick(monotonic()))
                    if done:
                        self.answers += 1
                        response: FileResponse = decode(FileResponse, listening.result()[1])
                        todo += self.sender.response(response, monotonic())
                        listening = asyncio.ensure_future(anext(answers))
            finally:
                listening.cancel()

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[mqtt.Connection]:
        async with mqtt.connect(LinkConfig(port=self.port), f"board-{self.device}") as connection:
            await connection.subscribe(response_topic(self.device))
            yield connection

    async def _carry_out(
        self, connection: mqtt.Connection, todo: list[Action], on_chunk: Callable[[int], None]
    ) -> Done | Refused | None:
        while todo:
            action = todo.pop(0)
            if isinstance(action, Done | Refused):
                return action
            if isinstance(action, Publish):
                await connection.publish(action.topic, action.payload)
                todo += self.sender.sent(monotonic())
            elif isinstance(action, SendChunk):
                data = self.files[action.file_id][action.offset : action.offset + action.length]
                digest = hashlib.sha256(data).hexdigest()
                await connection.publish(chunk_topic(self.device, action.file_id, action.offset, digest), data)
                self.chunks += 1
                on_chunk(self.chunks)
                todo += self.sender.sent(monotonic())
        return None


async def publish(port: int, *messages: tuple[str, bytes]) -> None:
    async with mqtt.connect(LinkConfig(port=port), "board-other") as connection:
        for where, payload in messages:
            await connection.publish(where, payload)


def ended(bundles: list[dict[str, Any]]) -> bool:
    return bool(bundles) and bundles[0]["state"] in ("compared", "failed")


def stored(collector: Process, head: bytes, blobs: dict[str, bytes]) -> bool:
    files = {**blobs, hashlib.sha256(head).hexdigest(): head}
    return all((collector.data / "blobs" / "sha256" / name).read_bytes() == data for name, data in files.items())


def of(device: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda rows: [row for row in rows if row["device"] == device]


def test_bundle_is_stored_compared_and_free_to_repeat(collector: Process, broker: int) -> None:
    head, blobs = bundle("cam-1", "bundle-0001", 100_000)
    board = Board(broker, head, blobs, "cam-1")
    assert asyncio.run(board.send()) == Done("b")
    assert board.chunks >= 8 and stored(collector, head, blobs)

    (row,) = collector.until("api/v1/bundles", ended)
    assert row["device"] == "cam-1" and row["symptoms"] == ["black_output"] and row["blobs_held"] == row["blobs"] == 2
    assert row["state"] == "failed" and row["reason"]  # no trace in it, so nothing that could be compared

    again = Board(broker, head, blobs, "cam-1")
    assert asyncio.run(again.send()) == Done("b")
    assert again.chunks == 0
    assert len(collector.get("api/v1/bundles")) == 1

    detail = collector.get("api/v1/bundles/cam-1/bundle-0001")
    assert detail["wanted"] == [] and detail["manifest"]["cause"]["message"] == "The golden test fails."
    assert "The golden test fails." in collector.get("bundles/cam-1/bundle-0001")
    assert "bundle-0001" in collector.get("")


def test_malformed_messages_are_answered_or_counted_and_never_fatal(collector: Process, broker: int) -> None:
    end = asyncio.run(Board(broker, b'{"schema": 1, "device": 5}', {}, "cam-3").send())
    assert isinstance(end, Refused) and end.reason.startswith("bad_manifest")
    junk = (
        (topic("cam-3", "status"), b"{"),
        (topic("cam-3", "status"), b"[" * 50_000),
        (topic("cam-3", "alarm"), b"\x00\xff"),
        (topic("a b", "status"), encode(Status("online", 1))),
        (topic("cam-3", "file", "..", "init"), b"{}"),
        (topic("cam-3", "file", "0" * 64, "7", "0" * 64), b"no such transfer"),
        (topic("cam-3", "file", "0" * 64, "init"), b'{"name": "x", "size": -1, "checksum": "y"}'),
        (topic("cam-3", "status"), encode(Status("online", 9, phase="acceptance"))),
    )
    asyncio.run(publish(broker, *junk))
    rows = collector.until("api/v1/devices", lambda rows: any(row["state"] == "online" for row in of("cam-3")(rows)))
    assert of("cam-3")(rows)[0]["phase"] == "acceptance"
    metrics = collector.get("metrics")
    for reason, count in (("bad_topic", 2), ("bad_status", 2), ("bad_alarm", 1), ("bad_manifest", 1)):
        assert f'tidegauge_collector_refused_total{{reason="{reason}"}} {count}.0' in metrics


def test_late_will_does_not_overwrite_a_newer_birth(collector: Process, broker: int) -> None:
    alarm = AlarmChange("a1", True, "golden", "accelerator", ("black_output",), "Output is black.", 1.0, "b", 2.0)
    asyncio.run(
        publish(
            broker,
            (topic("cam-4", "status"), encode(Status("online", 2, phase="monitoring", progress=0.5))),
            (topic("cam-4", "status"), encode(Status("lost", 1))),
            (topic("cam-4", "alarm"), encode(alarm)),
        )
    )
    rows = collector.until("api/v1/devices", lambda rows: any(row["alarms"] == 1 for row in of("cam-4")(rows)))
    (device,) = of("cam-4")(rows)
    assert (device["state"], device["session"], device["phase"]) == ("online", 2, "monitoring")
    expected = 'tidegauge_device_drift_alarm{cause="accelerator",device="cam-4",model=""} 1.0'
    assert expected in collector.get("metrics")
    asyncio.run(publish(broker, (topic("cam-4", "status"), encode(Status("lost", 2)))))
    rows = collector.until("api/v1/devices", lambda rows: of("cam-4")(rows)[0]["state"] == "lost")
    assert of("cam-4")(rows)[0]["phase"] == "monitoring"  # as last told


def test_refusals_to_start_are_one_sentence(collector: Process, tmp_path: Path) -> None:
    port = collector.url.rsplit(":", 1)[1].rstrip("/")
    cases = {
        "missing.toml": (None, "missing.toml does not exist"),
        "typo.toml": ('data = "d"\n[link]\n[http]\nprot = 1\n', "did you mean `port`?"),
        "busy.toml": (f'data = "d"\n[link]\n[http]\nport = {port}\n', f"127.0.0.1:{port}"),
        "second.toml": (f'data = "{collector.data}"\n[link]\n[http]\nport = 0\n', "another collector"),
    }
    running = {}
    for name, (text, _) in cases.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        command = [sys.executable, "-m", "tidegauge", "collector", "run", "--config", str(tmp_path / name)]
        running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for name, process in running.items():
        out, err = process.communicate(timeout=60)
        assert process.returncode == 2 and out == "", (name, out, err)
        assert cases[name][1] in err and err.count("\n") == 1 and "Traceback" not in err, (name, err)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[int]:
    """Beside no other collector: two with separate stores would answer for each other."""
    with mosquitto(tmp_path) as port:
        yield port


def test_kill_in_the_middle_loses_nothing(tmp_path: Path, own_broker: int) -> None:
    collector = Process(tmp_path, own_broker)
    collector.start()
    head, blobs = bundle("cam-2", "bundle-0002", 300_000)
    board = Board(own_broker, head, blobs, "cam-2")
    kills: list[int] = []

    def on_chunk(count: int) -> None:
        if count == 9:
            kills.append(count)
            collector.kill()
            collector.start()

    assert asyncio.run(board.send(on_chunk)) == Done("b")
    assert kills == [9]
    collector.kill()  # "stored" was said: what was promised is on the disk
    assert stored(collector, head, blobs)
    collector.start()
    (row,) = collector.until("api/v1/bundles", ended)
    assert row["blobs_held"] == row["blobs"] == 2
    collector.stop_in_time()
