"""Months of an agent's life in an hour: state changes, reconnects and replaced workers, and nothing of it may grow.

A real agent on the virtual board, with a real broker. What happens to it is what happens to boards: workers are killed,
the link connects anew after a changed configuration, an operator clears alarms, which writes state and audit log.
Memory, descriptors, threads and shared memory of the agent are read after each round.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from tidegauge.demo.broker import broker
from tidegauge.evaluation.budget import ACCEPTANCE_SECONDS, ACCEPTED
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.evaluation.process_costs import Costs, children, costs
from tidegauge.evaluation.small_board import INFERENCES, SmallBoard, metrics, wait_for
from tidegauge.ram_folder import RamFolder

#: Of an hour; less time does its share of each.
STATE_CHANGES, RECONNECTS, REPLACED = 10_000, 1_000, 500
ROUNDS_A_MINUTE = 4
#: What the median of the last third may be above that of the first third after the warm-up.
MEMORY_GOAL, FEW = 3.0, 2.0
MIB = 1 << 20
PATIENCE = 120.0
WORKERS = ("camera", "shadow", "camera", "pipeline")
CONNECTED = "tidegauge_mqtt_connected"

Progress = Callable[[str], None]


class Round(msgspec.Struct, frozen=True):
    """The agent after a round, and how much of named shared memory is its own."""

    agent: Costs
    segments: int


def evaluate(minutes: float, progress: Progress) -> Report:
    """Raises TimeoutError where the agent doesn't come back from what was done to it."""
    with tempfile.TemporaryDirectory(prefix="tidegauge-soak-") as folder:
        return asyncio.run(_evaluate(Path(folder), minutes, progress))


async def _evaluate(folder: Path, minutes: float, progress: Progress) -> Report:
    logs = folder / "logs"
    logs.mkdir()
    async with broker(folder, logs) as (port, _):
        return await asyncio.to_thread(_soak, folder / "board", port, minutes, progress)


def _soak(folder: Path, port: int, minutes: float, progress: Progress) -> Report:
    folder.mkdir()
    board = SmallBoard(folder)
    board.build()
    done: Counter[str] = Counter()
    rounds: list[Round] = []
    count = max(6, round(minutes * ROUNDS_A_MINUTE))
    began = time.monotonic()
    config = _configure(board, port, 0)
    with board.agent(config) as agent:
        url = board.url(agent)
        # An acceptance keeps its samples: what must not grow is what watches for months after it.
        wait_for(lambda: metrics(url)[ACCEPTED] == 1, ACCEPTANCE_SECONDS, "accepted reference")
        for number in range(1, count + 1):
            _round(board, agent.pid, url, port, number, count, minutes / 60, done)
            _settled(board, agent.pid, url)
            private = RamFolder(board.state).path  # others of this machine are none of this agent's
            rounds.append(Round(costs(agent.pid), len(list(private.parent.glob(f"{private.name}*")))))
            last = rounds[-1].agent
            progress(
                f"round {number} of {count}: {last.resident / MIB:.1f} MiB, {last.descriptors} descriptors, "
                f"{last.threads} threads"
            )
        alive = agent.poll() is None
    return Report(0, minutes < 60, _figures(rounds, done, alive, (time.monotonic() - began) / 60), [])


def _configure(board: SmallBoard, port: int, number: int) -> Path:
    link = {"port": port, "keepalive": 30 + number % 2, "backoff_first": 0.05, "backoff_most": 0.2}
    return board.configure(
        link=link,
        supervision={"restarts_per_day": 1_000_000, "restart_first": 0.05, "restart_most": 0.1},
        shadow={"gap_mean": 1.0, "gap_floor": 0.1},
        acceptance={"samples": 20},
        contexts={"samples": 16},
    )


