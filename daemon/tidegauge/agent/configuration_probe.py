"""The check `configuration`: agent.toml and the profile it names can be read."""

from __future__ import annotations

from pathlib import Path

from tidegauge.agent.config import read
from tidegauge.configuration import ConfigurationError
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, not_applicable, ok


def run(context: Context) -> Finding:
    if not context.configuration:
        return not_applicable("no --config was given")
    try:
        loaded = read(Path(context.configuration))
    except ConfigurationError as error:
        return failed(error.problem, error.cure)
    return ok(f"{context.configuration}: device {loaded.config.device}, model {loaded.profile.name}")


PROBE = Probe(
    id="configuration",
    title="agent.toml and the model's profile",
    why="the agent refuses to start; the checks that need a configuration say nothing",
    place="anywhere",
    run=run,
    needs_settings=False,
)
