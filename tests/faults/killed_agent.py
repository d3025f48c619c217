"""An agent that kills itself with SIGKILL at one step of a capture: `python killed_agent.py CONFIG STEP`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tidegauge.agent.app import Agent, begin_log
from tidegauge.agent.config import load
from tidegauge.agent.events import CaptureStep
from tidegauge.bundles.writer import BundleWriter


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_blob(count: int) -> None:
    """When so many of the bundle's blobs are written."""
    add, left = BundleWriter.add_file, iter(range(count))

    def counting(self: BundleWriter, path: Path, *given: Any, **more: Any) -> Any:
        if next(left, None) is None:
            kill()
        return add(self, path, *given, **more)

    BundleWriter.add_file = counting  # type: ignore[method-assign] # a death at a chosen place


async def run(config: Path, step: str) -> None:
    agent = Agent(load(config))
    loop = asyncio.get_running_loop()

    def at(event: CaptureStep) -> None:
        if event.step == step:
            if step == "bundling":  # on an idle machine it is over in less than any pause
                kill_at_blob(20)
            else:
                loop.call_later(0.3, kill)  # in the midst of the step, not before it

    agent.bus.on(CaptureStep, at)
    await agent.run(asyncio.Event())


if __name__ == "__main__":
    begin_log()
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
