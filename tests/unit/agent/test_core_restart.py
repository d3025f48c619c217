"""The remoteproc rung on an emulated sysfs: by exact name, bounded a day, never beside another client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegauge.agent.config import SupervisionConfig
from tidegauge.agent.core_restart import CoreRestart
from tidegauge.agent.state import StateStore
from tidegauge.metrics import AgentMetrics
from tidegauge.virtualboard.core import CoreState
from tidegauge.virtualboard.failures import Failure
from tidegauge.virtualboard.remoteproc import emulated
from tidegauge.virtualboard.state import BoardState, fail, update_core


@pytest.fixture
def board(tmp_path: Path) -> Path:
    folder = tmp_path / "vb"
    BoardState(trace_folder=str(tmp_path)).save(folder)
    return folder


@pytest.fixture
def state(board: Path, tmp_path: Path) -> Iterator[Path]:
    with emulated(board, tmp_path / "sys") as path:
        yield path


class Rung:
    def __init__(self, folder: Path, **settings: Any) -> None:
        config = SupervisionConfig(remoteproc=True, sysfs=str(folder / "sys"), remoteproc_timeout=2.0, **settings)
        self.metrics, self.store = AgentMetrics("m"), StateStore(folder / "state")
        self.core = CoreRestart(config, self.store, self.metrics)

    def attempt(self) -> str:
        return asyncio.run(self.core.attempt("hung"))

    def count(self, result: str) -> float | None:
        return self.metrics.registry.get_sample_value("tidegauge_core_restarts_total", {"result": result})


def test_a_restarted_core_answers_again_and_the_others_were_left_alone(
    board: Path, state: Path, tmp_path: Path
) -> None:
    fail(board, [Failure("hang_in_run"), Failure("slow")])
    update_core(board, lambda _: CoreState(hung="run", leaked_bytes=5))
    others = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "sys").rglob("state")) if path != state}
    rung = Rung(tmp_path)
    assert rung.attempt() == ""
    assert CoreState.load(board).hung == ""
    assert [each.name for each in BoardState.load(board).failures] == ["slow"]
    assert state.read_text().strip() == "running"
    assert {path: path.stat().st_mtime_ns for path in others} == others
    assert rung.count("restarted") == 1
    assert [each.cause for each in rung.store.state.core_restarts] == ["hung"]


def test_the_bound_a_day_survives_a_restart_of_the_agent(state: Path, tmp_path: Path) -> None:
    assert Rung(tmp_path, remoteproc_per_day=1).attempt() == ""
    again = Rung(tmp_path, remoteproc_per_day=1)
    assert "supervision.remoteproc_per_day" in again.attempt()
    assert again.count("refused_bound") == 1


def test_another_client_of_the_core_forbids_it(state: Path, tmp_path: Path) -> None:
    library = tmp_path / "libvx_tidl_rt.so"
    library.write_bytes(bytes(4096))
    code = (
        "import mmap, sys; file = open(sys.argv[1], 'rb');"
        " held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); print(flush=True); sys.stdin.read()"
    )
    client = subprocess.Popen([sys.executable, "-c", code, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert client.stdout is not None
        client.stdout.readline()
        rung = Rung(tmp_path)
        before = state.stat().st_mtime_ns
        assert f"pid {client.pid}" in rung.attempt()
        assert rung.count("refused_client") == 1
        assert state.stat().st_mtime_ns == before, "nothing was written"
    finally:
        client.communicate()


def test_only_the_exact_name_is_a_core(state: Path, tmp_path: Path) -> None:
    rung = Rung(tmp_path, core="7e00")
    assert "key `supervision.core`" in rung.attempt()
    assert rung.count("not_found") == 1


def test_a_core_that_does_not_stop_is_told_in_time(tmp_path: Path) -> None:
    folder = tmp_path / "sys" / "class" / "remoteproc" / "remoteproc0"
    folder.mkdir(parents=True)
    (folder / "name").write_text("7e000000.dsp\n")
    (folder / "state").write_text("running\n")  # nobody obeys
    rung = Rung(tmp_path)
    assert "had no effect in 2 s: it says stop" in rung.attempt()
    assert rung.count("timed_out") == 1


def test_switched_off_it_does_nothing(state: Path, tmp_path: Path) -> None:
    before = state.stat().st_mtime_ns
    config = SupervisionConfig(sysfs=str(tmp_path / "sys"))
    assert not config.remoteproc
    metrics = AgentMetrics("m")
    assert "switched off" in asyncio.run(CoreRestart(config, StateStore(tmp_path / "s"), metrics).attempt("hung"))
    assert state.stat().st_mtime_ns == before
