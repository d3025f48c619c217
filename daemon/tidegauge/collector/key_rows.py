"""Which key a device signs with, and signed commands that wait for a device, in the database."""

from __future__ import annotations

import msgspec
from sqlalchemy import and_, delete, func, select

from tidegauge.clocks import Wall
from tidegauge.collector.database import Database, upsert
from tidegauge.collector.tables import device_keys, devices, waiting_commands

#: Commands that wait for one device; more are not kept.
MAX_WAITING = 32


class DeviceKey(msgspec.Struct, frozen=True):
    """`registered`: a person gave it; else it is that of the first signed manifest. `since`: Unix seconds."""

    device: str
    key: str
    registered: bool
    since: float


class Waiting(msgspec.Struct, frozen=True):
    """A command as it came. `command`: SHA-256 of what was signed; `expires`: Unix seconds."""

    command: str
    envelope: bytes
    expires: float


class KeyRows(Database):
    """Keys and waiting commands."""

    def device_key(self, device: str) -> DeviceKey | None:
        found = self._rows(select(device_keys).where(device_keys.c.device == device), DeviceKey)
        return found[0] if found else None

    def device_keys(self) -> list[DeviceKey]:
        return self._rows(select(device_keys).order_by(device_keys.c.device), DeviceKey)

    def pin_key(self, device: str, key: str, now: Wall) -> str:
        """Take a key for the device's, where none is known. Returns the one that is known now: of two that come at
        once, one is first.
        """
        with self._engine.begin() as connection:
            row = {"device": device, "key": key, "registered": False, "since": now}
            upsert(connection, device_keys, row, only=())
            known = connection.execute(select(device_keys.c.key).where(device_keys.c.device == device)).scalar_one()
        return str(known)

    def register_key(self, device: str, key: str, now: Wall) -> None:
        """A person says which key is the device's."""
        with self._engine.begin() as connection:
            upsert(connection, device_keys, {"device": device, "key": key, "registered": True, "since": now})

    def forget_key(self, device: str) -> bool:
        """Whether there was one."""
        with self._engine.begin() as connection:
            return connection.execute(delete(device_keys).where(device_keys.c.device == device)).rowcount > 0

    def knows_device(self, device: str) -> bool:
        """Whether the device has ever sent anything."""
        with self._reading.begin() as connection:
            return connection.execute(select(devices.c.device).where(devices.c.device == device)).first() is not None

    def keep_command(self, device: str, waiting: Waiting, now: Wall) -> bool:
        """Keep a command until it is answered or expires. False where the device has too many."""
        table = waiting_commands
        with self._engine.begin() as connection:
            connection.execute(delete(table).where(table.c.expires <= now))
            count = select(func.count()).select_from(table).where(table.c.device == device)
            if connection.execute(count).scalar_one() >= MAX_WAITING:
                return False
            row = {"device": device, **msgspec.structs.asdict(waiting), "received": now}
            upsert(connection, table, row, only=())  # sent again, it keeps its place
        return True

    def waiting_commands(self, device: str, now: Wall) -> list[Waiting]:
        """In the order in which they came."""
        table = waiting_commands
        columns = (table.c.command, table.c.envelope, table.c.expires)
        query = select(*columns).where(and_(table.c.device == device, table.c.expires > now))
        return self._rows(query.order_by(table.c.received), Waiting)

    def end_command(self, device: str, command: str) -> None:
        """The device has answered."""
        table = waiting_commands
        with self._engine.begin() as connection:
            connection.execute(delete(table).where(and_(table.c.device == device, table.c.command == command)))
