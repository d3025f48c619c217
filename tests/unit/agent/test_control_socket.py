"""The control socket with a fake operator behind it; the audit log; workers that will not die; the state's lock."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegauge.agent import orphans
from tidegauge.agent.app import lock
from tidegauge.agent.commands import AuditEntry, AuditLog
from tidegauge.agent.control import CommandRefused, ControlServer, ask
from tidegauge.agent.control_messages import SOCKET, VERSION, Answer, ClearAlarms, Rebaseline, Request
from tidegauge.agent.workers import Worker
from tidegauge.errors import TidegaugeError


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 # other processes set no event of this loop
            await asyncio.sleep(0.01)


class FakeOperator:
    """Notes who asked for what; refuses a rebaseline."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def carry_out(self, command: Any, who: str) -> str:
        self.asked.append((type(command).__name__, who))
        if isinstance(command, Rebaseline):
            raise TidegaugeError("no new acceptance: band", "cure the device")
        return "done"


class FakeObserver:
    def report(self) -> None:
        return None


async def serving(folder: Path, operator: FakeOperator, *calls: Any) -> list[Any]:
    """Answers (or errors) to blocking calls made while a server runs."""
    server: Any = ControlServer(folder, operator, FakeObserver())  # type: ignore[arg-type]
    task = asyncio.create_task(server.run())
    await until((folder / SOCKET).exists)
    await asyncio.sleep(0.05)
    found = await asyncio.gather(*(asyncio.to_thread(call) for call in calls), return_exceptions=True)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return found


