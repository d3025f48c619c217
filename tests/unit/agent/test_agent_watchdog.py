"""systemd's notifications on a real datagram socket, and health by progress."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegauge.agent.health import GRACE_SECONDS, STUCK_SECONDS, Health
from tidegauge.agent.notify import Notifier
from tidegauge.agent.stage import Stage
from tidegauge.clocks import Monotonic

NOW = Monotonic(10_000.0)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


def said(manager: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(manager.recv(4096).decode())
        except BlockingIOError:
            return found


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(manager.getsockname()), **more}


class TestNotifier:
    def test_ready_status_and_stopping(self, manager: socket.socket) -> None:
        notifier = Notifier(environment(manager))
        notifier.ready()
        notifier.progress(NOW, True, "running")
        notifier.progress(NOW, True, "running")
        notifier.stopping()
        assert said(manager) == ["READY=1", "STATUS=running", "STOPPING=1"]

    def test_the_watchdog_is_fed_at_a_third_of_its_period_and_only_while_healthy(self, manager: socket.socket) -> None:
        notifier = Notifier(environment(manager, WATCHDOG_USEC="30000000", WATCHDOG_PID=str(os.getpid())))
        assert notifier.period == 10.0
        for second in range(21):
            notifier.progress(Monotonic(NOW + second), True, "running")
        assert said(manager).count("WATCHDOG=1") == 3
        for second in range(21, 60):
            notifier.progress(Monotonic(NOW + second), False, "running")
        assert "WATCHDOG=1" not in said(manager)

    def test_a_watchdog_of_another_process_is_not_fed(self, manager: socket.socket) -> None:
        notifier = Notifier(environment(manager, WATCHDOG_USEC="30000000", WATCHDOG_PID="1"))
        notifier.progress(NOW, True, "running")
        assert said(manager) == ["STATUS=running"]

    def test_an_abstract_socket(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            name = f"tidegauge-test-{os.getpid()}"
            sock.bind("\0" + name)
            sock.setblocking(False)
            Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
            assert sock.recv(100) == b"READY=1"

    def test_without_systemd_and_with_one_that_has_gone_nothing_happens(self, tmp_path: Path) -> None:
        Notifier({}).ready()
        Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


def health(stage: str, **changes: Any) -> Health:
    """Health over stand-ins for the services: it reads a handful of values."""
    facts: dict[str, Any] = {
        "since": 0.0, "seconds": 0.0, "run": 0.0, "frame": 0.0, "began": None, "golden": (1,), "tick": 0.0
    } | changes  # fmt: skip

    def ago(age: float | None) -> float | None:
        return None if age is None else NOW - age

    config: Any = SimpleNamespace(
        camera=SimpleNamespace(read_deadline=5.0),
        runtime=SimpleNamespace(run_timeout=10.0),
        golden=SimpleNamespace(interval=900.0),
    )
    store: Any = SimpleNamespace(state=SimpleNamespace(golden=facts["golden"]))
    camera: Any = SimpleNamespace(last_frame=ago(facts["frame"]))
    pipeline: Any = SimpleNamespace(
        stage=Stage(stage, Monotonic(NOW - facts["since"]), facts["seconds"]), last_run=ago(facts["run"])
    )
    capture: Any = SimpleNamespace(began=ago(facts["began"]), allowed_seconds=60.0)
    made = Health(config, store, camera, pipeline, capture)
    made.ticked = Monotonic(NOW - facts["tick"])
    return made


class TestHealth:
    @pytest.mark.parametrize(
        ("made", "state", "ok"),
        [
            (health("running"), "running", True),
            (health("running", run=15.0 + GRACE_SECONDS + 1), "running", False),
            (health("running", frame=6.0, run=500.0), "no_camera", True),
            (health("running", frame=None, run=910.0 + GRACE_SECONDS + 1), "no_camera", False),
            (health("running", frame=60.0, run=5000.0, golden=()), "no_camera", True),
            (health("paused", began=70.0), "capturing", True),
            (health("paused", began=71.0), "capturing", False),
            (health("backing_off", since=250.0, seconds=300.0), "backing_off", True),
            (health("backing_off", since=311.0, seconds=300.0), "backing_off", False),
            (health("starting", since=100.0, seconds=180.0), "starting", True),
            (health("starting", since=191.0, seconds=180.0), "starting", False),
            (health("stopped", since=1e6, run=1e6, frame=None), "stopped_alarmed", True),
            (health("running", tick=STUCK_SECONDS + 1), "stuck", False),
            (health("stopped", tick=STUCK_SECONDS + 1), "stuck", False),
        ],
    )
    def test_inside_and_outside_of_each_states_deadline(self, made: Health, state: str, ok: bool) -> None:
        verdict = made.judge(NOW)
        assert (verdict.state, verdict.ok) == (state, ok), verdict.sentence
