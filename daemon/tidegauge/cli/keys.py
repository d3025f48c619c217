"""`tidegauge keys`: an operator's key pair, and the key of the board at hand."""

from __future__ import annotations

from pathlib import Path

import click

from tidegauge import signing
from tidegauge.bundles import sealing
from tidegauge.cli.running import state_folder, state_options


@click.group("keys")
def command() -> None:
    """Keys that commands and manifests are signed with (Ed25519), or pictures encrypted to (X25519)."""


@command.command("new")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--for",
    "use",
    type=click.Choice(["commands", "pictures"]),
    default="commands",
    show_default=True,
    help="What the key is for: commands to boards, or reading what boards encrypt.",
)
def new(file: Path, use: str) -> None:
    """Make a key in FILE (mode 0600), and print its public half.

    For commands: whoever has the file may command every board that pins it. For pictures: only who has the file can see
    the tensors and traces of boards that encrypt to it. Keep it off the boards, the broker and the collector.
    """
    if use == "pictures":
        public = sealing.create(file.resolve())
        click.echo(public)
        click.echo(f'set it in the agent.toml of each board:\n[privacy]\nencrypt_to = "{public}"', err=True)
        return
    key = signing.create(file.resolve())
    click.echo(key.public)
    click.echo(f'pin it in the agent.toml of each board:\n[commands]\noperators = ["{key.public}"]', err=True)


@command.command("show")
@click.argument("file", type=click.Path(path_type=Path))
def show(file: Path) -> None:
    """Print the public half of the key in FILE."""
    click.echo(signing.load(file).public)


@command.command("device")
@state_options
def device(config: Path | None, state: Path | None) -> None:
    """Print the public half of this board's own key, to be compared or registered at the collector."""
    click.echo(signing.load(state_folder(config, state) / "device.key").public)
