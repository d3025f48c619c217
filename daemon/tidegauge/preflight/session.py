"""A connection to the broker for the checks."""

from __future__ import annotations

import msgspec

from tidegauge.link.config import LinkConfig
from tidegauge.preflight.context import Context
from tidegauge.preflight.state import running_agent

#: Seconds for each answer of the broker.
PATIENCE = 10.0


def link_of(context: Context) -> LinkConfig:
    """The configured link, with a check's patience."""
    link = context.required.link
    return msgspec.structs.replace(
        link, connect_timeout=min(PATIENCE, link.connect_timeout), publish_timeout=min(PATIENCE, link.publish_timeout)
    )


def client_id(context: Context) -> str:
    """The device's own, since a broker may grant rights by it; another where an agent runs, which it would cut off."""
    device = context.required.device
    return device if running_agent(context) is None else f"{device}-check"
