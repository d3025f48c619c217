"""What the agent's state folder tells: whether an agent runs on it."""

from __future__ import annotations

import msgspec

from tidegauge.preflight.context import Context


class _Ready(msgspec.Struct, frozen=True):
    pid: int


def running_agent(context: Context) -> int | None:
    """The pid in `agent.json` of the state folder, if that process lives."""
    if context.settings is None:
        return None
    try:
        ready = msgspec.json.decode((context.path(context.settings.state) / "agent.json").read_bytes(), type=_Ready)
    except (OSError, msgspec.DecodeError):
        return None  # no agent has started here, or it ended in order
    return ready.pid if (context.path("/proc") / str(ready.pid)).is_dir() else None
