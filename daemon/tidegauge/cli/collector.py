"""`tidegauge collector …`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tidegauge.cli.collector_keys import keys
from tidegauge.cli.collector_tokens import token
from tidegauge.collector import config, startup
from tidegauge.collector.log_kinds import COLLECTOR_FAILED, COLLECTOR_REFUSED
from tidegauge.errors import TidegaugeError
from tidegauge.exitcodes import ExitCode

if TYPE_CHECKING:
    from tidegauge.collector.storage import Storage

log = logging.getLogger(__name__)

_CONFIG = click.option("--config", "path", type=click.Path(path_type=Path), required=True, help="collector.toml")
_FOLDER = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))


@click.group("collector")
def command() -> None:
    """The collector: takes bundles in, compares them, shows the result."""


command.add_command(keys)
command.add_command(token)


@command.command("run")
@_CONFIG
def run(path: Path) -> None:
    """Run until SIGTERM or Ctrl-C. Prints the address of its pages when they can be opened."""
    output = startup.begin_log()
    try:
        loaded = config.load(path)
        with startup.claimed(loaded) as listener:
            from tidegauge.collector import serve  # seconds of imports, which a refusal need not wait for

            serve.run(loaded, listener)
    except TidegaugeError as error:
        if output.journal is None:
            raise
        # As text it would come without its id: by that it is found, and explained by the journal's catalogue.
        code = int(error.exit_code)
        refused = code == ExitCode.UNUSABLE
        said = COLLECTOR_REFUSED.of(exit_code=code) if refused else COLLECTOR_FAILED.of(exit_code=code)
        log.error("%s", error, extra=said)
        sys.exit(code)


@command.command("verify")
@_CONFIG
@click.option(
    "--repair", is_flag=True, help="Forget what is lost, throw away what is damaged, take in what is unknown."
)
@click.option("--json", "json_file", metavar="FILE", help="Write the answer as JSON; - for standard output.")
def verify(path: Path, repair: bool, json_file: str | None) -> None:
    """Hash every blob again and compare the store with the database; the collector may run meanwhile.

    Exit code: 0 fine, or repaired; 1 something is wrong; 2 the store can't be read.
    """
    from tidegauge.collector import verify as checks
    from tidegauge.collector.trust import Trust

    loaded = config.load(path)
    with _opened(loaded) as storage:
        with _progress("hashing", storage.store.totals().blob_bytes) as advance:
            found = checks.verify(storage.store, storage.blobs, advance)
        if repair and found.faults:
            trust = Trust(storage.store, loaded.trust.devices)
            limit = loaded.limits.manifest_bytes
            found = checks.repair(storage.store, storage.blobs, found, limit, trust.check)
    _tell(found, json_file)
    if json_file != "-":
        for fault in found.faults:
            needed = f", needed by {', '.join(fault.bundles)}" if fault.bundles else ""
            click.echo(f"{fault.kind}: {fault.sha256} ({fault.size} bytes){needed}")
        click.echo(f"{found.blobs} blobs, {found.size} bytes hashed; {len(found.faults)} faults")
        if found.repaired:
            click.echo(
                f"repaired: {len(found.readmitted)} bundles taken in again, {len(found.asked_again)} wait for blobs"
            )
    sys.exit(1 if found.faults and not found.repaired else 0)


@command.command("backup")
@_CONFIG
@_FOLDER
def backup(path: Path, folder: Path) -> None:
    """Copy the data to FOLDER; the collector may run meanwhile. A second time only what is new is copied."""
    from tidegauge.collector import backup as copies

    loaded = config.load(path)
    with _io("the backup"):
        note = copies.back_up(loaded, folder)
    click.echo(f"{note.blobs} blobs, {note.size} bytes and the database of collector {note.collector} are in {folder}")


@command.command("restore")
@_CONFIG
@_FOLDER
def restore(path: Path, folder: Path) -> None:
    """Put the backup in FOLDER back, into a data folder without a database; then run `verify --repair`."""
    from tidegauge.collector import backup as copies

    loaded = config.load(path)
    with startup.only_one(loaded.data_folder), _io("the backup"):
        note = copies.restore(loaded, folder)
    click.echo(f"restored: {note.blobs} blobs and the database of collector {note.collector}")
    click.echo(f"next: tidegauge collector verify --repair --config {path}")


@command.command("pin")
@_CONFIG
@click.argument("device")
@click.argument("bundle")
@click.option("--off", is_flag=True, help="No longer.")
def pin(path: Path, device: str, bundle: str, off: bool) -> None:
    """Keep BUNDLE of DEVICE whatever retention says."""
    with _opened(config.load(path)) as storage:
        _known(storage, device, bundle)
        storage.store.pin(device, bundle, not off)
    click.echo(f"{device}/{bundle} is {'no longer ' if off else ''}pinned")


@command.command("retention")
@_CONFIG
@click.option("--json", "json_file", metavar="FILE", help="Write the answer as JSON; - for standard output.")
def retention(path: Path, json_file: str | None) -> None:
    """What the retention rules would give up now. Deletes nothing."""
    from tidegauge.clocks import wall
    from tidegauge.collector import retention as rules

    loaded = config.load(path)
    with _opened(loaded) as storage:
        due = rules.due(storage.store, loaded.retention, wall())
        runs = rules.due_runs(storage.store, loaded.retention, wall())
    _tell([*due, *runs], json_file)
    if json_file != "-":
        for item in due:
            click.echo(f"{item.device}/{item.bundle}: {item.reason}; frees {item.own} bytes")
        for run in runs:
            click.echo(f"run {run.run} ({run.name}): {run.reason}")
        click.echo(f"{len(due)} bundles, {sum(item.own for item in due)} bytes; {len(runs)} runs")


@command.command("findings")
@_CONFIG
@click.option("--json", "json_file", metavar="FILE", help="Write the answer as JSON; - for standard output.")
def findings(path: Path, json_file: str | None) -> None:
    """Faults that boards have, each once, the ones on most boards first."""
    with _opened(config.load(path)) as storage:
        found = storage.store.findings()
    _tell([{"id": each.id, **msgspec.to_builtins(each)} for each in found], json_file)
    if json_file != "-":
        for each in found:
            click.echo(
                f"{each.id}  {each.devices} boards, {each.bundles} bundles  {each.model}: {each.layer} {each.cause}"
            )


@contextmanager
def _opened(loaded: config.CollectorConfig) -> Iterator[Storage]:
    """What the collector keeps, beside one that may be running. Raises TidegaugeError where there is none."""
    from tidegauge.collector.storage import DATABASE, open_storage

    if not loaded.database.url and not (loaded.data_folder / DATABASE).is_file():
        raise TidegaugeError(f"there is no collector in {loaded.data_folder}", "check the key `data`")
    with _io("the store"):
        storage = open_storage(loaded)
        try:
            yield storage
        finally:
            storage.store.close()


@contextmanager
def _io(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TidegaugeError(f"{what} can't be used ({error})", "check folder, owner, mode and free space") from error


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda size: bar.advance(task, size)


def _known(storage: Storage, device: str, bundle: str) -> None:
    if storage.store.bundle(device, bundle) is None:
        raise TidegaugeError(f"device {device} has sent no bundle {bundle}", "its page shows what it has sent")


def _tell(answer: Any, json_file: str | None) -> None:
    if json_file is None:
        return
    data = msgspec.json.format(msgspec.json.encode(answer), indent=1) + b"\n"
    if json_file == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    with _io(json_file):
        Path(json_file).write_bytes(data)
