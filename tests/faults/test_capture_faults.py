"""Captures that hang or are refused: nothing is left behind, the pipeline comes back, reasons are told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from faults.small_board import INFERENCES, SmallBoard, frames_go_on, metrics, wait_for
from tidegauge.bundles.reader import read_manifest
from tidegauge.virtualboard.core import CoreState, Held
from tidegauge.virtualboard.state import BoardState, update, update_core


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    return SmallBoard(tmp_path, virtual=True)


#: Another process that holds TI's runtime, as far as its mapped files tell.
MAP_LIBRARY = (
    "import mmap, sys, time; file = open(sys.argv[1], 'rb');"
    " held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); time.sleep(90)"
)


def without(one: Held, sessions: tuple[Held, ...]) -> tuple[Held, ...]:
    return tuple(held for held in sessions if held != one)


def refused(reason: str) -> str:
    return f'tidegauge_captures_refused_total{{reason="{reason}"}}'


def test_a_traced_run_that_hangs_fails_and_the_pipeline_is_proven_again(board: SmallBoard) -> None:
    config = board.configure(capture={"timeout": 4.0}, runtime={"kill_timeout": 0.5})
    update(board.folder / "vb", trace_op_seconds=0.3)
    with board.remote_log() as server, board.agent(config) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 60, "device runs")
        with board.running(
            "-m", "tidegauge", "agent", "capture", "--state", str(board.state), log="capture.log"
        ) as capture:
            wait_for(lambda: list(board.traces.iterdir()), 60, "a trace being written")
            server.kill()  # from now on every file operation of the C7x waits for ever
            assert capture.wait(90) == 4
        assert "capture failed" in board.log("capture.log")
        assert "gave no answer in 4 s" in board.log("capture.log")
        assert metrics(url)['tidegauge_captures_total{result="failed"}'] == 1
        assert metrics(url)['tidegauge_accelerator_suspect{model="tiny"}'] == 0
        frames_go_on(url)
        assert BoardState.load(board.folder / "vb").trace_write_level == 0
        assert not list(board.traces.iterdir())
        assert not list((board.state / "work").iterdir())


def test_each_refusal_is_named_and_counted(board: SmallBoard) -> None:
    veto, library = board.folder / "veto", board.folder / "libvx_tidl_rt.so"
    library.write_bytes(bytes(4096))
    config = board.configure(capture={"veto_file": str(veto), "room_mib": 100_000_000})

    def ask(reason: str, said: str) -> None:
        done = board.tidegauge("agent", "capture")
        assert done.returncode == 4
        assert said in done.stderr
        wait_for(lambda: metrics(url)[refused(reason)] == 1, 10, "count on a page a second old at most")

    with board.agent(config) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 60, "device runs")
        veto.touch()
        ask("veto", "capture.veto_file")
        veto.unlink()
        ask("space", "capture.room_mib")
    virtual = board.folder / "vb"
    heap_tool = [sys.executable, "-m", "tidegauge", "virtualboard", "heap", str(virtual)]
    config = board.configure(capture={"heap_tool": heap_tool, "per_cause_hour": 2})
    with board.agent(config) as agent:
        url = board.url(agent)
        wait_for(lambda: metrics(url)[INFERENCES] > 3, 60, "device runs")
        ask("no_server", "none is running")
        with board.remote_log():
            with board.running("-c", "import time; time.sleep(90)", board.remote_log_text, log="other.log"):
                ask("several_servers", "2 are running")
            with board.running("-c", MAP_LIBRARY, str(library), log="other.log") as client:
                wait_for(lambda: str(library) in Path(f"/proc/{client.pid}/maps").read_text(), 20, "mapped library")
                ask("other_client", f"pid {client.pid}")
            killed = Held(999, 2**22 + 1, 1, 1 << 20, 150 << 20)  # what a killed process held is lost until the reboot
            update_core(virtual, lambda now: msgspec.structs.replace(now, sessions=(*now.sessions, killed)))
            ask("heap", "MiB free, a traced session takes")
            frames_go_on(url)
            assert CoreState.load(virtual).failed_creates == 0, "nothing was tried"
            update_core(virtual, lambda now: msgspec.structs.replace(now, sessions=without(killed, now.sessions)))
            done = board.tidegauge("agent", "capture")
            assert done.returncode == 0, done.stderr
            ask("rate", "capture.per_cause_hour")
    [bundle] = (board.state / "spool" / "bundles").iterdir()
    manifest = read_manifest(bundle)
    assert manifest.cause.detector == "operator"
    assert {key: manifest.cause.evidence[key] for key in manifest.cause.evidence if key.startswith("traces_")} == {
        "traces_missing": 0.0,
        "traces_truncated": 0.0,
        "traces_unexpected": 0.0,
    }
    state = json.loads((board.state / "state.json").read_text())
    assert sum(state["traces"]["files"].values()) == sum(trace.size for trace in manifest.traces)
