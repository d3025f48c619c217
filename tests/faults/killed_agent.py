"""An agent that kills itself with SIGKILL at one step of a capture: `python killed_agent.py CONFIG STEP`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tidegauge.agent.app import Agent, log_to_stderr
from tidegauge.agent.config import load
from tidegauge.agent.events import CaptureStep


async def run(config: Path, step: str) -> None:
    agent = Agent(load(config))
    loop = asyncio.get_running_loop()

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def at(event: CaptureStep) -> None:
        if event.step == step:
            loop.call_later(0.3, kill)  # in the midst of the step, not before it

    agent.bus.on(CaptureStep, at)
    await agent.run(asyncio.Event())


if __name__ == "__main__":
    log_to_stderr()
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
