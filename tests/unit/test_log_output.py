"""What reaches the journal or stderr of the lines that the program logs: fields, limits, what was left out or lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge import log_output
from tidegauge.clocks import Monotonic
from tidegauge.journal import Journal
from tidegauge.log_kinds import ALARM_RAISED, LINES_LOST, LINES_SUPPRESSED, WORKER_ENDED, Kind, Value
from tidegauge.log_limit import KINDS, MOST, SECONDS, Limiter
from tidegauge.log_output import Output
from unit.journal_peer import Peer

NAME = "tidegauge.agent.somewhere"
TEXT = logging.Formatter("%(levelname)s %(name)s: %(message)s")


class Bench:
    """An output to a real socket, with a clock that is turned by hand."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.peer = Peer(folder)
        self.output = Output("tidegauge-agent", Journal(self.peer.address), TEXT, lambda: Monotonic(self.now))

    def say(self, form: str, *arguments: object, kind: Kind | None = None, **fields: Value) -> None:
        log = logging.getLogger(NAME)
        extra = None if kind is None else kind.of(**fields)
        self.output.handle(log.makeRecord(NAME, logging.WARNING, "/x/y.py", 7, form, arguments, None, "f", extra))

    def close(self) -> None:
        self.output.close()
        self.peer.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_an_entry_has_the_kind_its_fields_and_where_it_comes_from(bench: Bench) -> None:
    bench.output.always = {"TIDEGAUGE_DEVICE": "cam-1"}
    bench.say(
        "alarm: %s", "black", kind=ALARM_RAISED, alarm="7-loss", detector="loss", verdict="data", severity="warning"
    )
    assert bench.peer.entries() == [
        {
            "MESSAGE": b"alarm: black",
            "PRIORITY": b"4",
            "SYSLOG_IDENTIFIER": b"tidegauge-agent",
            "CODE_FILE": b"/x/y.py",
            "CODE_LINE": b"7",
            "CODE_FUNC": b"f",
            "TIDEGAUGE_PART": NAME.encode(),
            "TIDEGAUGE_DEVICE": b"cam-1",
            "MESSAGE_ID": ALARM_RAISED.id.encode(),
            "TIDEGAUGE_EVENT": b"alarm_raised",
            "TIDEGAUGE_ALARM": b"7-loss",
            "TIDEGAUGE_DETECTOR": b"loss",
            "TIDEGAUGE_VERDICT": b"data",
            "TIDEGAUGE_SEVERITY": b"warning",
        }
    ]


def test_a_line_of_no_kind_has_no_message_id(bench: Bench) -> None:
    bench.say("a path \udc80 and\na second line")
    (entry,) = bench.peer.entries()
    assert "MESSAGE_ID" not in entry
    assert entry["MESSAGE"] == b"a path \\udc80 and\na second line"


def test_the_traceback_of_an_exception_is_in_the_message(bench: Bench) -> None:
    try:
        raise OSError("the disk")
    except OSError as error:
        caught = (OSError, error, error.__traceback__)
    record = logging.LogRecord(NAME, logging.ERROR, "y.py", 1, "failed", (), caught)
    bench.output.handle(record)
    (entry,) = bench.peer.entries()
    assert entry["PRIORITY"] == b"3"
    assert entry["MESSAGE"].startswith(b"failed\nTraceback") and entry["MESSAGE"].endswith(b"OSError: the disk")


def test_what_comes_too_often_is_left_out_and_told(bench: Bench) -> None:
    """Another worker's ends are lines of the same kind, and are told all the same."""
    for number in range(MOST + 5):
        bench.say("camera: end %d", number, kind=WORKER_ENDED, worker="camera", reason="failed")
    bench.say("shadow: end", kind=WORKER_ENDED, worker="shadow", reason="failed")
    assert bench.peer.messages() == [*(f"camera: end {number}" for number in range(MOST)), "shadow: end"]
    assert bench.output.suppressed == 5

    bench.now += SECONDS
    bench.output.tick()
    (entry,) = bench.peer.entries()
    assert entry["MESSAGE"] == f"suppressed 5 like it; the last one: camera: end {MOST + 4}".encode()
    assert entry["MESSAGE_ID"].decode() == LINES_SUPPRESSED.id
    assert (entry["TIDEGAUGE_SUPPRESSED"], entry["TIDEGAUGE_EVENT"]) == (b"5", b"lines_suppressed")
    assert entry["TIDEGAUGE_LIKE"] == b"worker_ended"

    bench.say("camera: once more", kind=WORKER_ENDED, worker="camera", reason="failed")
    assert bench.peer.messages() == ["camera: once more"], "a new window, and nothing is told twice"


