"""The command line: `tidegauge …`, one file a command, each imported only when it is called."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys

import click

from tidegauge.errors import TidegaugeError

#: command → what it does, as `tidegauge --help` says it. Its module is `tidegauge.cli.<command>`, with a click command
#: named `command`; it is imported only when the command is called, so that a board needs no PC package.
COMMANDS = {
    "agent": "The agent on the board.",
    "alarm": "Alarms of the agent on this board.",
    "baseline": "The reference that acceptance froze.",
    "bench": "What the monitor costs on this machine.",
    "bundle": "Look into trace bundles, pack and unpack them.",
    "check": "Every precondition of the agent, with its cure.",
    "collector": "The collector: takes bundles in, compares, shows.",
    "compare": "Name the guilty layer: device run against float model.",
    "demo": "The main job, end to end, on a virtual board.",
    "device": "Command boards over the broker, signed.",
    "evaluate": "Measure what is promised.",
    "inspect": "What TIDL files hold.",
    "keys": "Keys that commands and manifests are signed with.",
    "lint": "What TIDL will do to a model, before a compile.",
    "model": "Models and compiles that comparisons need.",
    "profile": "Write a model profile from a compile's output.",
    "rebaseline": "Start a new acceptance on this board.",
    "setup": "From a compiled model and a camera to a running acceptance.",
    "status": "What the agent on this board is doing.",
    "support": "One file to send along with a question; no secrets in it.",
    "version": "Version of Tidegauge and of Python.",
    "virtualboard": "An emulated AM62A: compiles, runs, traces, fails.",
}

#: What must be installed for a command whose import fails, by the missing package's import name.
EXTRAS = {
    "ai_edge_litert": "pc",
    "amqtt": "demo",
    "cv2": "pc",
    "alembic": "collector",
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

#: Errors of a disk, quota or limit that is used up.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
SERVICES = frozenset({("agent", "run"), ("collector", "run")})


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table, not from the commands: listing them must neither import nor need what they need."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(f"tidegauge.cli.{name}")
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
        _leave_stdout()  # the reader has left: nothing to say to it
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        # A service ends by its traceback and is restarted: code 2 would say that only a person can help.
        if error.errno not in NO_ROOM or tuple(sys.argv[1:3]) in SERVICES:
            raise
        _leave_stdout()
        where = error.filename or "the output, or a file that was being written"
        click.echo(f"tidegauge: {where}: {error.strerror}: make room, then run it again", err=True)
        sys.exit(2)


def _leave_stdout() -> None:
    """What is still buffered goes nowhere, instead of failing once more at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
