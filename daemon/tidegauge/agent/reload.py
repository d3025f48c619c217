"""A changed `agent.toml` is taken by the running agent: on change, and on SIGHUP (`systemctl reload`).

The new file is validated whole before anything of it is taken; where it is wrong the old settings stay, and log, status
and metrics say so. Which keys wait for a restart is said by name (`config_changes.AT_ONCE` holds the others).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegauge.agent.config import AgentConfig, Loaded, load
from tidegauge.agent.config_changes import differences, taken
from tidegauge.agent.file_watch import settled, signature, wait
from tidegauge.clocks import Wall, wall
from tidegauge.configuration import ConfigurationError
from tidegauge.log_kinds import CONFIG_REFUSED, CONFIG_TAKEN
from tidegauge.metrics import AgentMetrics

log = logging.getLogger(__name__)

#: Seconds between two looks without a hint; that the file must have stayed the same; that are waited for that at most.
PERIOD, QUIET, PATIENCE = 30.0, 0.3, 10.0


class Reload:
    """`run()` for ever. `config`: what the agent runs with; `parts`: what must hear of another one.

    `taken_at`: when it was last read and found right. `problem`: why the file as it is now is not taken, else empty.
    `waiting`: keys whose values in the file wait for a restart.
    """

    def __init__(
        self,
        loaded: Loaded,
        hint: asyncio.Event,
        parts: Sequence[Callable[[AgentConfig], None]],
        metrics: AgentMetrics,
    ) -> None:
        self._loaded, self._hint, self._parts, self._metrics = loaded, hint, tuple(parts), metrics
        self._paths = (loaded.path, loaded.profile_path)
        self._seen = signature(self._paths)
        self._asked = False
        self.config = loaded.config
        self.problem = self.said = ""
        self.waiting: tuple[str, ...] = ()
        self.taken_at: Wall = wall()
        self._say_success()

    @property
    def path(self) -> Path:
        return self._loaded.path

    def ask(self) -> None:
        """Read it now, changed or not (SIGHUP)."""
        self._asked = True
        self._hint.set()

    async def now(self) -> str:
        """Read it now, changed or not. Returns what was taken, in a sentence. Raises ConfigurationError."""
        self._seen = await settled(self._paths, QUIET, PATIENCE)
        loaded = await asyncio.to_thread(load, self.path)
        self._take(loaded, asked=True)
        return self.said

    async def run(self) -> None:
        while True:
            await wait(self._hint, PERIOD)
            # A wrong one is tried again: what it names (an artifacts folder, a key's mode) may be right by now.
            if self._asked or self.problem or signature(self._paths) != self._seen:
                asked, self._asked = self._asked, False
                self._seen = await settled(self._paths, QUIET, PATIENCE)
                await self._reload(asked)

    async def _reload(self, asked: bool) -> None:
        try:
            loaded = await asyncio.to_thread(load, self.path)
        except ConfigurationError as error:
            if asked or str(error) != self.problem:
                log.error("configuration not taken, the old one stays: %s", error, extra=CONFIG_REFUSED.of())
            self.problem = str(error)
            self._metrics.config_successful.set(0)
            return
        self._take(loaded, asked)

    def _take(self, loaded: Loaded, asked: bool) -> None:
        present, before = taken(self.config, loaded.config), self.waiting
        now = differences(self.config, present)
        profile = tuple(f"profile {key}" for key in differences(self._loaded.profile, loaded.profile))
        self.waiting = (*differences(present, loaded.config), *profile)
        for part in self._parts if now else ():
            part(present)
        self.config, self.problem, self.taken_at = present, "", wall()
        self._say_success()
        self.said = sentence(now, self.waiting)
        if now or asked or self.waiting != before:
            log.info("configuration read: %s", sentence(now, self.waiting), extra=CONFIG_TAKEN.of())

    def _say_success(self) -> None:
        self._metrics.config_successful.set(1)
        self._metrics.config_time.set(self.taken_at)
        self._metrics.config_waiting.set(len(self.waiting))


def sentence(now: Sequence[str], waiting: Sequence[str]) -> str:
    """What was taken, and what waits for a restart."""
    parts = [f"taken at once: {', '.join(now)}" if now else "nothing to be taken at once"]
    if waiting:
        parts.append(f"waits for a restart of the agent: {', '.join(waiting)}")
    return "; ".join(parts)
