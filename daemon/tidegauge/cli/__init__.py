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
#: What a path may be at fault for, and its cure. Any other error of the system is a fault of the program.
CURES = {
    **dict.fromkeys(NO_ROOM, "make room, then run it again"),
    errno.EACCES: "run it as a user who may, or change owner and mode",
    errno.EPERM: "run it as a user who may, or change owner and mode",
    errno.EROFS: "mount the disk writable, or give a path on another one",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is no folder",
    errno.EISDIR: "check the path: it is a folder",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "check the path: a link in it leads back to itself",
    errno.EIO: "the disk has a fault: look at the kernel's log, and try a copy on another one",
    errno.ESTALE: "mount the network's folder anew",
}
#: Of these nothing needs to name the file: reading and writing fail without its name.
NAMELESS = NO_ROOM | {errno.EIO}


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
    except (OSError, RuntimeError, UnicodeEncodeError) as error:
        said = _path_at_fault(error)
        # A service ends by its traceback and is restarted: code 2 would say that only a person can help.
        if not said or tuple(sys.argv[1:3]) in SERVICES:
            raise
        if isinstance(error, OSError) and error.errno in NAMELESS:
            _leave_stdout()
        click.echo(f"tidegauge: {said}", err=True)
        sys.exit(2)


def _path_at_fault(error: Exception) -> str:
    """The sentence for an error that a path is at fault for, with its cure; empty for any other."""
    if isinstance(error, OSError):
        name = error.filename
        if error.errno not in CURES or not (name or error.errno in NAMELESS):
            return ""
        doing = "written" if error.errno in NO_ROOM else "read or written"
        where = os.fsdecode(name) if isinstance(name, str | bytes) else f"the output, or a file that was being {doing}"
        return f"{where}: {error.strerror}: {CURES[error.errno]}"
    if isinstance(error, UnicodeEncodeError):
        if not any("\ud800" <= character <= "\udfff" for character in error.object):
            return ""
        return f"a file's name is no text, and can't be printed ({error.object[:200]!a}): rename it"
    # What pathlib says of a link that leads back to itself, up to Python 3.12.
    said = str(error)
    return f"{said}: {CURES[errno.ELOOP]}" if said.startswith("Symlink loop from ") else ""


def _leave_stdout() -> None:
    """What is still buffered goes nowhere, instead of failing once more at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
