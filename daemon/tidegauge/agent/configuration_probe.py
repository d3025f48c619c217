"""The check `configuration`: agent.toml and its profile can be read; and what the other checks need of them."""

from __future__ import annotations

from pathlib import Path

from tidegauge.agent.config import Loaded, read
from tidegauge.configuration import ConfigurationError
from tidegauge.preflight.context import Context, Settings
from tidegauge.preflight.probe import Finding, Probe, failed, not_applicable, ok


def settings_of(loaded: Loaded) -> Settings:
    """What the checks need of a configuration."""
    config, capture = loaded.config, loaded.config.capture
    return Settings(
        device=config.device,
        state=str(loaded.state),
        profile=loaded.profile,
        camera=config.camera,
        link=config.link,
        spool=config.spool,
        module=config.runtime.module,
        capture=capture.enabled,
        debug_level=capture.debug_level,
        trace_folder=capture.trace_folder,
        remote_log=capture.remote_log,
        room_mib=capture.room_mib,
    )


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
