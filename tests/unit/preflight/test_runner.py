"""A check that hangs, aborts, exits or raises is a failed check with that reason, and blocks nobody."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Result
from tidegauge.preflight.runner import run_all, run_one

HEAD = """
import os, signal, sys
from tidegauge.preflight.probe import Probe, failed, ok
def run(context):
    {body}
PROBE = Probe("{name}", "misbehaves", "test", "{place}", run, {needs}, lambda context: {seconds})
"""
BODIES = {
    "hang": "os.write(2, b'opening the C7x\\n'); signal.pause()",
    "abort": "os.write(1, b'libtidl_onnxrt_EP.so: not found\\n'); os.abort()",
    "leave": "os._exit(255)",
    "error": "import no_such_package",
    "chatter": "os.write(1, b'APP: Init\\n'); print('hello'); return ok('fine')",
    "unwell": "return failed('bad', 'cure')",
}


@pytest.fixture
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, body in BODIES.items():
        seconds = 2.0 if name == "hang" else 60.0
        write(tmp_path, name, body, seconds=seconds)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def write(folder: Path, name: str, body: str, *, place: str = "anywhere", needs: bool = False, seconds: float) -> None:
    text = HEAD.format(name=name, body=body, place=place, needs=needs, seconds=seconds)
    (folder / f"probe_{name}.py").write_text(text)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("abort", ("SIGABRT", "libtidl_onnxrt_EP.so: not found")),
        ("leave", ("code 255",)),
        ("error", ("code 1", "No module named 'no_such_package'")),
        ("unwell", ("bad",)),
    ],
)
def test_a_dead_check_is_failed_with_its_last_line(probes: Path, name: str, words: tuple[str, ...]) -> None:
    result = run_one(f"probe_{name}", Context())
    assert result.status == "failed"
    assert result.cure
    for word in words:
        assert word in result.found


def test_what_libraries_print_is_no_answer(probes: Path) -> None:
    result = run_one("probe_chatter", Context())
    assert (result.status, result.found) == ("ok", "fine")
    assert result.seconds > 0


def test_a_hanging_check_ends_at_its_deadline_and_the_others_answer_in_order(probes: Path) -> None:
    started = time.monotonic()
    results: list[Result] = list(run_all(["probe_hang", "probe_chatter", "probe_unwell"], Context()))
    assert [result.id for result in results] == ["hang", "chatter", "unwell"]
    assert results[0].status == "failed"
    assert "did not answer within 2 s" in results[0].found
    assert "opening the C7x" in results[0].found
    assert "can't be killed" not in results[0].found
    assert 2.0 <= results[0].seconds < 2.0 + 5.0
    assert results[1].status == "ok"
    assert time.monotonic() - started < 60


def test_a_check_of_another_place_or_without_its_configuration_is_not_run(probes: Path) -> None:
    write(probes, "board", "os.abort()", place="board", seconds=5.0)
    write(probes, "virtual", "os.abort()", place="virtual", seconds=5.0)
    write(probes, "needy", "os.abort()", needs=True, seconds=5.0)
    virtual = Context(environment={"TIDEGAUGE_VIRTUALBOARD": "/somewhere"})
    assert run_one("probe_board", virtual).status == "not_applicable"
    assert run_one("probe_virtual", Context()).status == "not_applicable"
    assert "--config" in run_one("probe_needy", Context()).found


def test_leaving_early_ends_what_is_under_way(probes: Path) -> None:
    write(probes, "patient", "os.write(2, b'waiting\\n'); signal.pause()", seconds=600.0)
    results = run_all(["probe_chatter", "probe_patient", "probe_patient", "probe_patient"], Context())
    started = time.monotonic()
    assert next(results).status == "ok"
    results.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 60
