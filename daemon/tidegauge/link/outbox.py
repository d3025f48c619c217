"""What waits for the link beside bundles: alarms (kept until sent), the newest status, results (worth nothing late)."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from tidegauge.link.sender import Refused
from tidegauge.link.wire import AlarmChange, Result, Status

#: Changes of alarms that are kept while there is no link. They are few: detectors latch.
MAX_ALARMS = 1000
#: Results that wait for the link's next moment.
MAX_RESULTS = 100


@dataclass(slots=True)
class UplinkState:
    """What the link has done. `publishes` by "ok", "refused", "lost", "dropped" (results without a link, and alarms
    beyond `MAX_ALARMS`); `error`: the present fault, "" while connected; `bytes_sent`: chunks taken by the broker.
    """

    connected: bool = False
    last_answer_monotonic: float | None = None
    bundles_sent: int = 0
    bytes_sent: int = 0
    connections: int = 0
    publishes: Counter[str] = field(default_factory=lambda: Counter(ok=0, refused=0, lost=0, dropped=0))
    refused: list[Refused] = field(default_factory=list)
    error: str = ""


class Outbox:
    """Small publications in the order of their urgency."""

    def __init__(self, state: UplinkState) -> None:
        self._state = state
        self.alarms: deque[AlarmChange] = deque()
        self.results: deque[Result] = deque()
        self.status: Status | None = None
        self.status_due = False

    def put_alarm(self, change: AlarmChange) -> None:
        if len(self.alarms) >= MAX_ALARMS:
            self.alarms.popleft()
            self._state.publishes["dropped"] += 1
        self.alarms.append(change)

    def put_status(self, status: Status) -> None:
        self.status_due = self.status_due or status != self.status
        self.status = status

    def put_result(self, result: Result) -> None:
        if not self._state.connected or len(self.results) >= MAX_RESULTS:
            self._state.publishes["dropped"] += 1
            return
        self.results.append(result)

    def disconnected(self) -> None:
        """Results are of the moment: those that were not sent are dropped and counted."""
        self._state.publishes["dropped"] += len(self.results)
        self.results.clear()
