"""`tidegauge collector token`: who may see and command through the collector's pages and API."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.table import Table

from tidegauge.cli.running import json_option
from tidegauge.clocks import wall
from tidegauge.collector import config as configuration
from tidegauge.errors import TidegaugeError

if TYPE_CHECKING:
    from tidegauge.collector.store import Store

_CONFIG = click.option("--config", "path", type=click.Path(path_type=Path), required=True, help="collector.toml")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)


@click.group("token")
def token() -> None:
    """Tokens for people and programs. The collector may run meanwhile, and keeps only their hashes."""


@token.command("new")
@_CONFIG
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator"]),
    required=True,
    help="viewer: sees everything; operator: uploads, deletes, commands boards too.",
)
@click.option("--days", type=click.FloatRange(0, 36500, min_open=True), help="Days until it expires; else it doesn't.")
@json_option
def new(path: Path, name: str, role: str, days: float | None, as_json: bool) -> None:
    """Make a token and print it, once. NAME: whose it is, or what it is for; the audit log says it."""
    if _NAME.fullmatch(name) is None:
        raise TidegaugeError(f"{name[:80]!r} is no name for a token", "use letters, digits and ._@-, at most 64")
    store = _store(path)
    try:
        secret = store.new_token(name, "operator" if role == "operator" else "viewer", wall(), days or 0.0)
    finally:
        store.close()
    if as_json:
        click.echo(msgspec.json.encode({"name": name, "role": role, "token": secret}).decode())
        return
    click.echo(secret)
    click.echo(
        "Keep it now: it is shown this once. Type it on the login page, or send `Authorization: Bearer`.", err=True
    )


@token.command("list")
@_CONFIG
@json_option
def list_tokens(path: Path, as_json: bool) -> None:
    """Print who has a token: names, roles, and when each was last used."""
    store = _store(path)
    try:
        found = store.tokens()
    finally:
        store.close()
    if as_json:
        rows = [{**msgspec.to_builtins(each), "digest": each.digest[:12]} for each in found]
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return
    table = Table("name", "role", "made", "expires", "last used")
    for each in found:
        table.add_row(
            each.name, each.role, _day(each.created), _day(each.expires) or "never", _day(each.used) or "never"
        )
    Console(soft_wrap=True).print(table)


@token.command("revoke")
@_CONFIG
@click.argument("name")
def revoke(path: Path, name: str) -> None:
    """Forget the token of NAME, and end all sessions that were opened with it, at once."""
    store = _store(path)
    try:
        if not store.revoke_token(name):
            raise TidegaugeError(f"there is no token {name[:80]}", "`tidegauge collector token list` names them")
    finally:
        store.close()
    click.echo(f"revoked: {name}")


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "minutes") if seconds else ""


def _store(path: Path) -> Store:
    """The collector's database; made where there is none, since a token may be needed for the first start."""
    from tidegauge.collector.storage import open_storage

    loaded = configuration.load(path)
    try:
        loaded.data_folder.mkdir(parents=True, exist_ok=True)
        return open_storage(loaded).store
    except OSError as error:
        raise TidegaugeError(
            f"the store can't be used ({error})", "check folder, owner, mode and free space"
        ) from error
