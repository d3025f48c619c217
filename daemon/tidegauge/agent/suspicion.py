"""Alarms of detectors that wait for their verdict. Pure: times are arguments.

A verdict needs a golden round that began after the suspicion (one under way may have passed the tensor that is wrong
now), and a pair measured after it, to capture from. A second round concludes without the pair: it may never come.
"""

from __future__ import annotations

from tidegauge.agent.events import GoldenRoundEnded
from tidegauge.clocks import Monotonic
from tidegauge.detectors.alarm import Alarm


class Suspicion:
    def __init__(self) -> None:
        self.suspects: list[Alarm] = []
        self._since: Monotonic | None = None
        self._pair = False
        self._rounds = 0

    def add(self, alarm: Alarm, now: Monotonic) -> bool:
        """False when this detector is under suspicion already."""
        if any(each.detector == alarm.detector for each in self.suspects):
            return False
        self.suspects.append(alarm)
        if self._since is None:
            self._since = now
        return True

    def forced_pair_came(self) -> None:
        self._pair = True

    def round_ended(self, event: GoldenRoundEnded) -> bool:
        """Whether the verdict can be given now."""
        if self._since is None:
            return False
        if event.device or event.reference:
            return True  # a wrong known answer needs no further evidence
        if event.started < self._since:
            return False
        self._rounds += 1
        return self._pair or self._rounds >= 2

    def take(self) -> list[Alarm]:
        suspects, self.suspects = self.suspects, []
        self._since, self._pair, self._rounds = None, False, 0
        return suspects