def raw(folder: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        fd = os.open(folder, os.O_PATH)
        try:
            sock.connect(f"/proc/self/fd/{fd}/{SOCKET}")
        finally:
            os.close(fd)
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        return sock.recv(1 << 16)


class TestControl:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Longer than an address of a Unix socket may be."""
        folder = tmp_path / ("x" * 120)
        folder.mkdir()
        return folder

    def test_a_command_its_answer_and_who_asked(self, folder: Path) -> None:
        operator = FakeOperator()
        mode: list[int] = []

        def look() -> Answer:
            mode.append(stat.S_IMODE((folder / SOCKET).stat().st_mode))
            return ask(folder, ClearAlarms())

        [answer, refused] = asyncio.run(serving(folder, operator, look, lambda: ask(folder, Rebaseline())))
        assert (answer.ok, answer.sentence, mode) == (True, "done", [0o600])
        assert ("ClearAlarms", f"uid {os.getuid()}, pid {os.getpid()}") in operator.asked
        assert isinstance(refused, CommandRefused)
        assert str(refused) == "no new acceptance: band: cure the device"
        assert refused.exit_code == 4
        assert not (folder / SOCKET).exists()

    def test_another_version_and_rubbish_are_answered_in_words(self, folder: Path) -> None:
        newer = msgspec.json.encode({"version": VERSION + 1, "command": {"type": "Dance"}}) + b"\n"
        unknown = msgspec.json.encode({"version": VERSION, "command": {"type": "Dance"}}) + b"\n"
        operator = FakeOperator()
        answers = asyncio.run(
            serving(
                folder,
                operator,
                lambda: raw(folder, newer),
                lambda: raw(folder, unknown),
                lambda: raw(folder, b"\xff\x00{\n"),
                lambda: raw(folder, b"x" * 200_000),
            )
        )
        told = [msgspec.json.decode(answer, type=Answer) for answer in answers[:3]]
        assert [answer.ok for answer in told] == [False] * 3
        assert f"version {VERSION + 1}" in told[0].sentence
        assert answers[3] == b"" or isinstance(answers[3], ConnectionError)
        assert operator.asked == []

    def test_no_agent_is_said_with_its_folder(self, folder: Path) -> None:
        with pytest.raises(TidegaugeError, match="no agent runs with the state folder"):
            ask(folder, ClearAlarms())
        with pytest.raises(TidegaugeError, match="no agent runs"):
            ask(folder / "nowhere", ClearAlarms())
        with socket.socket(socket.AF_UNIX) as dead:  # left by an agent that was killed
            os.chdir(folder)
            dead.bind(SOCKET)
        with pytest.raises(TidegaugeError, match="no agent runs"):
            ask(folder, ClearAlarms())
        found = asyncio.run(serving(folder, FakeOperator(), lambda: ask(folder, ClearAlarms())))
        assert found[0].ok, "the leftover is replaced"

    def test_an_agent_that_does_not_answer(self, folder: Path) -> None:
        with socket.socket(socket.AF_UNIX) as silent:
            os.chdir(folder)
            silent.bind(SOCKET)
            silent.listen()
            with pytest.raises(TidegaugeError, match="no answer within 0 s"):
                ask(folder, ClearAlarms(), timeout=0.2)

    @pytest.fixture(autouse=True)
    def stay(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)

    def test_requests_round_trip(self) -> None:
        request = Request(VERSION, Rebaseline())
        assert msgspec.json.decode(msgspec.json.encode(request), type=Request) == request


def test_the_audit_log_keeps_every_line(tmp_path: Path) -> None:
    for outcome in ("first", "second\nline"):
        AuditLog(tmp_path).add("uid 0, pid 1", "ClearAlarms", True, outcome)
    lines = (tmp_path / "audit.log").read_bytes().splitlines()
    entries = [msgspec.json.decode(line, type=AuditEntry) for line in lines]
    assert [entry.outcome for entry in entries] == ["first", "second\nline"]


def test_one_agent_owns_a_state_folder(tmp_path: Path) -> None:
    held = lock(tmp_path)
    with pytest.raises(TidegaugeError, match="another agent runs with the state folder"):
        lock(tmp_path)
    os.close(held)
    os.close(lock(tmp_path))


class FakeUnkillable:
    """A process in state D: signals are taken, it doesn't end until `release`."""

    pid = 4_000_000
    returncode: int | None = None

    def __init__(self) -> None:
        self.signals: list[str] = []
        self.gone = asyncio.Event()

    def terminate(self) -> None:
        self.signals.append("TERM")

    def kill(self) -> None:
        self.signals.append("KILL")

    async def wait(self) -> int:
        await self.gone.wait()
        self.returncode = -9
        return -9


def test_a_worker_that_survives_sigkill_is_waited_for_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegauge.agent.workers.KILLED_SECONDS", 0.05)

    async def story() -> None:
        process: Any = FakeUnkillable()

        class Channel:
            def close(self) -> None:
                pass

        channel: Any = Channel()
        worker: Worker[Any] = Worker("pipeline", process, channel, None, 0.05, 0.05)
        told: list[str] = []
        stopping = asyncio.create_task(worker.stop(at_once=True, on_stuck=told.append))
        await until(lambda: bool(told))
        assert process.signals == ["TERM", "KILL"]
        assert "state D" in told[0]
        await asyncio.sleep(0.05)
        assert not stopping.done(), "no new generation while the old process exists"
        process.gone.set()
        assert await stopping == "killed"

    asyncio.run(story())


def test_a_dead_worker_of_which_the_loop_never_hears_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's word counts where the event loop has missed a child's end."""
    monkeypatch.setattr("tidegauge.agent.workers.KILLED_SECONDS", 0.05)

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    async def story() -> None:
        process: Any = FakeUnkillable()  # its `wait` never returns
        process.pid, process.kill = child.pid, child.kill

        class Channel:
            def close(self) -> None:
                pass

        channel: Any = Channel()
        worker: Worker[Any] = Worker("shadow", process, channel, None, 0.05, 0.05)
        async with asyncio.timeout(10):
            assert await worker.stop(at_once=True) == "killed"

    try:
        asyncio.run(story())
    finally:
        child.kill()
        child.wait(10)


def never(sentence: str) -> None:
    pytest.fail(sentence)


class TestOrphans:
    def test_a_worker_of_a_killed_agent_is_ended(self, tmp_path: Path) -> None:
        command = (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"
        )
        with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            orphans.note(tmp_path / "pipeline.pid", process.pid)
            assert [pid for _, pid in orphans.live(tmp_path)] == [process.pid]
            reaper = asyncio.run(self._end(tmp_path, process))
        assert reaper == 1
        assert not list(tmp_path.glob("*.pid"))

    async def _end(self, folder: Path, process: subprocess.Popen[bytes]) -> int:
        ending = asyncio.create_task(orphans.end_all(folder, never))
        await until(lambda: process.poll() is not None)  # its parent, this test, must take it from the process table
        return await ending

    def test_another_process_with_the_same_pid_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "camera.pid").write_text(f"{os.getpid()} 1")
        (tmp_path / "shadow.pid").write_text("rubbish")
        assert asyncio.run(orphans.end_all(tmp_path, never)) == 0
        assert not list(tmp_path.glob("*.pid"))
