"""For the tests of the link: brokers, a bundle of random bytes, and a collector that is no more than a receiver."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from needs import program
from tidegauge.bundles.manifest import Blob, Cause, Inventory, Manifest, StoredTensor, blobs_of
from tidegauge.bundles.writer import BundleWriter
from tidegauge.clocks import stamp
from tidegauge.link import commands, mqtt
from tidegauge.link.answers import sign_response
from tidegauge.link.config import LinkConfig
from tidegauge.link.receiver import Action, Confirm, Discard, Receiver, Respond, Verify, WriteChunk
from tidegauge.link.uplink import Uplink
from tidegauge.link.wire import AlarmChange, FileResponse, Status, decode
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.signing import KeyProvider
from tidegauge.spool.store import Spool
from tidegauge.tensors import TensorSpec

DEVICE = "cam-7"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Mosquitto:
    """A broker process of its own, on a port of its own."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        self.port = free_port()
        self._config = folder / "mosquitto.conf"
        # Started as root, mosquitto would drop to a user that can't read the folders of a test.
        user = "user root\n" if os.geteuid() == 0 else ""
        self._config.write_text(f"{user}listener {self.port} 127.0.0.1\nallow_anonymous true\n{extra}")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        binary = program("mosquitto", "mosquitto")
        self._process = subprocess.Popen([binary, "-c", str(self._config)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("mosquitto did not open its port within 10 s")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None


@asynccontextmanager
async def mosquitto(folder: Path, extra: str = "") -> AsyncIterator[Mosquitto]:
    broker = Mosquitto(folder, extra)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Runs as long as the block does: an uplink, or a peer. That it ends by itself, or does not stop, is a failure."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=30)
        assert task.done(), "it did not stop"
        assert task.cancelled(), f"it ended by itself: {task.exception()!r}"


def running(uplink: Uplink) -> AbstractAsyncContextManager[asyncio.Task[None]]:
    """The board's link to the broker, for as long as the block lasts."""
    return beside(uplink.run())


@asynccontextmanager
async def amqtt_broker() -> AsyncIterator[int]:
    from amqtt.broker import Broker

    port = free_port()
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    broker = Broker({"listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}}, "plugins": plugins})
    await broker.start()
    try:
        yield port
    finally:
        await broker.shutdown()


def link(port: int, **changes: object) -> LinkConfig:
    """Impatient, so that a test doesn't wait for what a board may take its time for."""
    base = LinkConfig(
        port=port,
        chunk_bytes=32 * 1024,
        connect_timeout=5.0,
        publish_timeout=5.0,
        answer_timeout=0.5,
        backoff_first=0.05,
        backoff_most=0.2,
        connect_jitter=0.0,
    )
    return msgspec.structs.replace(base, **changes)


def put_bundle(spool: Spool, bundle_id: str, sizes: tuple[int, ...] = (1_500_000, 1_000_000, 500_000)) -> Manifest:
    """A sealed bundle of incompressible tensors, committed to the spool."""
    rng = Random(bundle_id)
    writer = BundleWriter(spool.prepare(bundle_id, sum(sizes), 100))

    def tensor(name: str, size: int) -> StoredTensor:
        return StoredTensor(TensorSpec(name, (size,), "uint8"), writer.add_bytes(rng.randbytes(size)))

    manifest = Manifest(
        bundle_id=bundle_id,
        device=DEVICE,
        virtual=True,
        created=stamp(),
        cause=Cause("loss", "accelerator", ("scale_error",), {}, "The loss has risen."),
        profile=Profile("enhancer", "onnx", "m.onnx", "a", Preprocess(8, 8), Output("enhanced", "image", 1 / 255)),
        inventory=Inventory({}, "cd" * 32, {}, {}),
        options={},
        benchmark={},
        inputs=tuple(tensor(f"t{number}", size) for number, size in enumerate(sizes)),
        device_outputs=(),
        reference_outputs=(),
        traced_outputs=(),
        tracing_changed_output=False,
        errors=(),
        loss=0.9,
        traces=(),
        logs=(),
        model=None,
        artifacts=(),
    )
    writer.seal(manifest)
    spool.commit(bundle_id)
    return manifest


class TinyCollector:
    """Answers transfers as a collector must. Stored files survive a restart of it, transfers under way don't.

    `key`: signs its answers; None leaves them unsigned.
    """

    def __init__(self, config: LinkConfig, spool: Spool | None = None, key: KeyProvider | None = None) -> None:
        self.stored: dict[str, bytes] = {}
        self.status: list[Status] = []
        self.alarms: list[AlarmChange] = []
        self.order: list[str] = []
        self.chunks = self.written = 0
        self.final: set[str] = set()
        self.changed = asyncio.Event()
        self._kinds: dict[str, str] = {}
        self._config, self._spool, self._key = config, spool, key
        self._connected = asyncio.Event()
        self._receivers: dict[str, Receiver] = {}
        self._bytes: dict[str, bytearray] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._connected.clear()
        self._task = asyncio.create_task(self._run())
        async with asyncio.timeout(10):
            await self._connected.wait()

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task  # and raise what it died of
        self._receivers.clear()
        self._bytes.clear()

    async def until(self, condition: Callable[[], bool], seconds: float = 90) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def _run(self) -> None:
        while True:
            try:
                async with mqtt.connect(self._config, "collector", inbound_limit=64) as connection:
                    await connection.subscribe(f"tidegauge/v1/{DEVICE}/#")
                    self._connected.set()
                    await self._serve(connection)
            except mqtt.LinkError:
                await asyncio.sleep(0.05)

    async def _serve(self, connection: mqtt.Connection) -> None:
        ticking = asyncio.create_task(self._tick(connection))
        try:
            await self._listen(connection)
        finally:
            ticking.cancel()
            await asyncio.wait([ticking])

    async def _tick(self, connection: mqtt.Connection) -> None:
        """A `fin` that came before chunks which never come is answered when its grace is over."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(mqtt.LinkLost):  # whoever listens on it is told too
            while True:
                await asyncio.sleep(0.1)
                for receiver in list(self._receivers.values()):
                    for answer in self._carry_out(receiver, receiver.tick(loop.time()), loop.time()):
                        await connection.publish(commands.response_topic(DEVICE), sign_response(answer, self._key))

    async def _listen(self, connection: mqtt.Connection) -> None:
        loop = asyncio.get_running_loop()
        async for topic, payload in connection.messages():
            leaf = topic.split("/", 3)[3]
            if leaf.startswith("file/"):
                self.order.append("file")
                for answer in self._file(topic, payload, loop.time()):
                    await connection.publish(commands.response_topic(DEVICE), sign_response(answer, self._key))
            elif leaf == "status":
                self.status.append(decode(Status, payload))
            elif leaf == "alarm":
                self.order.append("alarm")
                self.alarms.append(decode(AlarmChange, payload))
            self.changed.set()

    def _file(self, topic: str, payload: bytes, now: float) -> list[FileResponse]:
        where = commands.parse(topic)
        receiver = self._receivers.get(where.file_id)
        if receiver is None:
            receiver = Receiver(where.file_id, stored=where.file_id in self.stored)
            self._receivers[where.file_id] = receiver
        return self._carry_out(receiver, receiver.handle(topic, where.command, payload, now), now)

    def _carry_out(self, receiver: Receiver, todo: list[Action], now: float) -> list[FileResponse]:
        data = self._bytes.setdefault(receiver.file_id, bytearray())
        answers: list[FileResponse] = []
        while todo:
            match todo.pop(0):
                case Respond(response):
                    answers.append(msgspec.structs.replace(response, nonce=receiver.nonce))
                case WriteChunk(at, offset, piece):
                    self.chunks += 1
                    self.written += len(piece)
                    if len(data) < offset + len(piece):
                        data.extend(bytes(offset + len(piece) - len(data)))
                    data[offset : offset + len(piece)] = piece
                    todo[:0] = receiver.written(at, offset, offset + len(piece), now)
                case Verify(sha256, size):
                    ok = len(data) == size and hashlib.sha256(data).hexdigest() == sha256
                    if ok:
                        self.stored[sha256] = bytes(data)
                    todo[:0] = receiver.verified(ok)
                case Confirm(at):
                    todo[:0] = receiver.confirmed(at, self._wanted(receiver))
                case Discard():
                    data.clear()
        return answers

    def _wanted(self, receiver: Receiver) -> tuple[str, ...]:
        if receiver.init is not None:
            self._kinds[receiver.file_id] = receiver.init.user_data["kind"]
        if self._kinds[receiver.file_id] != "manifest":
            return ()
        manifest = msgspec.json.decode(self.stored[receiver.file_id], type=Manifest)
        wanted = tuple(sorted(blobs_of(manifest).keys() - self.stored.keys()))
        if not wanted:
            if self._spool is not None and manifest.bundle_id not in self.final:
                waiting = {entry.id for entry in self._spool.pending()}
                assert manifest.bundle_id in waiting, "the board deleted a bundle before it was called stored"
            self.final.add(manifest.bundle_id)
        return wanted


def assert_whole(collector: TinyCollector, manifest: Manifest) -> None:
    """Every blob is at the collector with its own content."""
    blobs: dict[str, Blob] = blobs_of(manifest)
    assert blobs.keys() <= collector.stored.keys()
    for sha256 in blobs:
        assert hashlib.sha256(collector.stored[sha256]).hexdigest() == sha256


async def poll(condition: Callable[[], bool], seconds: float = 90) -> None:
    """Wait for what nobody signals."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class CertificateAuthority:
    """A CA of its own in `folder`: ca.pem, ca.key, and what it issues as <name>.pem, <name>.key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run("req", "-x509", *self._new_key("ca"), "-subj", "/CN=test CA", "-days", "2", "-out", "ca.pem")

    def issue(self, name: str, common_name: str) -> None:
        self._run("req", *self._new_key(name), "-subj", f"/CN={common_name}", "-out", f"{name}.csr")
        (self._folder / "extensions").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
        self._run("x509", "-req", "-in", f"{name}.csr", *signer, "-days", "2", "-out", f"{name}.pem")

    @staticmethod
    def _new_key(name: str) -> tuple[str, ...]:
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key")

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)
