"""The command line: `tidegauge …`, one file a command, each imported only when it is called."""

from __future__ import annotations

import importlib
import os
import signal
import sys

import click

from tidegauge.errors import TidegaugeError

#: command → module with a click command named `command`; loaded lazily, so that a board needs no PC package.
COMMANDS = {
    "agent": "tidegauge.cli.agent",
    "alarm": "tidegauge.cli.alarm",
    "baseline": "tidegauge.cli.baseline",
    "bench": "tidegauge.cli.bench",
    "bundle": "tidegauge.cli.bundle",
    "check": "tidegauge.cli.check",
    "collector": "tidegauge.cli.collector",
    "compare": "tidegauge.cli.compare",
    "demo": "tidegauge.cli.demo",
    "evaluate": "tidegauge.cli.evaluate",
    "lint": "tidegauge.cli.lint",
    "inspect": "tidegauge.cli.inspect",
    "profile": "tidegauge.cli.profile",
    "rebaseline": "tidegauge.cli.rebaseline",
    "status": "tidegauge.cli.status",
    "version": "tidegauge.cli.version",
    "virtualboard": "tidegauge.cli.virtualboard",
}

#: What must be installed for a command whose import fails, by the missing package's import name.
EXTRAS = {
    "ai_edge_litert": "pc",
    "amqtt": "demo",
    "cv2": "pc",
    "dbos": "collector",
    "litestar": "collector",
    "obstore": "collector",
    "onnx": "collector",
    "onnxruntime": "pc",
    "plotly": "collector",
    "sqlalchemy": "collector",
    "tomli_w": "demo",
    "uvicorn": "collector",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(COMMANDS[name])
        except ModuleNotFoundError as error:
            extra = EXTRAS.get((error.name or "").partition(".")[0])
            if extra is None:
                raise
            raise TidegaugeError(
                f"`tidegauge {name}` needs the Python package {error.name}, which is not installed",
                f"install the extra: pip install 'tidegauge[{extra}]'",
            ) from error
        command: click.Command = module.command
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Watch a TIDL accelerator against the same model in float on the CPU, and name the layer that drifts."""


def main() -> None:
    """Run the command line. A `TidegaugeError` becomes one sentence on stderr and its exit code, never a traceback."""
    try:
        cli(standalone_mode=False)
    except TidegaugeError as error:
        click.echo(f"tidegauge: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has left: nothing to say to it
        sys.exit(128 + signal.SIGPIPE)