def _round(
    board: SmallBoard, pid: int, url: str, port: int, number: int, count: int, hours: float, done: Counter[str]
) -> None:
    """This round's share of everything."""

    def due(what: str, whole: int) -> int:
        return round(whole * hours * number / count) - done[what]

    for _ in range(due("reconnects", RECONNECTS)):
        done["reconnects"] += 1
        _reconnect(board, port, done["reconnects"])
    for _ in range(due("replaced workers", REPLACED)):
        worker = WORKERS[done["replaced workers"] % len(WORKERS)]
        done["replaced workers"] += 1
        _replace(pid, worker)
    for _ in range(due("state changes", STATE_CHANGES)):
        done["state changes"] += 1
        _clear(board)


def _reconnect(board: SmallBoard, port: int, number: int) -> None:
    """Another keep-alive in agent.toml: the link connects anew. The log tells of so many a minute only."""
    before = _connections(port)
    _configure(board, port, number)
    wait_for(lambda: _connections(port) - before, PATIENCE, "another connection")


def _connections(port: int) -> set[str]:
    """Local ends of the connections to a port of this machine that are established, as /proc/net/tcp has them."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {local for _, local, remote, state, *_ in lines if remote.endswith(f":{port:04X}") and state == "01"}


def _replace(pid: int, worker: str) -> None:
    """Kill a worker, and wait for the next."""
    old = _worker(pid, worker)
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: _worker(pid, worker) not in (0, old), PATIENCE, f"new {worker} worker")


def _clear(board: SmallBoard) -> None:
    """`tidegauge alarm clear`, without a new interpreter for each: one line to the control socket, one back."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        fd = os.open(board.state, os.O_PATH | os.O_DIRECTORY)
        try:
            sock.connect(f"/proc/self/fd/{fd}/control.socket")
        finally:
            os.close(fd)
        sock.sendall(b'{"version":1,"command":{"type":"ClearAlarms"}}\n')
        answer = b""
        while part := sock.recv(1 << 16):
            answer += part
    if b'"ok":true' not in answer:
        raise TimeoutError(f"the agent refused to clear its alarms: {answer[:200]!r}")


def _settled(board: SmallBoard, pid: int, url: str) -> None:
    """All workers are there, frames are run, the link is up."""
    runs = metrics(url)[INFERENCES]
    wait_for(lambda: all(_worker(pid, name) for name in set(WORKERS)), PATIENCE, "three workers")
    wait_for(lambda: metrics(url)[INFERENCES] > runs, PATIENCE, "device runs")
    wait_for(lambda: metrics(url)[CONNECTED] == 1, PATIENCE, "a connection to the broker")


def _worker(pid: int, name: str) -> int:
    """Process id of a worker of this agent, 0 while there is none."""
    return next((child for child, line in children(pid).items() if f"tidegauge.{name}.worker" in line), 0)


def _figures(rounds: Sequence[Round], done: Counter[str], alive: bool, minutes: float) -> list[Figure]:
    group = "nothing grows"
    agents = [each.agent for each in rounds]
    return [
        *(Figure("what was done", name, count) for name, count in done.items()),
        Figure("what was done", "time", minutes, "min"),
        Figure("what was done", "the same agent to the end", float(alive), "", 1.0),
        Figure(group, "resident memory", growth([each.resident / MIB for each in agents]), "MiB", MEMORY_GOAL, "<="),
        Figure(group, "descriptors", growth([each.descriptors for each in agents]), "", FEW, "<="),
        Figure(group, "threads", growth([each.threads for each in agents]), "", FEW, "<="),
        Figure(group, "mappings of shared memory", growth([each.shared for each in agents]), "", FEW, "<="),
        Figure(group, "named shared memory", growth([each.segments for each in rounds]), "", 0.0, "<="),
    ]


def growth(values: Sequence[float]) -> float:
    """The median of the last third less that of the first third, without the first fifth, in which things warm up."""
    warm = values[len(values) // 5 :]
    third = max(1, len(warm) // 3)
    return median(warm[-third:]) - median(warm[:third])
