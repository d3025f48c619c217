"""Reasons against a capture, with stand-ins for the services: each has its name, and policy comes before the board."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegauge.agent.config import CaptureConfig
from tidegauge.agent.events import AlarmRaised
from tidegauge.agent.limits import Taken
from tidegauge.agent.preconditions import MARGIN, MIB, RESERVE, Preconditions, Refused
from tidegauge.bundles.manifest import Cause
from tidegauge.metrics import Refusal


def alarm(evidence: Any = "a pair") -> AlarmRaised:
    return AlarmRaised("1-1-1-loss", Cause("loss", "accelerator", (), {}, "loss"), evidence)


class Case:
    """Everything in order but what a test changes."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.config = CaptureConfig(trace_folder=str(folder), room_mib=0, **config)
        self.store: Any = SimpleNamespace(state=SimpleNamespace(captures=()), folder=folder)
        self.pipeline: Any = SimpleNamespace(
            suspect=False, ready=object(), stage=SimpleNamespace(name="running"), pids=set, cannot_pause="", held=False
        )
        self.camera = ""

    def refused(self, predicted: int | None = None, raised: AlarmRaised | None = None) -> Refused | None:
        checks = Preconditions(self.config, self.store, self.pipeline, lambda: self.camera)
        try:
            checks.check(raised or alarm(), predicted)
        except Refused as refused:
            return refused
        return None


@pytest.fixture(autouse=True)
def quiet_board(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegauge.board.processes_matching", lambda text: [123])
    monkeypatch.setattr("tidegauge.board.tidl_holders", lambda ours: [])


def reason(refused: Refused | None) -> Refusal:
    assert refused is not None
    return refused.reason


def test_nothing_against_it(tmp_path: Path) -> None:
    assert Case(tmp_path).refused() is None


def test_policy(tmp_path: Path) -> None:
    assert reason(Case(tmp_path, enabled=False).refused()) is Refusal.SWITCHED_OFF
    assert reason(Case(tmp_path).refused(raised=alarm(None))) is Refusal.NO_EVIDENCE
    now = time.localtime()
    hour = f"{now.tm_hour:02d}:00-{(now.tm_hour + 2) % 24:02d}:00"
    assert reason(Case(tmp_path, quiet_hours=hour).refused()) is Refusal.QUIET_HOURS
    case = Case(tmp_path)
    case.store.state.captures = (Taken(time.time(), "loss"),)
    assert reason(case.refused()) is Refusal.RATE


def test_an_unhealthy_camera_or_accelerator(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.camera = "no frames for 9 s"
    refused = case.refused()
    assert reason(refused) is Refusal.CAMERA
    assert "no frames for 9 s" in str(refused)
    for change in ({"suspect": True}, {"ready": None}):
        case = Case(tmp_path)
        vars(case.pipeline).update(change)
        assert reason(case.refused()) is Refusal.ACCELERATOR


def test_room_is_asked_for_by_what_a_capture_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 100 * MIB
    wanted = int(MARGIN * size) + RESERVE
    monkeypatch.setattr("tidegauge.board.free_bytes", lambda folder: wanted)
    assert Case(tmp_path).refused(size) is None
    monkeypatch.setattr("tidegauge.board.free_bytes", lambda folder: wanted - 1)
    refused = Case(tmp_path).refused(size)
    assert reason(refused) is Refusal.SPACE
    assert f"takes {size} bytes" in str(refused)
    assert reason(Case(tmp_path / "nowhere").refused()) is Refusal.TRACE_FOLDER


@pytest.mark.parametrize(("servers", "name"), [([], Refusal.NO_SERVER), ([5, 6], Refusal.SEVERAL_SERVERS)])
def test_exactly_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: list[int], name: Refusal) -> None:
    monkeypatch.setattr("tidegauge.board.processes_matching", lambda text: servers)
    assert reason(Case(tmp_path).refused()) is name


def test_a_session_that_nobody_can_close_is_another_client(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.pipeline.cannot_pause = "the application doorbell, pid 7, holds a TIDL session"
    refused = case.refused()
    assert refused is not None
    assert (refused.reason, str(refused)) == (Refusal.OTHER_CLIENT, case.pipeline.cannot_pause)


def test_another_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegauge.board.tidl_holders", lambda ours: [(77, "gallery.service")])
    refused = Case(tmp_path).refused()
    assert reason(refused) is Refusal.OTHER_CLIENT
    assert "pid 77 (gallery.service)" in str(refused)


TOLD = "CPU: MPU1_0: HEAP:   DDR_SHARED_MEM: size =  180355072 B, free = {free:10d} B ( 50 % unused)"


def heap_of(folder: Path, tool: tuple[str, ...]) -> Refused | None:
    checks = Preconditions(CaptureConfig(heap_tool=tool), Case(folder).store, Case(folder).pipeline, lambda: "")
    try:
        checks.check_heap(folder)
    except Refused as refused:
        return refused
    return None


def test_a_heap_without_room_for_the_trace_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegauge.runtimes.shared_heap.session_bytes", lambda artifacts: 6 * MIB)
    need = 70 * MIB  # the session's own, and 64 MiB for the traces
    assert heap_of(tmp_path, ("echo", TOLD.format(free=need))) is None
    refused = heap_of(tmp_path, ("echo", TOLD.format(free=need - 1)))
    assert reason(refused) is Refusal.HEAP
    assert "69 MiB of 172 MiB free, a traced session takes 70 MiB" in str(refused)


def test_a_heap_that_is_not_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An image without the tool is no reason against a capture; a tool that fails is one."""
    assert heap_of(tmp_path, ()) is None
    caplog.set_level("INFO")
    assert heap_of(tmp_path, (str(tmp_path / "none"),)) is None
    assert "without knowing the free heap" in caplog.text
    assert reason(heap_of(tmp_path, ("echo", "nothing of the kind"))) is Refusal.HEAP
    refused = heap_of(tmp_path, ("sh", "-c", "echo appInit failed >&2; exit 1"))
    assert "appInit failed" in str(refused)
