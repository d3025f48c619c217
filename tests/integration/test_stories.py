"""Both stories, told to their end by command: a wrong network, a report, its text pasted, a right network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from tidegauge.cli import demo as cli
from tidegauge.demo import story
from tidegauge.demo.story import Measure, Teller
from tidegauge.errors import TidegaugeError


def tell(name: str, folder: Path) -> story.Told:
    command = [sys.executable, "-m", "tidegauge", "demo", "--story", name, "--keep", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "$ tidegauge virtualboard compile" in done.stdout and "cured" in done.stdout and "VIRTUAL" in done.stdout
    told = msgspec.json.decode((folder / "story.json").read_bytes(), type=story.Told)
    assert told.right and told.pasted
    for file in (*told.reports, *told.pictures):
        assert (folder / file).stat().st_size > 1000
    return told


@pytest.mark.slow
def test_the_low_light_story_ends_well(tmp_path: Path) -> None:
    told = tell("low-light", tmp_path / "story")
    assert "rung:input" in told.culprits
    assert told.reports == ["report-black.html", "report-before.html", "report-after.html"]


@pytest.mark.slow
def test_the_upgrade_story_names_both_pools_and_cures_them(tmp_path: Path) -> None:
    told = tell("sdk-upgrade", tmp_path / "story")
    pools = {"/se/GlobalAveragePool_output_0", "/pose/GlobalAveragePool_output_0"}
    assert set(told.culprits) == pools
    assert set(told.pasted["advanced_options:output_feature_16bit_names_list"].split(",")) == pools


def test_only_what_was_wrong_before_and_is_right_after_is_cured() -> None:
    assert Measure("m", 10.0, 40.0, 30.0).cured
    assert not Measure("m", 10.0, 20.0, 30.0).cured
    assert not Measure("m", 35.0, 40.0, 30.0).cured  # it was never wrong: the cure proves nothing
    assert Measure("m", 2.0, 0.5, 1.0, lower=True).cured
    assert not Measure("m", 2.0, 1.5, 1.0, lower=True).cured
    assert not story.Told("s", "f").right


def test_a_step_that_fails_stops_the_story_and_says_where_to_look(tmp_path: Path) -> None:
    teller = Teller("s", tmp_path, Console(quiet=True))
    with pytest.raises(TidegaugeError, match="no-such-file"):
        teller.run("virtualboard", "compile", "no-such-file", "--artifacts", "a", "--calibration", ".")
    assert "no-such-file" in (tmp_path / "commands.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--layer", "x"], "brings its own fault"), (["--fault", "gain"], "brings its own fault"), ([], "is not empty")],
)
def test_a_story_refuses_what_does_not_fit(arguments: list[str], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "file").touch()
    keep = ["--keep", str(folder)] if not arguments else []
    done = CliRunner().invoke(cli.command, ["--story", "low-light", *arguments, *keep])
    assert isinstance(done.exception, TidegaugeError) and said in str(done.exception)
