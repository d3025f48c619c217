"""The checks of a board on board trees: a folder a case, and each case is noticed by its own check only."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding
from tidegauge.preflight.probes import camera
from tidegauge.preflight.registry import MODULES, load
from unit.preflight.board_tree import BOARDS, Case, context_of, make_board

#: What a tree of files can't say: these need a runtime, a camera, a broker, a clock.
ELSEWHERE = {
    "compile", "runtime", "python", "model", "optimizer-level", "camera", "clock", "broker", "rights", "virtual-board",
}  # fmt: skip
CASES = sorted(path.parent.name for path in BOARDS.glob("*/case.toml"))


def findings(context: Context) -> dict[str, Finding]:
    probes = [load(module) for module in MODULES]
    return {probe.id: probe.run(context) for probe in probes if probe.id not in ELSEWHERE}


def test_a_healthy_board_is_healthy(tmp_path: Path) -> None:
    make_board(tmp_path / "root")
    found = findings(context_of(tmp_path / "root", {"SOC": "am62a"}))
    assert {name: finding.status for name, finding in found.items()} == dict.fromkeys(found, "ok"), found
    assert "0x20250821, as in" in found["network-version"].found
    assert found["remote-log"].found == "pid 411, user root"
    assert "remoteproc0 7e000000.dsp running" in found["remoteproc"].found


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_noticed_by_its_check_alone(tmp_path: Path, name: str) -> None:
    case = msgspec.toml.decode((BOARDS / name / "case.toml").read_bytes(), type=Case)
    root = tmp_path / "root"
    make_board(root, BOARDS / name)
    for path in case.remove:
        gone = root / path
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    found = findings(context_of(root, case.environment, **case.settings))
    assert {name: f.status for name, f in found.items()} == {**dict.fromkeys(found, "ok"), **case.expect}, found
    for named in list(case.expect)[:1]:
        assert case.found in found[named].found
        assert case.cure in found[named].cure
    for finding in found.values():
        assert bool(finding.cure) is (finding.status in ("warning", "failed"))


def test_a_camera_without_its_device_is_told_once(tmp_path: Path) -> None:
    make_board(tmp_path / "root")
    (tmp_path / "root/dev/video2").unlink()
    found = camera.run(context_of(tmp_path / "root", {"SOC": "am62a"}))
    assert (found.status, found.found) == ("not_applicable", "cure the check `camera-device` first")
