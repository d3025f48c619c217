"""`tidegauge support` takes what helps, says what it could not have, and no secret."""

from __future__ import annotations

import resource
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tidegauge.cli.support import command
from tidegauge.support.collect import Contents

CANARY = "canary-4711-secret"


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A board whose agent doesn't run, with a secret wherever one might lie."""
    (tmp_path / "password").write_text(f"{CANARY}\n")
    (tmp_path / "profile.toml").write_text('name = "m"\n')
    state = tmp_path / "state"
    (state / "logs").mkdir(parents=True)
    (state / "logs" / "camera.log").write_text(f"opening rtsp://admin:{CANARY}@192.0.2.4/cam\nno frame\n")
    (state / "logs" / "pipeline.log").write_text(f"who wrote {CANARY} here?\n" + "x" * 400_000 + "\nthe end\n")
    (state / "golden").mkdir()
    (state / "golden" / "picture.bin").write_bytes(b"PIXELS" * 100)
    (tmp_path / "agent.toml").write_text(
        f"""device = "cam-1"
state = "state"
profile = "profile.toml"
[camera]
kind = "rtsp"
source = "rtsp://admin:{CANARY}@192.0.2.4/cam"
[link]
username = "cam-1"
password_file = "password"
"""
    )
    return tmp_path


def run(board: Path) -> tuple[Contents, dict[str, str]]:
    target = board / "out.tar.gz"
    done = CliRunner().invoke(command, ["--config", str(board / "agent.toml"), "-o", str(target), "--json"])
    assert done.exit_code == 0, done.output
    with tarfile.open(target) as archive:
        names = archive.getnames()
        texts = {name.partition("/")[2]: archive.extractfile(name).read().decode() for name in names}  # type: ignore[union-attr] # all are files
    assert target.stat().st_mode & 0o777 == 0o600
    return msgspec.json.decode(done.output, type=Contents), texts


def test_no_secret_and_no_picture_gets_in(board: Path) -> None:
    contents, texts = run(board)
    for name, text in texts.items():
        assert CANARY not in text, name
        assert "PIXELS" not in text, name
    assert contents.removed >= 2
    assert "[removed]@192.0.2.4" in texts["agent.toml"]


def test_what_helps_is_there_and_what_is_not_is_named(board: Path) -> None:
    contents, texts = run(board)
    assert "the end" in texts["logs/pipeline.log"]
    assert len(texts["logs/pipeline.log"]) < 300_000
    assert "golden/picture.bin" in texts["state-folder.txt"]
    assert "numpy" in texts["packages.txt"]
    assert "state.json" in contents.missing
    assert "status.json" in contents.missing
    assert "not there: status.json" in texts["CONTENTS.txt"]


def test_broken_configuration_is_part_of_the_answer(board: Path) -> None:
    (board / "agent.toml").write_text("device = 3\n")
    _, texts = run(board)
    assert "agent.toml" in texts["configuration-error.txt"]
    assert texts["agent.toml"] == "device = 3\n"


def test_a_reader_is_told_what_a_broken_configuration_costs(board: Path) -> None:
    missing = board / "agnet.toml"
    done = CliRunner().invoke(command, ["--config", str(missing), "-o", str(board / "out.tar.gz")])
    assert done.exit_code == 0
    assert f"Not in it: status, state and logs, because {missing} does not exist" in done.output


def test_a_camera_s_password_is_known_word_for_word(board: Path) -> None:
    """One with a slash ends no one knows where; in a log it may stand alone."""
    text = (board / "agent.toml").read_text()
    (board / "agent.toml").write_text(text.replace(f":{CANARY}@", f":{CANARY}/%40x@"))
    (board / "state" / "logs" / "camera.log").write_text(f"401 for {CANARY}/%40x, that is {CANARY}/@x\n")
    (board / "state" / "logs" / "pipeline.log").write_text("the end\n")
    (board / "password").write_text("another\n")
    _, texts = run(board)
    for name, text in texts.items():
        assert CANARY not in text, name


@pytest.mark.parametrize("told", ["[]", "{}", "torn", '{"metrics": "http://127.0.0.1:1/"}'])
def test_a_damaged_note_of_the_agent_costs_one_part(board: Path, told: str) -> None:
    (board / "state" / "agent.json").write_text(told)
    contents, texts = run(board)
    assert contents.missing["metrics.txt"]
    assert "the end" in texts["logs/pipeline.log"]


@pytest.mark.parametrize("name", ["out.tar.gz", "out.tar.gz.part"])
def test_an_older_file_is_not_written_over(board: Path, name: str) -> None:
    (board / name).write_text("mine")
    done = CliRunner().invoke(command, ["--config", str(board / "agent.toml"), "-o", str(board / "out.tar.gz")])
    assert f"{board / name} is there already" in str(done.exception)
    assert (board / name).read_text() == "mine"
    assert not list(board.glob("*.part")) or name.endswith(".part")


def test_a_full_disk_is_told_and_leaves_nothing_in_the_way(board: Path) -> None:
    """The limit of a file's size stands for the disk: the write fails in its middle, by the kernel."""
    target = board / "out.tar.gz"
    asked = [sys.executable, "-m", "tidegauge", "support", "--config", str(board / "agent.toml"), "-o", str(target)]
    small = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False, preexec_fn=small)
    assert done.returncode == 2
    assert done.stderr == f"tidegauge: {target} can't be written (File too large): name another file by -o\n"
    assert not list(board.glob("out.tar.gz*"))
