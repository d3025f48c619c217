"""One generation of a worker process, as the agent sees it: messages in and out, an orderly end, a forced one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from tidegauge.agent import orphans
from tidegauge.errors import TidegaugeError
from tidegauge.log_kinds import WORKER_KILLED, WORKER_STARTED, WORKER_STUCK
from tidegauge.pipeline.channel import AgentChannel, BadMessage, ChannelClosed
from tidegauge.pipeline.messages import Failed, Stop
from tidegauge.pipeline.spawn import spawn

log = logging.getLogger(__name__)

In = TypeVar("In")
Kind = TypeVar("Kind")

#: Seconds a worker gets to leave by itself, then after SIGTERM. A killed TIDL process leaks, so the first is generous.
LEAVE_SECONDS = 3.0
TERMINATE_SECONDS = 1.5
#: A process that is still there so long after SIGKILL is in an uninterruptible call of a driver (state D).
KILLED_SECONDS = 2.0


class WorkerEnded(Exception):
    """The worker is gone or useless. `kind` for a metric, the sentence for people.

    `failure`: what the worker itself said, where it did. `fault`: what TIDL's logs name, a word of `LogCause`.
    """

    def __init__(self, kind: str, sentence: str, failure: Failed | None = None, fault: str = "") -> None:
        super().__init__(sentence)
        self.kind = kind
        self.failure = failure
        self.fault = fault

    def refuse_start(self, generation: int, kinds: frozenset[str]) -> None:
        """Raise StartRefused when the very first worker failed for a reason that only a person can cure."""
        if generation == 1 and self.failure is not None and self.failure.kind in kinds:
            raise StartRefused(self.failure.problem, self.failure.cure) from self


class StartRefused(TidegaugeError):
    """The configuration names something that can't work: the agent ends rather than tries again for ever."""


