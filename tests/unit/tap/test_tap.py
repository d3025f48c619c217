"""The tap between an application (in Python and in C) and the worker's side of it, over a real socket and memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import needs
from tidegauge.tap import Tap, wire
from tidegauge.tap.application import Application, ApplicationGone, NoAnswer
from tidegauge.tap.messages import NotPaused, Pause, Paused
from tidegauge.tap.wire import Kind, Session, Tensor
from tidegauge.tap.worker import TapWorker, listen

SHAPE = (1, 3, 2, 2)
SPEC = ("input", SHAPE, "float32"), ("output", SHAPE, "float32")
HERE = Path(__file__).parent
HEADERS = Path(wire.__file__).parent
PATIENCE = 60.0


class Loop:
    """An application that adds one, in a thread; `log` is what its callbacks were asked for."""

    def __init__(self, path: Path, **callbacks: Any) -> None:
        self.log: list[str] = []
        self.tap = Tap(str(path), "loop", **callbacks)
        self.tap.opened([SPEC[0]], [SPEC[1]], runtime="none", provider="CPU", virtual=True)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = np.float32(0)
        while not self._ended.is_set():
            number += np.float32(1)
            tensor = np.full(SHAPE, number, np.float32)
            self.tap.frame([tensor], [tensor + 1], 0.002)
            time.sleep(0.002)

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.tap.disconnect()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with listen(tmp_path / "tap") as sock:
        sock.settimeout(PATIENCE)
        yield sock


def attached(listener: socket.socket) -> Application:
    application = Application(listener.accept()[0])
    deadline = time.monotonic() + PATIENCE
    while application.shared is None and time.monotonic() < deadline:
        application.receive()
    assert application.shared is not None
    return application


def exchange(application: Application) -> None:
    """What any application must do: hand over pairs that belong together, run tensors, pause and come again."""
    assert application.shared is not None
    assert application.shared.session.virtual
    for _ in range(3):
        taken = application.take(PATIENCE)
        assert taken is not None
        assert np.array_equal(taken.inputs["input"] + 1, taken.outputs[0])
        assert taken.seconds == 0.002
        assert abs(taken.captured + 0.002 - time.monotonic()) < PATIENCE
    frames, dropped, seconds = application.counted()
    assert frames >= 3
    assert dropped == 0
    assert seconds == pytest.approx(0.002 * frames)
    application.run_seconds = PATIENCE
    asked = np.arange(12, dtype=np.float32).reshape(SHAPE)
    assert np.array_equal(application.run({"input": asked})["output"], asked + 1)
    assert application.pause(PATIENCE, PATIENCE)
    assert application.shared is None
    assert application.take(0.0) is None
    application.send(Kind.OPEN)
    deadline = time.monotonic() + PATIENCE
    while application.shared is None and time.monotonic() < deadline:
        application.receive()
    assert application.take(PATIENCE) is not None


def test_frames_runs_and_a_pause(listener: socket.socket, tmp_path: Path) -> None:
    said: list[str] = []
    callbacks = {
        "run": lambda inputs: [np.asarray(inputs[0]) + 1],
        "close": lambda: said.append("close"),
        "open": lambda: said.append("open"),
    }
    with Loop(tmp_path / "tap", **callbacks):
        application = attached(listener)
        assert (application.runs, application.pauses) == (True, True)
        exchange(application)
        assert said == ["close", "open"]
        application.close()


def asked_before(listener: socket.socket) -> Application:
    """An application that asks, once it has: it must not open its session before the word comes."""
    application = Application(listener.accept()[0])
    deadline = time.monotonic() + PATIENCE
    said = None
    while said is None and time.monotonic() < deadline:
        said = application.receive()
    assert said is not None
    assert said[0] is Kind.HELLO
    assert said[2] == 60.0, "how long it waits at most"
    assert application.waits
    assert not application.pauses
    return application


def opens(application: Application) -> None:
    deadline = time.monotonic() + PATIENCE
    while application.shared is None and time.monotonic() < deadline:
        application.receive()
    assert application.shared is not None


def test_an_application_asks_before_each_session(listener: socket.socket, tmp_path: Path) -> None:
    tap = Tap(str(tmp_path / "tap"), "restarts")
    words: list[bool] = []

    def sessions() -> None:
        for _ in range(2):
            words.append(tap.before_opening(60.0))
            tap.opened([SPEC[0]], [SPEC[1]])
            tap.closed()

    thread = threading.Thread(target=sessions)
    thread.start()
    application = asked_before(listener)
    for count in (0, 1):
        assert words == [True] * count
        if count:  # it asks again on the same socket
            deadline = time.monotonic() + PATIENCE
            while (said := application.receive()) is None or said[0] is not Kind.HELLO:
                assert time.monotonic() < deadline
            assert said[2] == 60.0
        application.send(Kind.OPEN)
        while words != [True] * (count + 1):
            assert thread.is_alive() or words == [True] * (count + 1)
            time.sleep(0.001)
    thread.join(PATIENCE)
    application.close()
    tap.disconnect()


def test_an_agent_that_comes_later_learns_that_it_asks(listener: socket.socket, tmp_path: Path) -> None:
    listener.setblocking(False)
    tap = Tap(str(tmp_path / "other"), "restarts")
    assert not tap.before_opening(60.0), "nobody is waited for"
    tap.opened([SPEC[0]], [SPEC[1]])
    (tmp_path / "other").symlink_to(tmp_path / "tap")
    tap.poll()
    deadline = time.monotonic() + PATIENCE
    sock = None
    while sock is None:
        assert time.monotonic() < deadline
        tap.poll()
        try:
            sock = listener.accept()[0]
        except BlockingIOError:
            time.sleep(0.01)
    application = Application(sock)
    said = None
    while said is None and time.monotonic() < deadline:
        said = application.receive()
    assert said is not None
    assert said[2] == 0.0, "it has a session, and does not wait"
    assert application.waits
    application.close()
    tap.disconnect()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    compiler = needs.program("gcc", "gcc")
    program = tmp_path / "loop"
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]
    subprocess.run([compiler, *strict, "-I", HEADERS, "-o", program, HERE / "tap_loop.c"], check=True)
    return program


def test_an_application_in_c_asks_before_its_session(listener: socket.socket, tmp_path: Path, program: Path) -> None:
    with subprocess.Popen([program, tmp_path / "tap", "asks"], stdout=subprocess.PIPE, text=True) as process:
        try:
            application = asked_before(listener)
            assert not application.runs
            application.send(Kind.OPEN)
            assert process.stdout is not None
            assert process.stdout.readline() == "may open\n"
            opens(application)
            assert application.take(PATIENCE) is not None
            application.close()
        finally:
            process.kill()


def test_the_header_for_c_says_the_same(listener: socket.socket, tmp_path: Path, program: Path) -> None:
    with subprocess.Popen([program, tmp_path / "tap"], stdout=subprocess.PIPE, text=True) as process:
        try:
            application = attached(listener)
            assert application.name == "loop in C"
            exchange(application)
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["closed\n", "opened\n"]
            application.close()
        finally:
            process.kill()


def test_an_application_without_callbacks_says_what_it_can_not(listener: socket.socket, tmp_path: Path) -> None:
    with Loop(tmp_path / "tap"):
        application = attached(listener)
        assert (application.runs, application.pauses) == (False, False)
        with pytest.raises(NoAnswer, match="runs no tensors"):
            application.run({"input": np.zeros(SHAPE, np.float32)})
        application.close()


def test_another_tensor_than_was_said_is_dropped_and_counted(listener: socket.socket, tmp_path: Path) -> None:
    tap = Tap(str(tmp_path / "tap"), "wrong")
    tap.opened([SPEC[0]], [SPEC[1]])
    application = attached(listener)
    assert application.shared is not None
    application.shared.words[wire.Word.WANTED] = 1
    tap.frame([np.zeros((1, 3, 2, 3), np.float32)], [np.zeros(SHAPE, np.float32)], 0.001)
    assert application.counted()[:2] == (1, 1)
    tap.frame([np.zeros(SHAPE, np.float32)], [np.zeros(SHAPE, np.float32)[..., ::-1]], 0.001)  # not contiguous
    assert application.receive() is not None
    assert application.counted()[:2] == (1, 0)
    tap.disconnect()
    with pytest.raises(ApplicationGone):
        application.receive()
    application.close()


def test_no_agent_costs_no_error_and_is_found_when_it_comes(tmp_path: Path) -> None:
    tap = Tap(str(tmp_path / "tap"), "early")
    assert not tap.before_opening(0.0)
    tap.opened([SPEC[0]], [SPEC[1]])
    tensor = np.zeros(SHAPE, np.float32)
    tap.frame([tensor], [tensor], 0.001)
    with listen(tmp_path / "tap") as listener:
        listener.setblocking(False)
        deadline = time.monotonic() + PATIENCE
        application = None
        while application is None and time.monotonic() < deadline:
            tap.frame([tensor], [tensor], 0.001)
            try:
                application = Application(listener.accept()[0])
            except BlockingIOError:
                time.sleep(0.01)
        assert application is not None
        while application.shared is None and time.monotonic() < deadline:
            application.receive()
        assert application.shared is not None
        application.close()
    tap.disconnect()


def test_a_memory_that_can_shrink_is_refused(listener: socket.socket, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(tmp_path / "tap"))
        application = Application(listener.accept()[0])
        told = Session((Tensor("input", SHAPE, "float32"),), (Tensor("output", SHAPE, "float32"),), "", "", False)
        sock.send(wire.hello("liar", 0))
        fd = os.memfd_create("unsealed")
        os.ftruncate(fd, 1 << 20)
        socket.send_fds(sock, [wire.opened(told)], [fd])
        os.close(fd)
        application.receive()
        with pytest.raises(ApplicationGone, match="not sealed"):
            application.receive()
        application.close()


def test_the_tap_needs_the_standard_library_only() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import tidegauge.tap;"
        " print([n for n in ('numpy', 'msgspec', 'asyncio') if n in sys.modules])"
    )
    root = str(HEADERS.parents[1])
    done = subprocess.run([sys.executable, "-S", "-c", code, root], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Said:
    """Where a worker's answers go."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def send(self, answer: Any, *_: Any) -> None:
        self.answers.append(answer)


