"""What waits for the link beside bundles: alarms (kept until sent), the newest status, results (worth nothing late)."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegauge.clocks import monotonic
from tidegauge.link.answers import Dropped, Fault
from tidegauge.link.errors import KINDS, LinkError
from tidegauge.link.sender import Refused
from tidegauge.link.wire import AlarmChange, Result, Status
from tidegauge.log_kinds import ANSWER_IGNORED, LINK_DOWN, LINK_REFUSED

#: Changes of alarms that are kept while there is no link. They are few: detectors latch.
MAX_ALARMS = 1000
#: Answers to commands that are kept while there is no link; whoever asked asks again.
MAX_ANSWERS = 100
#: Results that wait for the link's next moment.
MAX_RESULTS = 100


@dataclass(slots=True)
class UplinkState:
    """What the link has done. `publishes` by "ok", "refused", "lost", "dropped" (results without a link, alarms and
    answers beyond what is kept); `failures` by kind, of `errors.KINDS`; `error` and `fault`: the present one and its
    kind, "" while there is none; `denied`: what the broker forbade last, "" for nothing; `bytes_sent`: chunks taken by
    the broker. `heard`: when the broker last answered, None while there is no connection; `patience`: seconds after
    which it counts as gone. `renewal`: what a person must do for the next certificate, "" for nothing.
    `pinned`: whether a collector's key is, so that only what it has signed counts.
    `dropped`: answers that did not count, by `answers.Fault`; `dropped_last`: what was wrong with the last one.
    """

    heard: Callable[[], float] | None = None
    patience: float = 60.0
    last_answer_monotonic: float | None = None
    bundles_sent: int = 0
    bytes_sent: int = 0
    connections: int = 0
    publishes: Counter[str] = field(default_factory=lambda: Counter(ok=0, refused=0, lost=0, dropped=0))
    refused: list[Refused] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(KINDS, 0)))
    error: str = ""
    fault: str = ""
    denied: str = ""
    renewal: str = ""
    pinned: bool = False
    dropped: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(Fault, 0)))
    dropped_last: str = ""

    def works(self) -> None:
        """Connected, and served."""
        self.error = self.fault = ""

    def fails(self, error: LinkError, log: logging.Logger) -> None:
        """No connection, or none any more. One line a change in the log, however often it is tried."""
        self.failures[error.kind] += 1
        if self.error != str(error):
            log.warning("no link: %s", error, extra=LINK_DOWN.of(fault=error.kind))
        self.error, self.fault = str(error), error.kind

    def denies(self, error: LinkError, log: logging.Logger) -> None:
        """The broker serves, but forbids something. One line for each thing."""
        self.failures[error.kind] += 1
        if self.denied != str(error):
            log.error("%s", error, extra=LINK_REFUSED.of(fault=error.kind))
        self.denied = str(error)

    def drops(self, dropped: Dropped, log: logging.Logger) -> None:
        """An answer does not count. One line for each thing; whoever forges many fills no log."""
        self.dropped[dropped.reason] += 1
        said = f"an answer in the collector's name is ignored ({dropped.reason}): {dropped.sentence}"
        if self.dropped_last != said:
            # A late one, or the answer to a `tidegauge check` beside this agent, is nobody's forgery.
            level = logging.INFO if dropped.reason is Fault.STALE else logging.WARNING
            log.log(level, "%s", said, extra=ANSWER_IGNORED.of(reason=dropped.reason.value))
        self.dropped_last = said

    @property
    def broker_age(self) -> float | None:
        """Seconds since the broker last answered anything, None without a connection."""
        return None if self.heard is None else max(0.0, monotonic() - self.heard())

    @property
    def connected(self) -> bool:
        """Whether the broker has answered lately. Not a flag: a connection that stands still is none."""
        age = self.broker_age
        return age is not None and age <= self.patience


class Outbox:
    """Small publications in the order of their urgency."""

    def __init__(self, state: UplinkState) -> None:
        self._state = state
        self.alarms: deque[AlarmChange] = deque()
        self.answers: deque[bytes] = deque()
        self.results: deque[Result] = deque()
        self.status: Status | None = None
        self.status_due = False

    def put_alarm(self, change: AlarmChange) -> None:
        if len(self.alarms) >= MAX_ALARMS:
            self.alarms.popleft()
            self._state.publishes["dropped"] += 1
        self.alarms.append(change)

    def put_answer(self, answer: bytes) -> None:
        if len(self.answers) >= MAX_ANSWERS:
            self.answers.popleft()
            self._state.publishes["dropped"] += 1
        self.answers.append(answer)

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
