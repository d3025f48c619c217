"""The rung between a new worker and giving up: the C7x is stopped and started through the kernel's remoteproc.

Switched off by default, and never run on a real board: TI documents no recovery of a hung C7x short of a reboot, a
restart while sessions exist is undefined, and stopping one of the R5F cores is told to hang the SoC. So it is only done
by the exact name of the core, while no process holds a session, a few times a day (docs/supervision.md).
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from tidegauge import board
from tidegauge.agent.config import SupervisionConfig
from tidegauge.agent.limits import Taken, forget_old
from tidegauge.agent.state import StateStore
from tidegauge.clocks import wall
from tidegauge.log_kinds import CORE_NOT_RESTARTED, CORE_RESTARTED
from tidegauge.metrics import AgentMetrics

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
#: A core in one of these has something to stop (Documentation/staging/remoteproc.rst; sysfs-class-remoteproc).
UP = frozenset({"running", "attached", "crashed", "suspended"})
#: The kernel blocks the writer until the core has stopped: the shell may hang, the agent must not.
_WRITE = 'printf %s "$1" > "$2"'


class NotRestarted(Exception):
    """The core was not restarted; the text says why, `result` is a label of `metrics.CORE_RESTARTS`."""

    def __init__(self, result: str, sentence: str) -> None:
        super().__init__(sentence)
        self.result = result


class CoreRestart:
    """`attempt` once for each time that the ladder would give up a core which may have hung."""

    def __init__(self, config: SupervisionConfig, store: StateStore, metrics: AgentMetrics) -> None:
        self._config, self._store, self._metrics = config, store, metrics

    @property
    def seconds(self) -> float:
        """How long an attempt may take."""
        return 2 * self._config.remoteproc_timeout

    async def attempt(self, reason: str) -> str:
        """Restart the core, for `reason` of `metrics.RESTART_REASONS`. Returns why it was not, empty where it was."""
        if not self._config.remoteproc:
            return "this is switched off (key `supervision.remoteproc`)"
        try:
            await self._restart(reason)
        except NotRestarted as error:
            log.warning("the C7x was not restarted: %s", error, extra=CORE_NOT_RESTARTED.of(reason=error.result))
            self._metrics.core_restarts.labels(error.result).inc()
            return str(error)
        self._metrics.core_restarts.labels("restarted").inc()
        log.warning(
            "the C7x was restarted through remoteproc, after: %s", reason, extra=CORE_RESTARTED.of(reason=reason)
        )
        return ""

    async def _restart(self, reason: str) -> None:
        config = self._config
        past = forget_old(self._store.state.core_restarts, wall())
        if len(past) >= config.remoteproc_per_day:
            sentence = f"it was restarted {len(past)} times in 24 hours (key `supervision.remoteproc_per_day`)"
            raise NotRestarted("refused_bound", sentence)
        others = await asyncio.to_thread(board.tidl_holders, set())
        if others:
            named = ", ".join(f"pid {pid} ({unit})" for pid, unit in others)
            raise NotRestarted("refused_client", f"other processes hold a TIDL session: {named}")
        state = self._find()
        # Noted before it is done: a restart that takes the board down must not be repeated at each boot.
        self._store.update(core_restarts=(*past, Taken(wall(), reason)))
        if _read(state) in UP:
            await self._bring(state, "stop", frozenset({"offline"}))
        await self._bring(state, "start", frozenset({"running", "attached"}))

    def _find(self) -> Path:
        """The `state` file of the core with exactly the configured name."""
        folder = Path(self._config.sysfs) / "class" / "remoteproc"
        found = [path for path in sorted(folder.glob("remoteproc*")) if _read(path / "name") == self._config.core]
        if len(found) != 1:
            what = f"{len(found)} remote processors in {folder} have the name {self._config.core}"
            raise NotRestarted("not_found", f"{what} (key `supervision.core`)")
        return found[0] / "state"

    async def _bring(self, state: Path, word: str, wanted: frozenset[str]) -> None:
        """Write a word, and wait for what must come of it. Raises NotRestarted."""
        try:
            async with asyncio.timeout(self._config.remoteproc_timeout):
                await self._write(state, word)
                while _read(state) not in wanted:  # noqa: ASYNC110 # sysfs sets no event
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            said = _read(state) or "nothing"
            seconds = self._config.remoteproc_timeout
            raise NotRestarted(
                "timed_out", f"`{word}` written to {state} had no effect in {seconds:g} s: it says {said}"
            ) from error

    async def _write(self, state: Path, word: str) -> None:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", _WRITE, "sh", word, str(state), stderr=asyncio.subprocess.PIPE
        )
        try:
            _, said = await process.communicate()
        except asyncio.CancelledError:
            if process.returncode is None:
                process.kill()  # one that blocks in the kernel ends when the kernel lets it
            raise
        if process.returncode != 0:
            why = said.decode(errors="replace").strip() or f"code {process.returncode}"
            raise NotRestarted("failed", f"`{word}` can't be written to {state}: {why}")


def _read(path: Path) -> str:
    """The kernel's word, empty where the file can't be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
