"""The demo of a failing board: what was seen, given up, cured; options that make no sense together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidegauge.cli.demo import command
from tidegauge.errors import TidegaugeError


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hang_is_seen_given_up_and_cured(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    asked = ["--once", "--fail", "hang_in_run", "--after", "1", "--json", str(result)]
    done = subprocess.run(
        [sys.executable, "-m", "tidegauge", "demo", *asked], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "switched on: `hang_in_run`",
        "accelerator_hung: the pipeline worker",
        "given up",
        "device runs again",
    ):
        assert said in " ".join(done.stdout.split()), done.stdout
    outcome = json.loads(result.read_text())
    assert outcome["alarms"] == ["accelerator_hung", "accelerator_down"]
    assert outcome["failures"] == ["hang_in_run"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fail", "slow", "--fault", "gain"], "--fail takes the place of a fault"),
        (["--fail", "slow", "--story", "low-light"], "--fail takes the place of a fault"),
        (["--after", "3"], "--after says when --fail comes"),
        (["--fail", "gremlins"], "there is no failure 'gremlins'"),
        (["--fail", "slow:often"], "is not a number"),
    ],
)
def test_options_that_make_no_sense(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, TidegaugeError)
    assert said in str(result.exception)