def worker_of(tmp_path: Path) -> tuple[TapWorker, Said]:
    """The tap's worker with its own listening socket, which goes on as soon as it is told to."""
    said = Said()
    start: Any = SimpleNamespace(socket=str(tmp_path / "tap"), generation=0)
    channel: Any = said
    aside: Any = None
    worker = TapWorker(start, channel, aside)
    worker._listener.settimeout(PATIENCE)
    return worker, said


def test_a_session_that_is_not_seen_to_close_in_time_refuses_the_capture(tmp_path: Path) -> None:
    """The application's callback hangs: no word, no capture; and the application goes on where it was."""
    let_go = threading.Event()
    log: list[str] = []

    def close() -> None:
        log.append("close")
        let_go.wait(PATIENCE)

    worker, said = worker_of(tmp_path)
    with Loop(tmp_path / "tap", close=close, open=lambda: log.append("open")):
        application = attached(worker._listener)
        worker._application = application
        worker._pause(Pause(0.2, PATIENCE))
        assert said.answers == [NotPaused("the application loop has not closed its session in 0.2 s")]
        assert not worker._paused
        before = application.shared
        assert before is not None, "it counts as open until it has said otherwise"
        let_go.set()
        deadline = time.monotonic() + PATIENCE
        while application.shared in (None, before):
            assert time.monotonic() < deadline
            application.receive()
            time.sleep(0.001)
        assert log == ["close", "open"]
        assert application.take(PATIENCE) is not None, "a session that was closed too late is open again"
        worker.close()


