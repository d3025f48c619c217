from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tidegauge.pipeline import spawn as spawn_module
from tidegauge.pipeline.channel import AgentChannel, ChannelClosed
from tidegauge.pipeline.messages import Failed, PipelineEvent, RunTensor, Stop, TensorDone
from tidegauge.pipeline.spawn import WorkerNotStarted, spawn

DEADLINE = 10.0

# A real worker process around a body without any runtime: it answers RunTensor by the request's number, fails on 13,
# has a bug on 14, and works for a while on 15.
WORKER = """
import ctypes, os, sys, time
from tidegauge.pipeline.messages import PipelineCommand, RunTensor, Stop, TensorDone
from tidegauge.pipeline.process import FailureKind, WorkerFault, run_worker

def body(channel):
    try:
        while True:
            command, fd = channel.receive()
            if isinstance(command, Stop):
                return
            if command.request == 13:
                raise WorkerFault(FailureKind.DEVICE_ERROR, "the run failed", "look at the log")
            if command.request == 14:
                {}["bug"]
            channel.send(TensorDone(command.request, 0.0, os.environ.get("SPICE", ""), ()))
            if command.request == 15:
                until = time.monotonic() + 0.5
                while time.monotonic() < until:
                    time.sleep(0.01)
    finally:
        ctypes.CDLL(None).puts(b"session closed")
        ctypes.CDLL(None).fflush(None)

sys.exit(run_worker(PipelineCommand, body))
"""

Scenario = Callable[[asyncio.subprocess.Process, AgentChannel[Any]], Awaitable[None]]


@pytest.fixture
def module_folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny_worker.py").write_text(WORKER)
    return tmp_path


def python_path(folder: Path) -> str:
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def run(folder: Path, scenario: Scenario, log: Path | int | None = None) -> int:
    async def whole() -> int:
        environment = {"PYTHONPATH": python_path(folder), "SPICE": "cumin"}
        log_file = folder / "worker.log" if log is None else log
        process, channel = await spawn("tiny_worker", PipelineEvent, environment=environment, log=log_file)
        try:
            async with asyncio.timeout(DEADLINE):
                await scenario(process, channel)
                return await process.wait()
        finally:
            channel.close()
            if process.returncode is None:
                process.kill()
                await process.wait()

    return asyncio.run(whole())


async def ask(channel: AgentChannel[Any], request: int) -> Any:
    await channel.send(RunTensor(request, "unused"))
    return (await channel.receive())[0]


def test_a_worker_answers_and_leaves_on_stop(module_folder: Path) -> None:
    async def scenario(process: asyncio.subprocess.Process, channel: AgentChannel[Any]) -> None:
        answer = await ask(channel, 1)
        assert isinstance(answer, TensorDone)
        assert (answer.request, answer.digest) == (1, "cumin")
        await channel.send(Stop())
        with pytest.raises(ChannelClosed):
            await channel.receive()

    assert run(module_folder, scenario) == 0
    assert (module_folder / "worker.log").read_text() == "session closed\n"


def test_the_log_is_appended_to_and_may_be_a_descriptor(module_folder: Path) -> None:
    async def scenario(process: asyncio.subprocess.Process, channel: AgentChannel[Any]) -> None:
        await ask(channel, 1)
        await channel.send(Stop())

    log = module_folder / "worker.log"
    log.write_text("before\n")
    run(module_folder, scenario)
    with log.open("a") as file:
        run(module_folder, scenario, file.fileno())
        file.write("still open\n")
    assert log.read_text() == "before\nsession closed\nsession closed\nstill open\n"


def test_sigint_is_ignored_and_sigterm_leaves_in_order_also_while_waiting(module_folder: Path) -> None:
    async def scenario(process: asyncio.subprocess.Process, channel: AgentChannel[Any]) -> None:
        await ask(channel, 1)
        process.send_signal(signal.SIGINT)
        assert (await ask(channel, 2)).request == 2
        process.terminate()

    assert run(module_folder, scenario) == 0
    assert "session closed" in (module_folder / "worker.log").read_text()


