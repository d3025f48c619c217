"""`tidegauge --help` is quick, and works where none of the commands' packages are installed."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tidegauge.cli import COMMANDS, main

LOOK = """
import sys
sys.argv = ["tidegauge", "--help"]
from tidegauge.cli import main
try:
    main()
finally:
    heavy = {"numpy", "onnx", "onnxruntime", "aiomqtt", "litestar", "asyncio", "cryptography", "cv2", "msgspec", "nacl"}
    heavy |= {"prometheus_client", "rich", "sqlalchemy", "watchdog", "zstandard"}
    print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""


def test_help_lists_every_command_and_imports_none() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True)
    assert done.stdout.rstrip().endswith("[]"), done.stdout
    for name, said in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert said in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_is_there(name: str) -> None:
    command = importlib.import_module(f"tidegauge.cli.{name}").command
    assert isinstance(command, click.Command)
    assert command.help


@pytest.mark.parametrize("asked", [("--help",), ("version",), ("compare", "--help")])
def test_a_full_disk_behind_the_output_is_one_sentence(asked: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tidegauge", *asked], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("tidegauge: the output, or a file that was being written: No space left on device")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("service", [("agent", "run"), ("collector", "run")])
def test_a_service_without_room_is_one_to_restart(service: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Code 2 would keep systemd from it, and a disk may have room again."""

    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tidegauge.cli.cli", full)
    monkeypatch.setattr(sys, "argv", ["tidegauge", *service])
    with pytest.raises(OSError, match="No space left"):
        main()
