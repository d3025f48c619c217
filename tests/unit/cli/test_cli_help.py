"""`tidegauge --help` is quick, and works where none of the commands' packages are installed."""

from __future__ import annotations

import importlib
import subprocess
import sys

import click
import pytest

from tidegauge.cli import COMMANDS

LOOK = """
import sys
sys.argv = ["tidegauge", "--help"]
from tidegauge.cli import main
try:
    main()
finally:
    heavy = {"numpy", "onnx", "onnxruntime", "aiomqtt", "litestar"}
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
