"""What to do when a generation of the pipeline worker has ended. Pure: times and the day's count are arguments.

A hang leaves the C7x suspect: whatever is sent to a hung one hangs too, so exactly one new generation is tried, and it
counts only with a completed device run. A session that can't be created leaks C7x memory at each try, so tries are few
and far between. Then nothing is sent any more (DESIGN §3; facts of TI's tivx_alg_vision.c, SDK 11.1).
"""

from __future__ import annotations

import msgspec

from tidegauge.agent.backoff import Backoff
from tidegauge.agent.config import SupervisionConfig
from tidegauge.clocks import Monotonic


class Retry(msgspec.Struct, frozen=True):
    """Start a new generation after `delay` seconds."""

    delay: float


class GiveUp(msgspec.Struct, frozen=True):
    """Send nothing to the accelerator any more; `sentence` says why. `core`: a restart of the core may help first."""

    sentence: str
    core: bool = False


class Ladder:
    def __init__(self, config: SupervisionConfig) -> None:
        self._config = config
        self.forgive()

    def forgive(self) -> None:
        """A person says: try again from the start."""
        config = self._config
        self.suspect = False
        self.failed_creates = 0
        self._proven = False
        self._core_restarted = False
        self._after_run = Backoff(config.restart_first, config.restart_most, config.healthy)
        self._after_create = Backoff(config.create_first, config.create_most, config.healthy)

    def proven(self, now: Monotonic) -> None:
        """The present generation has completed a device run."""
        self.suspect = False
        self.failed_creates = 0
        self._core_restarted = False
        self._proven = True
        self._after_run.started(now)
        self._after_create.started(now)

    def hung(self) -> None:
        """A run hung outside the pipeline's own generations (a traced one): the C7x is suspect."""
        self.suspect = True

    def core_restarted(self) -> None:
        """The core was stopped and started: exactly one new generation is tried, as after a hang."""
        self.suspect = True
        self.failed_creates = 0
        self._core_restarted = True

    def paused(self) -> None:
        """The present generation was stopped in order."""
        self._proven = False

    def ended(self, hung: bool, now: Monotonic, today: int, offloaded: bool = True) -> Retry | GiveUp:
        """A generation has ended, in order or not; `today`: how many have been replaced in 24 hours, this included.

        `offloaded` False: the CPU ran the model, which no restart of the core changes.
        """
        proven, self._proven = self._proven, False
        was_suspect = self.suspect
        self.suspect = was_suspect or hung
        if was_suspect and not proven:
            how = "its core was restarted" if self._core_restarted else "the accelerator hung"
            return GiveUp(f"{how}, and a new worker did not get it to complete a run", not self._core_restarted)
        if not proven:
            self.failed_creates += 1
        if self.failed_creates >= self._config.failed_creates:
            return GiveUp(f"{self.failed_creates} tries running to open a session have failed", offloaded)
        if today >= self._config.restarts_per_day:
            return GiveUp(f"{today} workers had to be replaced in 24 hours (key `supervision.restarts_per_day`)")
        backoff = self._after_run if proven else self._after_create
        return Retry(backoff.delay(now))
