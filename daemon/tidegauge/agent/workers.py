"""One generation of a worker process, as the agent sees it: messages in and out, an orderly end, a forced one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from tidegauge.errors import TidegaugeError
from tidegauge.pipeline.channel import AgentChannel, BadMessage, ChannelClosed
from tidegauge.pipeline.messages import Failed, Stop
from tidegauge.pipeline.spawn import spawn

log = logging.getLogger(__name__)

In = TypeVar("In")

#: Seconds a worker gets to leave by itself, then after SIGTERM. A killed TIDL process leaks, so the first is generous.
LEAVE_SECONDS = 3.0
TERMINATE_SECONDS = 1.5


class WorkerEnded(Exception):
    """The worker is gone or useless. `kind` for a metric, the sentence for people.

    `failure`: what the worker itself said, where it did.
    """

    def __init__(self, kind: str, sentence: str, failure: Failed | None = None) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.failure = failure

    def refuse_start(self, generation: int, kinds: frozenset[str]) -> None:
        """Raise StartRefused when the very first worker failed for a reason that only a person can cure."""
        if generation == 1 and self.failure is not None and self.failure.kind in kinds:
            raise StartRefused(self.failure.problem, self.failure.cure) from self


class StartRefused(TidegaugeError):
    """The configuration names something that can't work: the agent ends rather than tries again for ever."""


class Worker(Generic[In]):
    """A running worker process with its channel."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, channel: AgentChannel[In]) -> None:
        self.name = name
        self._process = process
        self._channel = channel

    @classmethod
    async def start(
        cls, name: str, module: str, accepts: Any, environment: Mapping[str, str], log_folder: Path
    ) -> Worker[In]:
        process, channel = await spawn(module, accepts, environment=environment, log=log_folder / f"{name}.log")
        log.info("%s worker started, pid %d", name, process.pid)
        return cls(name, process, channel)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def send(self, message: msgspec.Struct, fd: int | None = None) -> None:
        try:
            await self._channel.send(message, fd)
        except ChannelClosed as error:
            raise await self._ended() from error

    async def receive(self, timeout: float | None = None) -> tuple[In, int | None]:
        """The next message. Raises WorkerEnded when it says it failed, when it has gone, or after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                message, fd = await self._channel.receive()
        except TimeoutError as error:
            raise WorkerEnded("hung", f"the {self.name} worker gave no answer in {timeout:g} s") from error
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

    async def stop(self, *, at_once: bool = False) -> None:
        """End the process: by Stop, then SIGTERM, then SIGKILL, each with its deadline; `at_once` starts at SIGTERM.

        Returns when the process is gone. A process that even SIGKILL doesn't end (state D) is waited for: starting a
        second one beside it on the same accelerator would make things worse.
        """
        try:
            if self._process.returncode is None and not at_once:
                try:
                    await self._channel.send(Stop())
                    await asyncio.wait_for(self._process.wait(), LEAVE_SECONDS)
                except (ChannelClosed, TimeoutError):
                    pass  # it didn't listen: the next step doesn't ask
            if self._process.returncode is None:
                self._signal(self._process.terminate)
                try:
                    await asyncio.wait_for(self._process.wait(), TERMINATE_SECONDS)
                except TimeoutError:
                    log.warning("%s worker ignored SIGTERM: killing it", self.name)
                    self._signal(self._process.kill)
                    await self._process.wait()
        finally:
            self._channel.close()

    @staticmethod
    def _signal(send: Any) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended in this very moment
            send()
