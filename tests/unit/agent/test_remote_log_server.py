"""The remote-log server as the agent's child: heard through a pty, one at a time, none anew during a capture."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegauge.agent import orphans
from tidegauge.agent.config import CaptureConfig, RemoteLogConfig, read
from tidegauge.agent.remote_log import FILE, RemoteLogServer
from tidegauge.configuration import ConfigurationError
from tidegauge.metrics import AgentMetrics

#: Prints what a file holds, whether it writes to a terminal, and then waits: output is not flushed by the program.
SERVER = (
    "import pathlib, sys, time; print(sys.stdout.isatty());"
    " print(pathlib.Path(sys.argv[2]).read_text()); time.sleep(60)"
)
SAID = "[C7x_1 ]    12.000000 s: FWRITE : File not open\n[C7x_1 ]    12.100000 s: hello"
SECONDS = 20.0


class Kept:
    """A server's parts in a folder, with what it is to say and a capture that may be under way."""

    def __init__(self, folder: Path) -> None:
        self.busy = False
        self.stuck: list[str] = []
        self.logs = folder / "logs"
        self.logs.mkdir()
        (folder / "said").write_text(SAID)
        self.mark = f"own-remote-log-{folder.name}-{os.getpid()}"
        command = (sys.executable, "-c", SERVER, self.mark, str(folder / "said"))
        self.metrics = AgentMetrics("m")
        self.server = self.made(command)

    def made(self, command: tuple[str, ...]) -> RemoteLogServer:
        config = RemoteLogConfig(command=command, settle=0.0, restart_first=0.05, restart_most=0.1)
        return RemoteLogServer(config, self.mark, lambda: self.busy, self.stuck.append, self.metrics, self.logs)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"tidegauge_{name}", labels)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


async def until(condition: Callable[[], Any], what: str) -> None:
    async def poll() -> None:
        while not condition():  # noqa: ASYNC110 # another process sets no event
            await asyncio.sleep(0.02)

    try:
        await asyncio.wait_for(poll(), SECONDS)
    except TimeoutError:
        raise AssertionError(f"no {what}") from None


def alive(pid: int) -> bool:
    return orphans.start_time(pid) is not None


def test_its_lines_are_heard_kept_and_named(kept: Kept) -> None:
    async def run() -> int:
        async with kept.server.supervised():
            await until(lambda: len(kept.server.lines) >= 3, "three lines")
            assert kept.server.pid is not None
            return kept.server.pid

    pid = asyncio.run(run())
    assert list(kept.server.lines) == ["True", *SAID.splitlines()], "a terminal, and no carriage returns"
    assert (kept.logs / FILE).read_text() == f"True\n{SAID}\n"
    assert kept.value("remote_log_faults_total", fault="trace_file") == 1
    assert not alive(pid), "it ends with the agent"
    assert not list(kept.logs.glob("*.pid"))
    assert kept.stuck == []


def test_one_that_ends_is_started_again_but_not_during_a_capture(kept: Kept) -> None:
    async def run() -> None:
        server = kept.server
        async with server.supervised():
            first = server.pid
            assert first is not None
            kept.busy = True
            os.kill(first, signal.SIGKILL)
            await until(lambda: server.pid is None, "noticed end")
            await asyncio.sleep(0.6)  # several pauses long: nothing may start in them
            assert (server.pid, server.generation) == (None, 1)
            assert "signal 9" in server.problem
            kept.busy = False
            await until(lambda: server.pid not in (None, first), "second server")
            assert (server.generation, server.problem) == (2, "")

    asyncio.run(run())
    assert kept.value("worker_restarts_total", worker="remote_log", reason="exited") == 1


def test_none_is_started_beside_another_and_its_own_follows_when_that_has_gone(kept: Kept) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", kept.mark])

    async def run() -> None:
        server = kept.server
        async with server.supervised():
            assert (server.pid, server.generation) == (None, 0)
            assert f"pids [{other.pid}]" in server.problem
            other.kill()
            await asyncio.to_thread(other.wait)
            await until(lambda: server.pid, "own server")

    try:
        asyncio.run(run())
    finally:
        other.kill()
        other.wait()


def test_a_command_that_cannot_be_started_is_named_and_the_agent_goes_on(kept: Kept) -> None:
    async def run() -> None:
        server = kept.made(("/nowhere/vx_app_arm_remote_log.out",))
        async with server.supervised():
            assert "key `remote_log.command`" in server.problem

    asyncio.run(run())


def test_one_left_by_a_killed_agent_is_found_by_its_record(kept: Kept) -> None:
    async def run() -> None:
        server = kept.server
        async with server.supervised():
            await until(lambda: server.lines, "its first line")
            pid = server.pid
            assert pid is not None
            assert [found for _, found in orphans.live(kept.logs)] == [pid]

    asyncio.run(run())


class TestConfiguration:
    def file(self, folder: Path, **tables: Any) -> Path:
        settings = {
            "device": "d",
            "state": "state",
            "profile": "p.toml",
            "camera": {"kind": "folder", "source": "."},
            "link": {},
            **tables,
        }
        profile = {
            "name": "m",
            "runtime": "onnx",
            "model": "m.onnx",
            "artifacts": "a",
            "preprocess": {"width": 32, "height": 24},
            "output": {"name": "o", "kind": "image", "step": 0.1},
        }
        (folder / "p.toml").write_bytes(msgspec.toml.encode(profile))
        path = folder / "agent.toml"
        path.write_bytes(msgspec.toml.encode(settings))
        return path

    def test_captures_read_what_the_agent_has_heard(self, tmp_path: Path) -> None:
        loaded = read(self.file(tmp_path, remote_log={"command": ["/usr/bin/vx_app_arm_remote_log.out"]}))
        assert loaded.config.capture.remote_log_file == str(tmp_path / "state" / "logs" / FILE)

    def test_a_command_that_a_capture_would_not_know(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"remote_log\.command.*capture\.remote_log"):
            read(self.file(tmp_path, remote_log={"command": ["/bin/other"]}))

    def test_two_files_for_one_log(self, tmp_path: Path) -> None:
        tables = {
            "remote_log": {"command": ["vx_app_arm_remote_log.out"]},
            "capture": {"remote_log_file": "/var/log/c7x"},
        }
        with pytest.raises(ConfigurationError, match=r"capture\.remote_log_file"):
            read(self.file(tmp_path, **tables))

    def test_without_a_command_nothing_changes(self, tmp_path: Path) -> None:
        assert read(self.file(tmp_path)).config.capture == CaptureConfig()