class Worker(Generic[In]):
    """A running worker process with its channel."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        channel: AgentChannel[In],
        record: Path | None = None,
        leave: float = LEAVE_SECONDS,
        terminate: float = TERMINATE_SECONDS,
    ) -> None:
        self.name = name
        self._process = process
        self._channel = channel
        self._record = record
        self._leave, self._terminate = leave, terminate
        self._started = orphans.start_time(process.pid)
        self._patience = 0.0

    @classmethod
    async def start(
        cls,
        name: str,
        module: str,
        accepts: Any,
        environment: Mapping[str, str],
        log_folder: Path,
        *,
        leave: float = LEAVE_SECONDS,
        terminate: float = TERMINATE_SECONDS,
    ) -> Worker[In]:
        """Start it, and note its pid beside its log, so that a later agent finds it if this one is killed.

        `leave`, `terminate`: seconds to end after Stop and after SIGTERM.
        """
        process, channel = await spawn(module, accepts, environment=environment, log=log_folder / f"{name}.log")
        said = WORKER_STARTED.of(worker=name, worker_pid=process.pid)
        log.info("%s worker started, pid %d", name, process.pid, extra=said)
        record = log_folder / f"{name}{orphans.SUFFIX}"
        orphans.note(record, process.pid)
        return cls(name, process, channel, record, leave, terminate)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def send(self, message: msgspec.Struct, fd: int | None = None) -> None:
        try:
            await self._channel.send(message, fd)
        except ChannelClosed as error:
            raise await self._ended() from error

    def post(self, message: msgspec.Struct) -> bool:
        """Send it if that takes no waiting; whether it was sent. Whoever receives learns that the worker has gone."""
        try:
            return self._channel.post(message)
        except ChannelClosed:
            return False

    def at_once(self, kind: type[Kind]) -> Kind | None:
        """The next message, where it is there and of this kind. All else, the end too, is left to `receive`."""
        try:
            return self._channel.at_once(kind)
        except ChannelClosed:
            return None

    def rest(self, seconds: float) -> None:
        """Nothing that the worker says in so long wakes anybody: it is asked for by `at_once`."""
        self._channel.rest(seconds)

    def expect(self, seconds: float) -> None:
        """An answer is due in so long: `until` ends with it, and `receive` raises WorkerEnded where none has come."""
        self._patience = seconds
        self._channel.expect(seconds)

    async def until(self, wake: asyncio.Event, asked: Callable[[], bool] = lambda: False) -> None:
        """Wait until `wake` is set; from now on whatever the worker says, and its end, sets it too.

        Raises WorkerEnded where the worker has gone, or has said what nobody `asked` for.
        """
        self._channel.watch(wake.set)
        if not self._channel.waiting:
            await wake.wait()
        if self._channel.waiting and not asked():
            _, fd = await self.receive()
            if fd is not None:
                os.close(fd)
            raise WorkerEnded("failed", f"the {self.name} worker spoke without being asked")

    async def receive(self, timeout: float | None = None) -> tuple[In, int | None]:
        """The next message. Raises WorkerEnded when it says it failed, when it has gone, or after `timeout` seconds."""
        try:
            if not self._channel.waiting:
                self._patience = timeout or 0.0
                self._channel.expect(timeout)
            message, fd = await self._channel.receive()
        except TimeoutError as error:
            raise WorkerEnded("hung", f"the {self.name} worker gave no answer in {self._patience:g} s") from error
        except ChannelClosed as error:
            raise await self._ended() from error
        except BadMessage as error:
            raise WorkerEnded("failed", f"the {self.name} worker is of another version: {error}") from error
        if isinstance(message, Failed):
            sentence = f"{message.problem}: {message.cure}" if message.cure else message.problem
            raise WorkerEnded("failed", sentence, message)
        return message, fd

    async def _ended(self) -> WorkerEnded:
        try:
            code = await asyncio.wait_for(self._process.wait(), TERMINATE_SECONDS)
        except TimeoutError:
            return WorkerEnded("exited", f"the {self.name} worker closed its channel")
        how = f"signal {-code}" if code < 0 else f"code {code}"
        return WorkerEnded("exited", f"the {self.name} worker ended with {how}; see {self.name}.log")

    async def stop(self, *, at_once: bool = False, on_stuck: Callable[[str], None] | None = None) -> str:
        """End the process: by Stop, then SIGTERM, then SIGKILL, each with its deadline; `at_once` starts at SIGTERM.

        Returns when the process is gone: "left", "terminated" or "killed". A process that even SIGKILL doesn't end
        (state D) is waited for, after `on_stuck` was told in a sentence: starting a second one beside it on the same
        accelerator would make things worse.
        """
        how = "left"
        try:
            if self._process.returncode is None and not at_once:
                try:
                    await self._channel.send(Stop())
                    await asyncio.wait_for(self._process.wait(), self._leave)
                except (ChannelClosed, TimeoutError):
                    pass  # it didn't listen: the next step doesn't ask
            if self._process.returncode is None:
                how = "terminated"
                self._signal(self._process.terminate)
                try:
                    await asyncio.wait_for(self._process.wait(), self._terminate)
                except TimeoutError:
                    how = "killed"
                    said = WORKER_KILLED.of(worker=self.name, worker_pid=self.pid)
                    log.warning("%s worker ignored SIGTERM: killing it", self.name, extra=said)
                    self._signal(self._process.kill)
                    await self._killed(on_stuck)
        finally:
            self._channel.close()
        if self._record is not None:
            self._record.unlink(missing_ok=True)
        return how

    async def _killed(self, on_stuck: Callable[[str], None] | None) -> None:
        if not await self._ends(KILLED_SECONDS):
            sentence = (
                f"the {self.name} worker, pid {self.pid}, does not end on SIGKILL: it hangs in a driver (state D);"
                " no new one is started beside it; reboot the board"
            )
            log.error("%s", sentence, extra=WORKER_STUCK.of(worker=self.name, worker_pid=self.pid))
            if on_stuck is not None:
                on_stuck(sentence)
            while not await self._ends(KILLED_SECONDS):
                pass

    async def _ends(self, seconds: float) -> bool:
        """Whether it has ended after so long, as the loop hears it, or as the kernel says."""
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            return self._started is not None and orphans.start_time(self.pid) != self._started
        return True

    @staticmethod
    def _signal(send: Any) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended in this very moment
            send()
