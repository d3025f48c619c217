"""What the commands that talk to a running agent share: how it is found, and how an answer is printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from tidegauge.agent.config import AgentConfig
from tidegauge.agent.control import ask
from tidegauge.agent.control_messages import Answer, AnyCommand
from tidegauge.configuration import load_toml
from tidegauge.errors import TidegaugeError


def state_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--config` and `--state`: either names the agent."""
    config = click.option("--config", "config", type=click.Path(path_type=Path), help="agent.toml of the agent.")
    state = click.option("--state", "state", type=click.Path(path_type=Path), help="Or its state folder.")
    return config(state(function))


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def state_folder(config: Path | None, state: Path | None) -> Path:
    """The agent's state folder. Raises TidegaugeError unless exactly one of both is given."""
    if (config is None) == (state is None):
        raise TidegaugeError("which agent?", "give either --config agent.toml or --state FOLDER")
    if state is not None:
        return state
    assert config is not None
    return config.resolve().parent / load_toml(config, AgentConfig).state


def tell(
    command: AnyCommand, config: Path | None, state: Path | None, *, as_json: bool, timeout: float = 10.0
) -> Answer:
    """Send a command to the agent and print what it did. Raises TidegaugeError where it refuses or isn't there."""
    answer = ask(state_folder(config, state), command, timeout)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    elif answer.sentence:
        click.echo(answer.sentence)
    return answer