def test_what_was_left_out_is_told_at_the_end_of_the_process(bench: Bench) -> None:
    for _ in range(MOST + 1):
        bench.say("again")
    bench.output.close()
    assert bench.peer.messages()[MOST:] == ["suppressed 1 like it; the last one: again"]


def test_lines_that_the_journal_did_not_take_are_counted_and_told(bench: Bench) -> None:
    number = 0
    while not bench.output.lost:
        bench.say(f"line {number}")  # each is of a form of its own, so that no limit holds it
        number += 1
    bench.say("one more")
    assert bench.output.lost == 2
    bench.peer.entries()
    bench.say("there is room")
    first, second = bench.peer.entries()
    assert first["MESSAGE"] == b"there is room"
    assert (second["MESSAGE"], second["TIDEGAUGE_LOST"]) == (b"the journal did not take 2 lines", b"2")
    assert second["MESSAGE_ID"].decode() == LINES_LOST.id


def test_without_a_journal_lines_are_text_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output("tidegauge-agent", None, TEXT)
    output.handle(logging.LogRecord(NAME, logging.WARNING, "y.py", 1, "no link: %s", ("away",), None))
    output.close()
    assert capsys.readouterr().err == f"WARNING {NAME}: no link: away\n"


def test_the_journal_is_used_where_stderr_is_its_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By systemd's own word for it; not where the socket can't be reached, or every line would be lost."""
    peer = Peer(tmp_path)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with (tmp_path / "stderr").open("wb") as file:
        monkeypatch.setattr(log_output, "STDERR", file.fileno())
        found = (tmp_path / "stderr").stat()
        systemd = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        output = log_output.begin("tidegauge-agent", TEXT, systemd, peer.address)
        logging.getLogger(NAME).warning("to the journal")
        assert log_output.installed() is output
        assert peer.messages() == ["to the journal"]
        output.close()
        for environment, address in (({}, peer.address), (systemd, str(tmp_path / "nowhere"))):
            monkeypatch.setattr(logging.getLogger(), "handlers", [])
            other = log_output.begin("tidegauge-agent", TEXT, environment, address)
            assert other.journal is None
            other.close()
    peer.close()


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 40)), max_size=80))
def test_every_line_is_let_through_or_counted(steps: list[tuple[int, float]]) -> None:
    limiter: Limiter[int] = Limiter(-1, most=3)
    now, passed, left_out, came = 0.0, 0, 0, 0
    times: dict[int, list[float]] = {}
    for key, pause in steps:
        now += pause
        left_out += sum(count for _, count in limiter.ended(Monotonic(now)))
        came += 1
        if limiter.lets(key, Monotonic(now)):
            passed += 1
            times.setdefault(key, []).append(now)
    left_out += sum(count for _, count in limiter.ended(Monotonic(now), at_once=True))
    assert passed + left_out == came
    for each in times.values():
        # Two windows may touch each other: never more than twice as many in any stretch as long as one.
        assert all(later - first >= SECONDS for first, later in zip(each, each[6:], strict=False))


def test_the_memory_of_the_limit_is_bounded() -> None:
    limiter: Limiter[int] = Limiter(-1)
    keys = {limiter.key(number) for number in range(KINDS) if limiter.lets(number, Monotonic(0.0))}
    assert len(keys) == KINDS
    assert limiter.key(KINDS + 1) == -1
    assert limiter.key(0) == 0
