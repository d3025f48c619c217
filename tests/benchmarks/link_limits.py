"""Measurements of `bench_link.py` that have a limit, not a speed: a collector that stops, a slow link, few layers."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import xxhash
from link_programs import DEVICE, Settings, make, sources
from numpy.typing import NDArray

from integration.link_peer import beside, running
from integration.slow_link import SlowLink
from tidegauge.bundles.fingerprint import fingerprint
from tidegauge.bundles.manifest import Trace
from tidegauge.bundles.writer import BundleWriter
from tidegauge.clocks import stamp
from tidegauge.evaluation.durability_history import PLAIN
from tidegauge.evaluation.figures import Figure
from tidegauge.link import mqtt
from tidegauge.link.command_wire import ANSWER, COMMAND
from tidegauge.link.uplink import Uplink
from tidegauge.link.wire import AlarmChange, topic
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.store import Spool

MB, MIB = 1_000_000, 1 << 20
#: Bytes a second of 1 Mbit/s.
SLOW = 125_000.0
ANSWER_GOAL, ALARM_GOAL = 2.0, 1.0
#: Seconds without a byte after which a stopped transfer is one.
STALLED = 8.0
#: What a packet takes beside its payload, bytes: topic and header, to the end of a page.
PACKET_PAGE = 4096
LAYERS, SUSPICIOUS, SHAPE = 120, 60, (16, 60, 80)


def new_spool(settings: Settings) -> Spool:
    folder = Path(settings.folder) / "spool"
    shutil.rmtree(folder, ignore_errors=True)
    return Spool(folder, SpoolLimits(max_mib=4096, headroom_mib=0, headroom_files=0))


async def until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 # nobody signals it
            await asyncio.sleep(0.02)


# --- a collector that stops reading ---


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class BrokerHeap:
    """What mosquitto says of its own heap each second (`sys_interval 1`): exact, where resident bytes are also what its
    allocator has kept of messages that are gone.
    """

    def __init__(self) -> None:
        self.current, self.maximum, self.told = 0, 0, 0

    async def listen(self, connection: mqtt.Connection) -> None:
        async for at, payload in connection.messages():
            setattr(self, at.rpartition("/")[2], int(payload))
            self.told += 1


async def stopped_collector(settings: Settings, broker: int, collector: int) -> list[Figure]:
    """The board goes on while the collector's process stands still. `broker`, `collector`: process ids."""
    spool, heap = new_spool(settings), BrokerHeap()
    uplink = Uplink(settings.link(), DEVICE, spool, 1)
    async with mqtt.connect(settings.link(), "operator") as operator, beside(heap.listen(operator)), running(uplink):
        await operator.subscribe("$SYS/broker/heap/+")
        await until(lambda: uplink.state.connected)
        told = heap.told
        await until(lambda: heap.told > told, 10.0)
        idle, idle_resident, peak, peak_resident = heap.current, resident(broker), 0, 0
        make(spool, "bundle-stopped", settings, sources(settings))
        uplink.wake()
        await until(lambda: uplink.state.bytes_sent > settings.bytes // 8)
        os.kill(collector, signal.SIGSTOP)
        told = heap.told
        try:
            began = uplink.state.bytes_sent
            moved = time.monotonic()
            last = began
            while time.monotonic() - moved < STALLED:
                await asyncio.sleep(0.02)
                peak = max(peak, heap.current if heap.told > told else 0)
                peak_resident = max(peak_resident, resident(broker))
                if uplink.state.bytes_sent != last:
                    last, moved = uplink.state.bytes_sent, time.monotonic()
        finally:
            os.kill(collector, signal.SIGCONT)
        peak = max(peak, heap.current)  # it tells of changes only
        await until(lambda: not spool.pending())
    window = settings.window * settings.chunk
    packets = settings.window * (settings.chunk + PACKET_PAGE)
    group = "a collector that stops reading"
    note = "by its own account; limit: the credit window, in whole packets"
    return [
        Figure(group, "growth of the broker's heap", (peak - idle) / MB, "MB", packets / MB, "<=", note),
        Figure(group, "its largest ever, of copies that last a moment too", (heap.maximum - idle) / MB, "MB"),
        Figure(group, "growth of its resident bytes", max(0, peak_resident - idle_resident) / MB, "MB"),
        Figure(group, "sent after it stopped", (last - began) / MB, "MB", window / MB, "<="),
    ]


# --- the first minute over a slow link ---


async def first_seconds(settings: Settings, seconds: float, every: float = 3.0) -> list[Figure]:
    """How long small things take behind a bundle on a link of 1 Mbit/s: the longest of each kind."""
    spool, answers, alarms = new_spool(settings), list[float](), list[float]()
    make(spool, "bundle-slow", settings, sources(settings))
    slow = SlowLink(settings.port, SLOW)
    async with slow.running(), mqtt.connect(settings.link(), "operator") as operator:
        uplink = Uplink(msgspec.structs.replace(settings.link(), port=slow.port), DEVICE, spool, 1)
        uplink.on_command = uplink.publish_answer
        heard: dict[str, asyncio.Future[float]] = {}
        listening = asyncio.create_task(_hear(operator, heard))
        for leaf in (ANSWER, "alarm"):
            await operator.subscribe(topic(DEVICE, leaf))
        async with running(uplink):
            await until(lambda: uplink.state.connections > 0)
            began, number = time.monotonic(), 0
            while time.monotonic() - began < seconds:
                number += 1
                answers.append(await _round(heard, "answer", lambda: operator.publish(topic(DEVICE, COMMAND), b"x")))
                alarms.append(await _round(heard, "alarm", _publisher(uplink, number)))
                await asyncio.sleep(max(0.0, began + number * every - time.monotonic()))
            sent, spent = uplink.state.bytes_sent, time.monotonic() - began
        listening.cancel()
    group = f"first {seconds:.0f} s of a bundle of {settings.bytes // MIB} MiB over 1 Mbit/s"
    return [
        Figure(group, "longest until a command's answer", max(answers), "s", ANSWER_GOAL, "<=", f"of {len(answers)}"),
        Figure(group, "longest until an alarm", max(alarms), "s", ALARM_GOAL, "<=", f"of {len(alarms)}"),
        Figure(group, "share of the link that the bundle got", sent / (SLOW * spent)),
    ]


def _publisher(uplink: Uplink, number: int):  # type: ignore[no-untyped-def]
    change = AlarmChange(f"a-{number}", True, "loss", "accelerator", ("band",), "loss is high", 1.0, "boot", 2.0)

    async def publish() -> None:
        uplink.publish_alarm(change)

    return publish


async def _round(heard: dict[str, asyncio.Future[float]], kind: str, do) -> float:  # type: ignore[no-untyped-def]
    heard[kind] = asyncio.get_running_loop().create_future()
    began = time.monotonic()
    await do()
    async with asyncio.timeout(120):
        return await heard[kind] - began


async def _hear(connection: mqtt.Connection, heard: dict[str, asyncio.Future[float]]) -> None:
    async for at, _ in connection.messages():
        waiting = heard.get("alarm" if at.endswith("alarm") else "answer")
        if waiting is not None and not waiting.done():
            waiting.set_result(time.monotonic())


# --- manifest first ---


def layer(rng: np.random.Generator) -> NDArray[np.float32]:
    """A feature map as a network leaves one: a spectrum that falls with frequency, half of it cut off at zero."""
    _, height, width = SHAPE
    spectrum = np.fft.rfft2(rng.standard_normal(SHAPE))
    falls = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    field = np.fft.irfft2(spectrum / np.maximum(falls, 1.0 / width), s=(height, width))
    return np.maximum(field, 0).astype(np.float32)


def make_traced(spool: Spool, bundle: str, as_float: bool) -> None:
    """A bundle of 120 layers, the 61st cut off at the end of its range: int8 codes and zstd, or raw float32."""
    rng = np.random.default_rng(7)
    writer = BundleWriter(spool.prepare(bundle, LAYERS * 4 * int(np.prod(SHAPE)) + MIB, LAYERS + 16))
    traces = []
    for number in range(LAYERS):
        field = layer(rng)
        top = float(field.max()) / (4.0 if number == SUSPICIOUS else 1.0)
        codes = np.clip(np.rint(field * (127 / top)), -128, 127).astype(np.int8)
        array: NDArray[np.float32] | NDArray[np.int8] = field if as_float else codes
        data = array.tobytes()
        blob = writer.add_bytes(data, "raw" if as_float else "zstd")
        file = f"tidl_trace_subgraph_0_{number:04d}{'_float.bin' if as_float else '.y'}"
        traces.append(
            Trace(
                file,
                "subgraph_0",
                number,
                "float" if as_float else "y",
                (1, 1, 1, *SHAPE),
                str(array.dtype),
                len(data),
                hashlib.sha256(data).hexdigest(),
                xxhash.xxh3_128_hexdigest(data),
                fingerprint(codes),
                blob,
            )
        )
    manifest = msgspec.structs.replace(PLAIN, bundle_id=bundle, device=DEVICE, created=stamp(), traces=tuple(traces))
    writer.seal(manifest)
    spool.commit(bundle)


async def on_the_wire(settings: Settings, as_float: bool) -> int:
    """Bytes that the board sends until the collector has all that it wants of it."""
    spool = new_spool(settings)
    make_traced(spool, "bundle-traced", as_float)
    link = SlowLink(settings.port)
    async with link.running():
        uplink = Uplink(msgspec.structs.replace(settings.link(), port=link.port), DEVICE, spool, 1)
        async with running(uplink):
            await until(lambda: not spool.pending())
            return link.sent


def wire_table(whole_float: int, whole: int, part: int) -> list[Figure]:
    group = f"manifest first, a bundle of {LAYERS} layers of {'×'.join(map(str, SHAPE))} with one suspicious: sent"
    return [
        Figure(group, "all layers, float32", whole_float / MB, "MB"),
        Figure(group, "all layers, int8 and zstd", whole / MB, "MB", note=f"{whole_float / whole:.1f} times less"),
        Figure(group, "the suspicious one and its neighbours", part / MB, "MB", note=f"{whole / part:.0f} times less"),
    ]