def test_an_application_that_can_not_close_is_not_asked_to(tmp_path: Path) -> None:
    worker, said = worker_of(tmp_path)
    with Loop(tmp_path / "tap"):
        worker._application = attached(worker._listener)
        worker._pause(Pause(PATIENCE, PATIENCE))
        assert said.answers == [NotPaused("the application loop can't close its session for a capture")]
        worker.close()


def test_an_application_whose_session_closed_is_paused_until_it_is_resumed(tmp_path: Path) -> None:
    log: list[str] = []
    worker, said = worker_of(tmp_path)
    with Loop(tmp_path / "tap", close=lambda: log.append("close"), open=lambda: log.append("open")):
        application = attached(worker._listener)
        worker._application = application
        worker._pause(Pause(PATIENCE, PATIENCE))
        assert said.answers == [Paused()]
        assert log == ["close"]
        assert application.shared is None
        worker._resume()
        opens(application)
        assert log == ["close", "open"]
        worker.close()


@pytest.mark.parametrize("fault", ["wrong", "hangs"])
def test_a_tensor_that_is_not_run_costs_its_deadline_and_no_session(
    listener: socket.socket, tmp_path: Path, fault: str
) -> None:
    let_go = threading.Event()

    def run(inputs: Any) -> Any:
        if fault == "wrong":
            return [np.zeros(3, np.float32)]
        let_go.wait(PATIENCE)
        return [np.asarray(inputs[0]) + 1]

    with Loop(tmp_path / "tap", run=run):
        application = attached(listener)
        application.run_seconds = PATIENCE if fault == "wrong" else 0.2
        words = "did not run the agent's tensor: .*gave other outputs" if fault == "wrong" else "tensor in time"
        with pytest.raises(NoAnswer, match=words):
            application.run({"input": np.zeros(SHAPE, np.float32)})
        let_go.set()
        assert application.take(PATIENCE) is not None, "its frames go on"
        application.close()
