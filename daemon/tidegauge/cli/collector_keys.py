"""`tidegauge collector keys`: which key each device signs with, as the collector knows it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from tidegauge.cli.running import json_option
from tidegauge.clocks import wall
from tidegauge.collector import config as configuration
from tidegauge.errors import TidegaugeError
from tidegauge.signing import is_key

config_option = click.option("--config", "path", type=click.Path(path_type=Path), required=True, help="collector.toml")


@click.group("keys")
def keys() -> None:
    """Which key each device signs with. The collector may run meanwhile."""


@keys.command("list")
@config_option
@json_option
def list_keys(path: Path, as_json: bool) -> None:
    """Print the keys that are known."""
    from tidegauge.collector.storage import open_storage

    found = open_storage(configuration.load(path)).store.device_keys()
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    table = Table("device", "key", "known", "since")
    for each in found:
        since = datetime.fromtimestamp(each.since, UTC).isoformat(" ", "seconds")
        table.add_row(each.device, each.key, "registered" if each.registered else "by first use", since)
    Console(soft_wrap=True).print(table)


@keys.command("own")
@config_option
def own(path: Path) -> None:
    """Print the public half of the key that signs this collector's answers, for boards to pin."""
    from tidegauge import signing
    from tidegauge.collector.trust import ANSWER_KEY

    config = configuration.load(path)
    file = Path(config.trust.answer_key) if config.trust.answer_key else config.data_folder / ANSWER_KEY
    if not file.exists():
        raise TidegaugeError(
            f"there is no key {file}",
            "start the collector once, or make a key by `tidegauge keys new` and name it in `trust.answer_key`",
        )
    public = signing.load(file).public
    click.echo(public)
    click.echo(f'pin it in the agent.toml of each board:\n[link]\ncollector_keys = ["{public}"]', err=True)


@keys.command("register")
@config_option
@click.argument("device")
@click.argument("key")
def register(path: Path, device: str, key: str) -> None:
    """From now on the manifests of DEVICE must be signed by KEY (`tidegauge keys device` on the board prints it)."""
    from tidegauge.collector.storage import open_storage

    if not is_key(key):
        raise TidegaugeError(f"{key[:80]!r} is no public key", "give its 64 hexadecimal digits")
    open_storage(configuration.load(path)).store.register_key(device, key, wall())
    click.echo(f"{device} is known by the key {key}")


@keys.command("forget")
@config_option
@click.argument("device")
def forget(path: Path, device: str) -> None:
    """Forget the key of DEVICE: with `trust.devices = "first_use"` the next one that it signs with is its own."""
    from tidegauge.collector.storage import open_storage

    if not open_storage(configuration.load(path)).store.forget_key(device):
        raise TidegaugeError(f"no key of {device} is known", "see `tidegauge collector keys list`")
    click.echo(f"the key of {device} is forgotten")
