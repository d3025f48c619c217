"""`make bench-link`: the link beside what client library and broker can do at best, in one run, on the same broker.

Ratios of one run say something on any machine; the megabytes a second are of the one it ran on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, TypeVar

import msgspec
from rich.console import Console

from integration.link_peer import CertificateAuthority, Mosquitto, free_port
from tidegauge.cli.evaluate import show
from tidegauge.evaluation.figures import Figure, Report

sys.path.insert(0, str(Path(__file__).parent))
from link_limits import first_seconds, on_the_wire, stopped_collector, wire_table
from link_programs import Sent, Settings

Value = TypeVar("Value")
PROGRAMS = str(Path(__file__).with_name("link_programs.py"))
MB = 1_000_000
MIB = 1 << 20
RATIO_GOAL, TRAP_GOAL, MEMORY_GOAL, LAG_GOAL, OVERHEAD_GOAL = 0.60, 20.0, 20.0, 50.0, 1.1
RESET_SHARE = 0.3
#: Bytes of page cache touched beforehand, per byte of a bundle: where it is one, the kernel takes others too.
LENT = 4


class Program:
    """A role, started and ready."""

    def __init__(self, role: str, settings: Settings) -> None:
        command = [sys.executable, PROGRAMS, role, msgspec.json.encode(settings).decode()]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        line = self._line()
        if line != b"ready":
            raise RuntimeError(f"{role} said {line!r} instead of ready")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def result(self) -> Sent:
        found = msgspec.json.decode(self._line(), type=Sent)
        self.process.wait(30)
        return found

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def program(role: str, settings: Settings) -> Iterator[Program]:
    started = Program(role, settings)
    try:
        yield started
    finally:
        started.kill()


def lend_pages(settings: Settings) -> None:
    """Use more of the page cache than is about to be written, and free it. On a virtual machine a page costs far more
    at its first touch, and at the first after the host took it back, than ever after: both ways of sending shall write
    to pages that were touched just now.
    """
    scratch, nothing = Path(settings.folder) / "scratch", bytes(MIB)
    with scratch.open("wb") as file:
        for _ in range(LENT * settings.bytes // MIB):
            file.write(nothing)
    scratch.unlink()


def raw(settings: Settings) -> float:
    """Seconds of a raw publisher, through the broker, until the subscriber has synced all."""
    with program("subscriber", settings):
        lend_pages(settings)
        with program("publisher", settings) as publisher:
            return publisher.result().seconds


def raw_alone(settings: Settings) -> float:
    """Of a raw publisher to which nobody listens."""
    with program("publisher", msgspec.structs.replace(settings, wait_for_done=False)) as publisher:
        return publisher.result().seconds


def ours(settings: Settings, board_port: int = 0) -> Sent:
    """Of a bundle from the spool until it is stored and deleted there. The collector has taken a small one before, as
    one that runs has: at its first, each statement to the database is compiled.
    """
    shutil.rmtree(settings.folder, ignore_errors=True)
    Path(settings.folder).mkdir()
    with program("collector", settings):
        with program("board", msgspec.structs.replace(settings, bytes=MIB, bundles=1)) as board:
            board.go()
            board.result()
        boards = msgspec.structs.replace(settings, port=board_port or settings.port)
        with program("board", boards) as board:
            lend_pages(settings)
            board.go()
            return board.result()


class Resetting:
    """A proxy to a broker. Of the connections a share is reset after so many bytes that the board has sent."""

    def __init__(self, target: int, size: int) -> None:
        self.port, self._target, self._size = free_port(), target, size
        self._rng = Random(3)
        self.sent = self.connections = self.resets = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
        async with server:
            yield

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        doomed = self._rng.randrange(self._size) if self._rng.random() < RESET_SHARE else None
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        answers = asyncio.create_task(self._pump(there, writer))
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.sent += len(data)
                passed += len(data)
                back.write(data)
                await back.drain()
                if doomed is not None and passed >= doomed:
                    self.resets += 1
                    break
        answers.cancel()
        for each in (back, writer):
            each.transport.abort()

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()


async def with_resets(settings: Settings) -> tuple[float, Resetting]:
    """Bytes that the board has sent, per byte of its bundles."""
    proxy = Resetting(settings.port, settings.bytes)
    async with proxy.running():
        await asyncio.to_thread(ours, settings, proxy.port)
    return proxy.sent / (settings.bytes * settings.bundles), proxy


def speeds(name: str, settings: Settings, rounds: int) -> list[Figure]:
    """Interleaved, so that whatever else the machine does meets all of them."""
    times: dict[str, list[float]] = {"raw": [], "alone": [], "ours": []}
    for number in range(rounds):
        Path(settings.folder).mkdir(exist_ok=True)
        times["alone"].append(raw_alone(settings))
        times["raw"].append(raw(settings))
        times["ours"].append(ours(settings).seconds)
        print(f"{name}, round {number + 1}: " + ", ".join(f"{k} {v[-1]:.2f} s" for k, v in times.items()), flush=True)
    rate = {key: settings.bytes / MB / median(values) for key, values in times.items()}
    ratios = [theirs / mine for theirs, mine in zip(times["raw"], times["ours"], strict=True)]
    group = f"{name}, {settings.bytes // MIB} MiB in {settings.blobs} blobs, median of {rounds}"
    return [
        Figure(group, "raw publisher alone, to the broker", rate["alone"], "MB/s"),
        Figure(group, "raw publisher → broker → raw subscriber that syncs", rate["raw"], "MB/s"),
        Figure(group, "bundle from the spool until it is stored", rate["ours"], "MB/s"),
        Figure(group, "ratio to raw with a subscriber", median(ratios), "", RATIO_GOAL, ">=", _spread(ratios)),
    ]


def _spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def with_collector(settings: Settings, measured: Callable[[Settings], Coroutine[Any, Any, Value]]) -> Value:
    """With a new and empty collector."""
    shutil.rmtree(settings.folder, ignore_errors=True)
    Path(settings.folder).mkdir()
    with program("collector", settings):
        return asyncio.run(measured(settings))


def stopping(settings: Settings, broker: Mosquitto) -> list[Figure]:
    shutil.rmtree(settings.folder, ignore_errors=True)
    Path(settings.folder).mkdir()
    broker.kill()
    broker.start()  # its memory is what this makes it
    with program("collector", settings) as collector:
        return asyncio.run(stopped_collector(settings, broker.pid, collector.process.pid))


def few_layers(settings: Settings) -> list[Figure]:
    part = msgspec.structs.replace(settings, pull="suspicious")
    whole = [with_collector(settings, lambda each, kind=kind: on_the_wire(each, kind)) for kind in (True, False)]  # type: ignore[misc]
    return wire_table(whole[0], whole[1], with_collector(part, lambda each: on_the_wire(each, False)))


def measure(size: int, rounds: int, large: int, slow: int, seconds: float) -> Report:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="tg-") as temporary:
        folder = Path(temporary)
        CertificateAuthority(folder).issue("broker", "localhost")
        plain = Mosquitto(folder, "set_tcp_nodelay true\nmax_queued_messages 1000\nsys_interval 1\n")
        secure_folder = folder / "secure"
        secure_folder.mkdir()
        files = f"cafile {folder}/ca.pem\ncertfile {folder}/broker.pem\nkeyfile {folder}/broker.key\n"
        secure = Mosquitto(secure_folder, f"{files}set_tcp_nodelay true\n")
        for broker in (plain, secure):
            broker.start()
        try:
            without = Settings(plain.port, str(folder / "work"), size)
            with_tls = Settings(secure.port, str(folder / "work"), size, ca=str(folder / "ca.pem"))
            for name, settings in (("TLS off", without), ("TLS on", with_tls)):
                figures += speeds(name, settings, rounds)
                figures += speeds(name, msgspec.structs.replace(settings, bytes=large), rounds)
            trap = ours(msgspec.structs.replace(with_tls, window=1))
            figures.append(
                Figure("TLS, window of one chunk", "bundle", size / MB / trap.seconds, "MB/s", TRAP_GOAL, ">=")
            )
            print("a large bundle", flush=True)
            sent = ours(msgspec.structs.replace(without, bytes=large))
            group = f"a bundle of {large // MIB} MiB"
            figures += [
                Figure(group, "agent's extra resident memory", sent.extra_bytes / MB, "MB", MEMORY_GOAL, "<="),
                Figure(group, "lag of the event loop while sending, p99", sent.lag_p99 * 1e3, "ms", LAG_GOAL, "<="),
                Figure(
                    group, "lag while it is written and hashed, p99", sent.lag_hashing_p99 * 1e3, "ms", LAG_GOAL, "<="
                ),
            ]
            print("with resets", flush=True)
            overhead, proxy = asyncio.run(with_resets(msgspec.structs.replace(without, bytes=20 * MIB, bundles=12)))
            figures.append(
                Figure(
                    f"{RESET_SHARE:.0%} of connections reset, bundles of 20 MiB",
                    "bytes sent per byte of the bundles",
                    overhead,
                    "×",
                    OVERHEAD_GOAL,
                    "<=",
                    f"{proxy.resets} of {proxy.connections} connections",
                )
            )
            print("a collector that stops", flush=True)
            figures += stopping(without, plain)
            print("few layers of many", flush=True)
            figures += few_layers(without)
            print("a slow link", flush=True)
            figures += with_collector(
                msgspec.structs.replace(without, bytes=slow, blobs=20), lambda each: first_seconds(each, seconds)
            )
        finally:
            plain.kill()
            secure.kill()
    return Report(3, False, figures, [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=64, help="MiB of a small bundle")
    parser.add_argument("--large", type=int, default=300, help="MiB of a large one, as a capture of all layers is")
    parser.add_argument("--slow", type=int, default=100, help="MiB of the one over the slow link")
    parser.add_argument("--seconds", type=float, default=60.0, help="that are looked at of it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    report = measure(options.size * MIB, options.rounds, options.large * MIB, options.slow * MIB, options.seconds)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    show(Console(width=None if sys.stdout.isatty() else 140), report)
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
