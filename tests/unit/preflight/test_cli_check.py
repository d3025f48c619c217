"""The lines of `tidegauge check`, its exit code, and what a broken configuration does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tidegauge.preflight.registry import MODULES, load


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("SOC", "TIDEGAUGE_VIRTUALBOARD")}
    command = [sys.executable, "-m", "tidegauge", "check", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_line_a_check_on_a_machine_that_is_no_board() -> None:
    done = check()
    assert done.stderr == ""
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    expected = ["configuration", *(load(module).id for module in MODULES)]
    assert [line.split()[0] for line in lines[:-1]] == expected
    failed = next(line for line in lines if line.startswith("remoteproc"))
    assert re.match(r"remoteproc +failed +no remote processor is a C7x .* → .*virtual board", failed)
    assert re.fullmatch(r"\d+ ok, \d+ warning, \d+ failed, \d+ not applicable", lines[-1])
    assert "\x1b" not in done.stdout, "no colours where nobody sees them"


def test_a_configuration_that_cannot_be_read_is_named_and_the_rest_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text("devise = 1\n")
    done = check("--config", str(path), "--json")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    by_id = {item["id"]: item for item in report["checks"]}
    assert (report["passed"], report["version"]) == (False, 1)
    assert by_id["configuration"]["status"] == "failed"
    assert "did you mean `device`" in by_id["configuration"]["cure"]
    assert by_id["broker"]["status"] == "not_applicable"


def test_every_check_has_its_own_id_and_texts() -> None:
    probes = [load(module) for module in MODULES]
    assert len({probe.id for probe in probes}) == len(probes)
    assert all(probe.title and probe.why and re.fullmatch(r"[a-z-]{1,16}", probe.id) for probe in probes)
