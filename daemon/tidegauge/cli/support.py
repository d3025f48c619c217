"""`tidegauge support`: one file to send along with a question."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.parse import unquote
from urllib.request import urlopen

import click
import msgspec
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from tidegauge.agent.config import AgentConfig
from tidegauge.agent.control import ask
from tidegauge.agent.control_messages import GetStatus
from tidegauge.configuration import load_toml
from tidegauge.errors import TidegaugeError
from tidegauge.support import collect

UNIT = "tidegauge-agent"
PAGE_SECONDS = 5.0


@click.command("support")
@click.option("--config", type=click.Path(path_type=Path), required=True, help="agent.toml of the agent.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; default: in this folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(config: Path, output: Path | None, as_json: bool) -> None:
    """Collect what somebody who helps would ask for: settings, versions, status, logs. Secrets are removed.

    The agent may run or not. No picture, tensor or trace is taken.
    """
    secrets, sources, fault = _sources(config)
    target = output or Path(f"tidegauge-support-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    try:
        contents = collect.write(target, collect.gather(sources), secrets)
    except FileExistsError as error:
        raise TidegaugeError(f"{error.filename} is there already", "remove it, or name another file by -o") from error
    except OSError as error:
        raise TidegaugeError(f"{target} can't be written ({error.strerror})", "name another file by -o") from error
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(contents), indent=2).decode())
        return
    table = Table("part", "size", box=None, pad_edge=False)
    for name, size in contents.files.items():
        table.add_row(name, decimal(size))
    for name, reason in contents.missing.items():
        table.add_row(name, f"not there: {reason}", style="yellow")
    console = Console(soft_wrap=True)
    console.print(table)
    if fault:
        console.print(f"Not in it: status, state and logs, because {fault}", style="yellow", markup=False)
    console.print(f"{contents.removed} secrets removed. Look into {contents.path} before you send it.")


def _sources(path: Path) -> tuple[tuple[str, ...], dict[str, Callable[[], str]], str]:
    """Secrets known word for word, the parts by name, and why the configuration can't be read, empty where it can.

    A configuration that can't be read is itself of interest.
    """
    sources: dict[str, Callable[[], str]] = {
        "system.txt": collect.system,
        "packages.txt": collect.packages,
        "agent.toml": partial(path.read_text, errors="replace"),
    }
    sources["journal.txt"] = partial(
        collect.command, "journalctl", "--no-pager", "-q", "-u", UNIT, "-n", str(collect.JOURNAL_LINES)
    )
    sources["unit.txt"] = partial(collect.command, "systemctl", "--no-pager", "show", UNIT)
    sources["dmesg.txt"] = partial(collect.command, "dmesg")
    try:
        config = load_toml(path, AgentConfig)
    except TidegaugeError as error:
        sentence = str(error)
        sources["configuration-error.txt"] = lambda: sentence
        return (), sources, sentence
    folder = path.resolve().parent
    state = folder / config.state
    sources["profile.toml"] = partial((folder / config.profile).read_text, errors="replace")
    sources["status.json"] = partial(_status, state)
    sources["metrics.txt"] = partial(_metrics, state)
    sources["state-folder.txt"] = partial(collect.listing, state)
    sources["state.json"] = partial((state / "state.json").read_text, errors="replace")
    for log in sorted((state / "logs").glob("*.log")):
        sources[f"logs/{log.name}"] = partial(collect.tail, log)
    return _secrets(folder, config), sources, ""


def _secrets(folder: Path, config: AgentConfig) -> tuple[str, ...]:
    found = _camera_secrets(config.camera.source)
    if not config.link.password_file:
        return found
    try:
        return (*found, (folder / config.link.password_file).read_text(errors="replace").partition("\n")[0].strip())
    except OSError:
        return found  # what can't be read can't have got into a text either


def _camera_secrets(source: str) -> tuple[str, ...]:
    """The password of a camera's URL, written and meant: one with an @ or a / in it has no clear end in a text."""
    scheme, separator, rest = source.partition("://")
    who, at, _ = rest.rpartition("@")
    if not (separator and at and scheme.isalnum()):
        return ()
    password = who.partition(":")[2]
    return tuple({password, unquote(password)})


def _status(state: Path) -> str:
    try:
        answer = ask(state, GetStatus())
    except TidegaugeError as error:
        raise ValueError(str(error)) from error
    return msgspec.json.format(msgspec.json.encode(answer.status), indent=2).decode()


def _metrics(state: Path) -> str:
    file = state / "agent.json"
    ready = msgspec.json.decode(file.read_bytes())
    try:
        address = ready["metrics"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} names no metrics page") from error
    try:
        with urlopen(address, timeout=PAGE_SECONDS) as page:
            return str(page.read().decode(errors="replace"))
    except HTTPException as error:
        raise ValueError(f"{address} gave no whole answer: {type(error).__name__}") from error
