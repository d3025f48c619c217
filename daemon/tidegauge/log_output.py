"""Where the lines of the log go: the journal, with their kind and its fields, where that is behind stderr; else text.

A kind that comes too often is left out, and how many were is said (`log_limit`). Nothing waits for the journal.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

from tidegauge.clocks import Monotonic, monotonic
from tidegauge.journal import SOCKET, Journal, Value, is_stream, priority
from tidegauge.log_kinds import LINES_LOST, LINES_SUPPRESSED, PREFIX, Said
from tidegauge.log_limit import Limiter

STDERR = 2
#: What is limited apart: a kind and the one of which it tells; of a line of no kind, where it comes from and its form.
Key = tuple[str, str]
OTHERS: Key = ("", "")
_SENTENCE = logging.Formatter("%(message)s")


class Output(logging.Handler):
    """The root's one handler. `journal` None: on stderr, as `text` lays a line out.

    `always`: fields of every entry of the journal. `suppressed`: lines that were left out.
    """

    def __init__(
        self,
        identifier: str,
        journal: Journal | None,
        text: logging.Formatter,
        clock: Callable[[], Monotonic] = monotonic,
    ) -> None:
        super().__init__()
        self._identifier, self.journal, self._clock = identifier, journal, clock
        self._stderr = logging.StreamHandler()
        self._stderr.setFormatter(text)
        self._limiter: Limiter[Key] = Limiter(OTHERS)
        self._newest: dict[Key, logging.LogRecord] = {}
        self._told = 0
        self.always: dict[str, Value] = {}
        self.suppressed = 0

    @property
    def lost(self) -> int:
        """Lines that the journal did not take at once."""
        return 0 if self.journal is None else self.journal.lost

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        self._tell(now)
        key = self._limiter.key(key_of(record))
        if self._limiter.lets(key, now):
            self._write(record)
        else:
            self.suppressed += 1
            self._newest[key] = record

    def tick(self) -> None:
        """Say what was left out in windows that are over. Every line that comes does it too."""
        self.acquire()
        try:
            self._tell(self._clock())
        finally:
            self.release()

    def close(self) -> None:
        """At the end of the process: what was left out is said all the same."""
        self.acquire()
        try:
            self._tell(self._clock(), at_once=True)
            if self.journal is not None:
                self.journal.close()
        finally:
            self.release()
        super().close()

    def _tell(self, now: Monotonic, *, at_once: bool = False) -> None:
        for key, count in self._limiter.ended(now, at_once=at_once):
            newest = self._newest.pop(key)
            said = LINES_SUPPRESSED.of(suppressed=count, like=key[0])
            self._write(_own("suppressed %d like it; the last one: %s", (count, _text(newest)), said))

    def _write(self, record: logging.LogRecord) -> None:
        if self.journal is None:
            self._stderr.emit(record)
            return
        try:
            fields = self._fields(record)
        except (TypeError, ValueError):  # a line whose parts don't fit its form
            self.handleError(record)
            return
        if self.journal.send(fields) and self.journal.lost > self._told:
            lost, self._told = self.journal.lost - self._told, self.journal.lost
            self.journal.send(
                self._fields(_own("the journal did not take %d lines", (lost,), LINES_LOST.of(lost=lost)))
            )

    def _fields(self, record: logging.LogRecord) -> dict[str, Value]:
        fields: dict[str, Value] = {
            "MESSAGE": _SENTENCE.format(record),
            "PRIORITY": priority(record.levelno),
            "SYSLOG_IDENTIFIER": self._identifier,
            "CODE_FILE": record.pathname,
            "CODE_LINE": record.lineno,
            "CODE_FUNC": record.funcName or "",
            f"{PREFIX}PART": record.name,
            **self.always,
        }
        if (said := _said(record)) is not None:
            fields |= said.kind.identity()
            fields |= {PREFIX + name.upper(): value for name, value in said.fields.items()}
        return fields


def begin(
    identifier: str,
    text: logging.Formatter,
    environment: Mapping[str, str] = os.environ,
    address: str = SOCKET,
) -> Output:
    """Send this process' log where it belongs, from level INFO on.

    Where stderr is the journal's but its socket can't be reached (a service in a root of its own), it stays text.
    """
    reachable = is_stream(STDERR, environment) and os.access(address, os.W_OK)
    output = Output(identifier, Journal(address) if reachable else None, text)
    logging.basicConfig(level=logging.INFO, handlers=[output])
    return output


def installed() -> Output | None:
    """The one that `begin` made."""
    return next((each for each in logging.getLogger().handlers if isinstance(each, Output)), None)


def key_of(record: logging.LogRecord) -> Key:
    said = _said(record)
    if said is None:
        return record.name, str(record.msg)
    return said.kind.word, str(said.fields.get(said.kind.apart, ""))


def _said(record: logging.LogRecord) -> Said | None:
    said = getattr(record, "said", None)
    return said if isinstance(said, Said) else None


def _text(record: logging.LogRecord) -> str:
    return _SENTENCE.format(record)


def _own(form: str, arguments: tuple[object, ...], said: dict[str, Said]) -> logging.LogRecord:
    log = logging.getLogger(__name__)
    return log.makeRecord(__name__, logging.WARNING, __file__, 0, form, arguments, None, None, said)
