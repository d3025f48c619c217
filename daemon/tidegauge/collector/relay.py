"""Commands to boards from pages and API, signed here with a key that the configuration names. Off without one.

A command waits in the database until its device has answered or it expires, like any that passes by: so a process that
has no connection to the broker can give one too, and a device that is offline hears it when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from tidegauge.clocks import Wall, wall
from tidegauge.collector.key_rows import MAX_WAITING, Waiting
from tidegauge.collector.request_rows import SentCommand
from tidegauge.collector.store import Store
from tidegauge.errors import TidegaugeError
from tidegauge.link.board_commands import AnyCommand
from tidegauge.link.command_wire import Signed, command_topic, digest, new_order, sign_order
from tidegauge.signing import KeyProvider

_OVER = ("done", "refused", "failed")


class NotSent(TidegaugeError):
    """A command that was not given."""


@dataclass(frozen=True)
class Relay:
    """`publish` sends a message where `connected`."""

    store: Store
    key: KeyProvider
    publish: Callable[[str, bytes], Awaitable[None]]
    connected: Callable[[], bool]

    async def send(self, device: str, action: AnyCommand, who: str, life: float) -> SentCommand:
        """Sign a command for `who`, keep it, and publish it. Raises NotSent where too many wait for the device."""
        now = wall()
        order = new_order(device, action, now, life)
        envelope = sign_order(order, self.key)
        name = digest(msgspec.json.decode(envelope, type=Signed).payload)
        kept = await asyncio.to_thread(self.store.keep_command, device, Waiting(name, envelope, order.expires), now)
        if not kept:
            raise NotSent(f"{MAX_WAITING} commands wait for {device} already", "wait until they expire")
        connected = self.connected()
        command = SentCommand(
            command=order.id,
            device=device,
            digest=name,
            who=who,
            action=msgspec.to_builtins(action),
            issued=order.issued,
            expires=order.expires,
            state="sent" if connected else "waiting",
            updated=now,
        )
        await asyncio.to_thread(self.store.add_command, command)
        if connected:
            await self.publish(command_topic(device), envelope)
        return command


def as_of(command: SentCommand, now: Wall) -> SentCommand:
    """A command as it stands: one that nobody has answered in its time has failed. Pure."""
    if command.state in _OVER or command.state == "running" or now <= command.expires:
        return command
    return msgspec.structs.replace(
        command,
        state="failed",
        reason="expired",
        sentence=f"{command.device} did not answer before the command expired",
        cure="see whether it is connected, and whether its agent.toml pins this collector's key",
    )
