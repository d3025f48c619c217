"""The check `broker`: name, TCP, TLS, MQTT connect."""

from __future__ import annotations

import asyncio
import ipaddress

from tidegauge.link.config import LinkConfig
from tidegauge.link.mqtt import LinkError, connect
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, ok, warning
from tidegauge.preflight.session import client_id, link_of


def run(context: Context) -> Finding:
    link = link_of(context)
    try:
        asyncio.run(_knock(link, client_id(context)))
    except LinkError as error:
        return failed(error.problem, error.cure)
    secure = bool(link.tls or link.ca or link.cert)
    told = f"{link.host}:{link.port} accepts this device ({'TLS' if secure else 'no TLS'}, MQTT {link.protocol})"
    if not secure and not is_local(link.host):
        return warning(told, "turn TLS on (key `link.ca`): alarms, tensors and the password can be read on the way")
    if not link.collector_keys:
        return warning(
            f"{told}; no collector's key is pinned: whoever may publish can make the board delete its evidence",
            "pin the key that `tidegauge collector keys own` prints (key `link.collector_keys`)",
        )
    return ok(told)


async def _knock(link: LinkConfig, client: str) -> None:
    async with connect(link, client):
        pass


def is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


PROBE = Probe(
    id="broker",
    title="MQTT broker: name, TCP, TLS, login",
    why="no alarm and no bundle leaves the board",
    place="anywhere",
    run=run,
    deadline=lambda _context: 40.0,
)
