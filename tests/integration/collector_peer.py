"""A collector as a process, a broker, and the board's own sender between them, for tests."""

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

from needs import unless
from tidegauge.bundles.manifest import Blob, Cause, Inventory, Manifest, StoredFile, StoredTensor
from tidegauge.clocks import Stamp, monotonic
from tidegauge.link import mqtt
from tidegauge.link.commands import chunk_topic, response_topic
from tidegauge.link.config import LinkConfig
from tidegauge.link.sender import Action, Done, Outgoing, Refused, Sender
from tidegauge.link.transfer import FileRef, Publish, SendChunk, SenderLimits
from tidegauge.link.wire import FileResponse, decode
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.tensors import TensorSpec

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
#: Of tests that need a broker.
needs_mosquitto = unless(MOSQUITTO is not None, "mosquitto is not installed")

DEADLINE = 60.0


class Process:
    """A collector process on a data folder that outlives it. `more`: further lines of its configuration."""

    #: What stands for the command `tidegauge`.
    program: tuple[str, ...] = (sys.executable, "-m", "tidegauge")

    def __init__(
        self, folder: Path, broker_port: int, more: str = "", environment: dict[str, str] | None = None
    ) -> None:
        self.folder, self.data = folder, folder / "data"
        self.environment = {**os.environ, **(environment or {})}
        self.config = folder / "collector.toml"
        self.config.write_text(
            f'data = "data"\n{more}\n[http]\nport = 0\n[link]\nport = {broker_port}\n'
            "backoff_first = 0.2\nbackoff_most = 0.5\n"
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        log = (self.folder / "collector.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [*self.program, "collector", "run", "--config", str(self.config)],
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("collector ready: http://127.0.0.1:"), self.log()
        self.url = line.split()[-1]
        assert json.loads((self.data / "collector.json").read_text()) == {"url": self.url}

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(number)
        code = self.process.wait(DEADLINE)
        self.process.stdout.close()
        self.process = None
        return code

    def stop(self) -> None:
        assert self.kill(signal.SIGTERM) == 0, self.log()
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
def mosquitto(folder: Path, port: int = 0) -> Iterator[int]:
    """A broker that keeps nothing; yields its port, 0 takes a free one."""
    if not port:
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
