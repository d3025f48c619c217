"""`tidegauge setup` on a PC with the virtual board: from a compiled model to a running acceptance."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from faults.small_board import SmallBoard, wait_for
from needs import overlays, unless
from tidegauge.agent.control import ask
from tidegauge.agent.control_messages import GetStatus
from tidegauge.agent.status import StatusReport
from tidegauge.demo.settings import PHOTOS
from tidegauge.errors import TidegaugeError

TOLD = ("--mean", "0,0,0", "--scale", "0.0039,0.0039,0.0039", "--channel-order", "RGB", "--kind", "image")
TOLD += ("--range", "0,1")


def setup(board: SmallBoard, *arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegauge", "setup", "--virtual", *TOLD, *arguments]
    return subprocess.run(
        command,
        env=board.environment,
        cwd=board.folder,
        input=said,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def status(state: Path) -> StatusReport | None:
    try:
        return ask(state, GetStatus()).status
    except TidegaugeError:
        return None


@pytest.mark.timeout(300)
def test_from_a_compile_to_a_running_acceptance(tmp_path: Path) -> None:
    board = SmallBoard(tmp_path / "board", virtual=True)
    # Five questions: model, step, camera, broker, name. What was found is taken by an empty line.
    answers = f"\n0.04\nsynthetic:{PHOTOS}\n127.0.0.1:1\nporch\n"
    done = setup(board, "--samples", "40", "--gap", "0.3", "-o", "new/agent.toml", said=answers)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 questions asked" in done.stdout
    assert f"artifacts folder) [{board.folder / 'artifacts'}]" in done.stdout
    assert "not right yet, and not needed for the acceptance: remote-log, broker" in done.stdout
    assert re.search(r"the acceptance ends about \w+ \d\d:\d\d, in 0 minutes", done.stdout), done.stdout
    [command] = re.findall(r"start it with: (.*)", done.stdout)

    config = board.folder / "new" / "agent.toml"
    config.write_text(config.read_text().replace("port = 9464", "port = 0"))
    variable, *program = shlex.split(command)
    assert variable == f"TIDEGAUGE_VIRTUALBOARD={board.virtual_folder}"
    assert program[0] == "tidegauge"
    program = [str(board.folder / part) if part == "new/agent.toml" else part for part in program]
    with board.running("-m", *program, log="setup.log"):
        found = wait_for(
            lambda: (now := status(board.folder / "new" / "state")) and now.acceptance.progress > 0 and now,
            120,
            "samples of the acceptance",
        )
    assert found.device == "porch"
    assert found.acceptance.state in ("running", "accepted")


@pytest.mark.timeout(300)
def test_it_refuses_rather_than_guesses_or_writes_over(tmp_path: Path) -> None:
    board = SmallBoard(tmp_path / "board", virtual=True)
    flags = ("--broker", "127.0.0.1:1", "--camera", f"synthetic:{PHOTOS}", "--yes", "-o", "agent.toml")
    no_step = setup(board, *flags)
    assert no_step.returncode == 2
    assert "give --step" in no_step.stderr
    assert not (board.folder / "agent.toml").exists()

    (board.folder / "agent.toml").write_text("# mine")
    written_over = setup(board, *flags, "--step", "0.04", "--device", "porch")
    assert written_over.returncode == 2
    assert "agent.toml exists already" in written_over.stderr
    assert (board.folder / "agent.toml").read_text() == "# mine"

    wrong = setup(board, *flags, "--step", "0.04", "--device", "a board", "--force")
    assert wrong.returncode == 2
    assert "key `device` has a wrong value" in wrong.stderr
    assert (board.folder / "agent.toml").read_text() == "# mine", "what ran before a wrong answer runs on"

    nobody = setup(board, *flags[:4], "-o", "agent.toml", "--step", "0.04")
    assert nobody.returncode == 2
    assert nobody.stderr == "tidegauge: nobody answers: Compiled model (artifacts folder): give --artifacts\n"
    for wrong_number, words in {
        ("--step", "inf"): "'inf' is no finite number",
        ("--step", "nan"): "'nan' is no finite number",
        ("--gap", "1e30"): "not in the range",
        ("--scale", "nan,1,1"): "holds a number that is not finite",
        ("--range", "1,0"): "`low` (1) must be below `high` (0)",
    }.items():
        refused = setup(board, *flags, "--device", "porch", "--step", "0.04", "--force", *wrong_number)
        assert refused.returncode == 2
        assert words in refused.stderr
    assert (board.folder / "agent.toml").read_text() == "# mine"

    (board.folder / "artifacts" / "allowedNode.txt").write_text("")
    broken = setup(board, *flags, "--step", "0.04", "--device", "porch", "--force", "--artifacts", "artifacts")
    assert broken.returncode == 2
    assert "nothing was started: artifacts" in broken.stderr
    assert "broker" not in broken.stderr, "what may come later stops nothing"
    assert "start it with" not in broken.stdout


#: A board where the install script has been, as far as setup can see; its systemctl writes down what it is asked for.
INSTALLED = """
set -eu
mount -t tmpfs t "$SCRATCH"
for top in etc var; do
    mkdir -p "$SCRATCH/$top/up" "$SCRATCH/$top/work"
    mount -t overlay o -o "lowerdir=/$top,upperdir=$SCRATCH/$top/up,workdir=$SCRATCH/$top/work" "/$top"
done
mount -t tmpfs t /run
mkdir -p /run/systemd/system /run/bin /etc/tidegauge
printf '#!/bin/sh\\necho "systemctl $*" >&2\\n[ "$1" = cat ] || exit %s\\n' "$CODE" >/run/bin/systemctl
chmod 755 /run/bin/systemctl
PATH=/run/bin:$PATH exec "$@"
"""


@unless(*overlays())
@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.timeout(300)
def test_it_starts_the_unit_that_is_installed_or_says_that_it_did_not(tmp_path: Path, code: int) -> None:
    board = SmallBoard(tmp_path / "board", virtual=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    flags = ("--broker", "127.0.0.1:1", "--camera", f"synthetic:{PHOTOS}", "--yes", "--step", "0.04")
    command = ["unshare", "-m", "sh", "-c", INSTALLED, "sh", sys.executable, "-m", "tidegauge", "setup", "--virtual"]
    done = subprocess.run(
        [*command, *TOLD, *flags, "--artifacts", str(board.folder / "artifacts")],
        env={**board.environment, "SCRATCH": str(scratch), "CODE": str(code)},
        cwd=board.folder,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert "systemctl enable --now tidegauge-agent.service\n" in done.stderr, done.stdout + done.stderr
    if code == 0:
        assert done.returncode == 0, done.stderr
        assert "tidegauge-agent.service is running; the acceptance has begun and ends about" in done.stdout
    else:
        assert done.returncode == 2
        assert "tidegauge-agent.service did not start (/etc/tidegauge/agent.toml is written): journalctl" in done.stderr
        assert "is running" not in done.stdout
