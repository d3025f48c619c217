"""`tidegauge model …`: what the collector needs for comparisons and boards lack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegauge.collector import config
from tidegauge.errors import TidegaugeError

if TYPE_CHECKING:
    from tidegauge.collector.registered import Registered
    from tidegauge.collector.store import Store

_CONFIG = click.option("--config", "path", type=click.Path(path_type=Path), required=True, help="collector.toml")


@click.group("model")
def command() -> None:
    """Models and compile outputs, registered once with the collector for a whole fleet."""


@command.command("add")
@_CONFIG
@click.option("--model", type=click.Path(path_type=Path), help="The float model (.onnx or .tflite).")
@click.option("--artifacts", type=click.Path(path_type=Path), help="A compile's output folder, with its tempDir.")
def add(path: Path, model: Path | None, artifacts: Path | None) -> None:
    """Register a model, a compile, or both; the collector may run meanwhile.

    A model is found by the SHA-256 of its file, a compile by that of each *_tidl_net.bin, as boards tell them.
    """
    if model is None and artifacts is None:
        raise TidegaugeError("nothing is given to register", "add --model FILE, --artifacts FOLDER, or both")
    with _opened(path) as (_, registered):
        entries = [registered.add_model(model)] if model is not None else []
        entries += registered.add_compile(artifacts) if artifacts is not None else []
    for entry in entries:
        click.echo(f"{entry.kind} {entry.name}: {entry.key} ({entry.size} bytes)")


@command.command("list")
@_CONFIG
def show(path: Path) -> None:
    """What is registered."""
    with _opened(path) as (store, _):
        entries = store.library()
    for entry in entries:
        click.echo(f"{entry.kind:8} {entry.key}  {entry.size:>12} bytes  {entry.name}")
    if not entries:
        click.echo("nothing is registered; `tidegauge model add` does")


@command.command("remove")
@_CONFIG
@click.argument("key")
def remove(path: Path, key: str) -> None:
    """Forget what is registered under KEY (a SHA-256, or its beginning)."""
    with _opened(path) as (store, _):
        found = [entry for entry in store.library() if entry.key.startswith(key)]
        if len(found) != 1:
            raise TidegaugeError(
                f"{len(found)} registered models and compiles begin with {key}", "`tidegauge model list` names them"
            )
        store.remove_from_library(found[0].kind, found[0].key)
    click.echo(f"forgotten: {found[0].kind} {found[0].name}")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Store, Registered]]:
    from tidegauge.collector.registered import Registered
    from tidegauge.collector.storage import open_storage

    loaded = config.load(path)
    loaded.data_folder.mkdir(parents=True, exist_ok=True)
    try:
        storage = open_storage(loaded)
        try:
            yield storage.store, Registered(storage.store, storage.blobs, loaded.data_folder / "library")
        finally:
            storage.store.close()
    except OSError as error:
        raise TidegaugeError(
            f"the store can't be used ({error})", "check folder, owner, mode and free space"
        ) from error
