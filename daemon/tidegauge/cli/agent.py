"""`tidegauge agent run`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from tidegauge.agent import app
from tidegauge.agent.config import load
from tidegauge.agent.control_messages import CaptureNow, LogLevel, Pull, Reload, SelfTest, SetLogLevel, SetSampling
from tidegauge.cli.numbers import FiniteRange
from tidegauge.cli.running import json_option, state_options, tell
from tidegauge.errors import TidegaugeError
from tidegauge.log_kinds import PREFIX, START_REFUSED

log = logging.getLogger(__name__)

#: A capture on a board takes minutes; the agent itself keeps the deadlines.
CAPTURE_SECONDS, ROUND_SECONDS = 3600.0, 400.0


@click.group("agent")
def command() -> None:
    """The agent on the board."""


@command.command("run")
@click.option("--config", "config", type=click.Path(path_type=Path), required=True, help="agent.toml")
def run(config: Path) -> None:
    """Watch the accelerator until SIGTERM or Ctrl-C."""
    output = app.begin_log()
    try:
        loaded = load(config)
        output.always = {f"{PREFIX}DEVICE": loaded.config.device, f"{PREFIX}MODEL": loaded.profile.name}
        app.run(loaded)
    except TidegaugeError as error:
        if output.journal is None:
            raise
        # As text it would come without its id: by that it is found, and explained by the journal's catalogue.
        log.error("%s", error, extra=START_REFUSED.of(exit_code=int(error.exit_code)))
        sys.exit(error.exit_code)


@command.command("capture")
@state_options
@json_option
def capture(config: Path | None, state: Path | None, as_json: bool) -> None:
    """Take a capture of the next frame now. All limits hold; a refusal says which."""
    tell(CaptureNow(), config, state, as_json=as_json, timeout=CAPTURE_SECONDS)


@command.command("self-test")
@state_options
@json_option
def self_test(config: Path | None, state: Path | None, as_json: bool) -> None:
    """Run the golden tensors now, on both sides."""
    tell(SelfTest(), config, state, as_json=as_json, timeout=ROUND_SECONDS)


@command.command("log-level")
@click.argument("level", type=click.Choice(["debug", "info", "warning", "error"]))
@state_options
@json_option
def log_level(level: LogLevel, config: Path | None, state: Path | None, as_json: bool) -> None:
    """Set the log level of the running agent until it ends."""
    tell(SetLogLevel(level), config, state, as_json=as_json)


@command.command("set-sampling")
@click.argument("gap_mean", type=FiniteRange(0, 86400, min_open=True))
@click.option("--floor", type=FiniteRange(0, 86400), help="Seconds at least; a third of the mean by default.")
@state_options
@json_option
def set_sampling(gap_mean: float, floor: float | None, config: Path | None, state: Path | None, as_json: bool) -> None:
    """Take a shadow sample every GAP_MEAN seconds on average, within the CPU budget, until agent.toml is read again."""
    tell(SetSampling(gap_mean, floor), config, state, as_json=as_json)


@command.command("reload")
@state_options
@json_option
def reload(config: Path | None, state: Path | None, as_json: bool) -> None:
    """Read agent.toml again; says what was taken, and what waits for a restart."""
    tell(Reload(), config, state, as_json=as_json, timeout=30.0)


@command.command("pull")
@click.argument("bundle")
@state_options
@json_option
def pull(bundle: str, config: Path | None, state: Path | None, as_json: bool) -> None:
    """Send a bundle of the spool before all others, whatever the hour."""
    tell(Pull(bundle), config, state, as_json=as_json)