def test_sigterm_lets_what_runs_finish(module_folder: Path) -> None:
    async def scenario(process: asyncio.subprocess.Process, channel: AgentChannel[Any]) -> None:
        await ask(channel, 15)  # it is at work now, in Python code that an exception would tear
        process.terminate()
        process.terminate()

    assert run(module_folder, scenario) == 0
    assert (module_folder / "worker.log").read_text() == "session closed\n"


def test_a_worker_does_not_outlive_the_agents_end_of_the_channel(module_folder: Path) -> None:
    async def scenario(process: asyncio.subprocess.Process, channel: AgentChannel[Any]) -> None:
        await ask(channel, 1)
        channel.close()

    assert run(module_folder, scenario) == 0


def test_a_fault_is_told_in_a_sentence_and_a_bug_leaves_a_traceback(module_folder: Path) -> None:
    async def fault(process: asyncio.subprocess.Process, channel: AgentChannel[Any]) -> None:
        assert await ask(channel, 13) == Failed("device_error", "the run failed", "look at the log")

    assert run(module_folder, fault) == 1
    assert "device_error: the run failed: look at the log" in (module_folder / "worker.log").read_text()

    async def bug(process: asyncio.subprocess.Process, channel: AgentChannel[Any]) -> None:
        with pytest.raises(ChannelClosed):
            await ask(channel, 14)

    assert run(module_folder, bug) == 1
    log = (module_folder / "worker.log").read_text()
    assert "KeyError: 'bug'" in log
    assert "session closed\n" in log


def test_a_message_of_another_version_is_told(module_folder: Path) -> None:
    async def scenario(process: asyncio.subprocess.Process, channel: AgentChannel[Any]) -> None:
        await ask(channel, 1)
        channel._sock.send(b"\x81\xa4type\xa5Bogus")
        answer, _ = await channel.receive()
        assert isinstance(answer, Failed)
        assert answer.kind == "protocol"

    assert run(module_folder, scenario) == 1


# The agent in the middle dies by SIGKILL: its worker must go too, in order. Another process holds a copy of the
# agent's end of the channel, so that only the parent's death can tell.
AGENT = """
import asyncio, os, sys
from pathlib import Path
from tidegauge.pipeline.messages import PipelineEvent, RunTensor
from tidegauge.pipeline.spawn import spawn

async def main():
    folder = Path(sys.argv[1])
    process, channel = await spawn("tiny_worker", PipelineEvent, environment={}, log=folder / "worker.log")
    await channel.send(RunTensor(1, ""))
    await channel.receive()
    os.set_inheritable(channel._sock.fileno(), True)
    keeper = await asyncio.create_subprocess_exec("sleep", "30", close_fds=False, stdout=asyncio.subprocess.DEVNULL)
    print(process.pid, keeper.pid, flush=True)
    await asyncio.sleep(30)

asyncio.run(main())
"""


def test_a_worker_does_not_outlive_a_killed_agent(module_folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path(module_folder)}
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(module_folder)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    worker, keeper = (int(word) for word in agent.stdout.readline().split())
    pidfd = os.pidfd_open(worker)
    try:
        agent.kill()
        agent.wait(DEADLINE)
        asyncio.run(ended(pidfd))
        assert (module_folder / "worker.log").read_text() == "session closed\n"
    finally:
        os.kill(keeper, signal.SIGKILL)
        os.close(pidfd)
        agent.stdout.close()


async def ended(pidfd: int) -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, event.set)
    async with asyncio.timeout(DEADLINE):
        await event.wait()
    asyncio.get_running_loop().remove_reader(pidfd)


def test_what_can_not_be_started_is_said_and_nothing_leaks(
    module_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(log: Path) -> None:
        await spawn("tiny_worker", PipelineEvent, environment={}, log=log)

    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(WorkerNotStarted, match=r"log .*/none/worker\.log can't be opened \(No such file"):
        asyncio.run(start(module_folder / "none" / "worker.log"))
    monkeypatch.setattr(spawn_module.sys, "executable", "/nonexistent/python")
    with pytest.raises(WorkerNotStarted, match="the worker tiny_worker can't be started"):
        asyncio.run(start(module_folder / "worker.log"))
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
