"""Devices and their alarms in the database."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, Select, and_, delete, func, not_, or_, select, update

from tidegauge.clocks import Wall
from tidegauge.collector.database import Database, upsert
from tidegauge.collector.device_metrics import OUTDATED, ActiveAlarm
from tidegauge.collector.fleet_drift import LEAST_LOG_E, Drifting, standing_out
from tidegauge.collector.measures import measures
from tidegauge.collector.tables import Device, alarms, devices, identity
from tidegauge.link import vitals
from tidegauge.link.wire import AlarmChange, Status

#: Ids of alarms that only a status has told of; a board's own ids have no colon.
_TOLD = "status:"
_UNHEARD = "The board's status names this alarm. No message of its own has come; another's may speak for it."


class DeviceRows(Database):
    """What boards told of themselves."""

    def collector(self) -> str:
        """The name of this collector: the database's, whichever process asks."""
        with self._reading.begin() as connection:
            return str(connection.execute(select(identity.c.collector)).scalar_one())

    def made(self) -> float:
        """Unix seconds at which this collector's database was made."""
        with self._reading.begin() as connection:
            return float(connection.execute(select(identity.c.made)).scalar_one())

    def set_status(self, device: str, status: Status, now: Wall) -> bool:
        """Record a status. False where it belongs to an older session than the one known: a late will, ignored.

        A status is retained at the broker and repeated, so it also tells of alarms whose own message was not heard.
        """
        row = {"device": device, **msgspec.to_builtins(status), "last_seen": now}
        row |= msgspec.structs.asdict(measures(status.detail))
        # A will knows nothing of phase and model, and is not a sign of life: keep what the device said last.
        only = ("session", "state") if status.state == "lost" else None
        with self._engine.begin() as connection:
            if not upsert(connection, devices, row, only, where=devices.c.session <= status.session):
                return False
            if status.state == "online":
                _match_alarms(connection, device, status, now)
        return True

    def seen(self, device: str, now: Wall) -> None:
        """A device has sent something. One that has not told its status yet has the state "unknown"."""
        row = {"device": device, **msgspec.to_builtins(Status("online", 0)), "state": "unknown", "last_seen": now}
        with self._passing.begin() as connection:
            upsert(connection, devices, row, only=("last_seen",))

    def set_alarm(self, device: str, alarm: AlarmChange, now: Wall) -> None:
        """An alarm was raised or cleared. One that was cleared stays so, in whatever order the messages come."""
        row = {
            "device": device,
            "alarm": alarm.id,
            "active": alarm.active,
            "detector": alarm.detector,
            "verdict": alarm.verdict,
            "symptoms": list(alarm.symptoms),
            "message": alarm.message,
            "wall": alarm.wall,
            "received": now,
        }
        with self._engine.begin() as connection:
            upsert(connection, alarms, row, where=alarms.c.active)
            told = and_(alarms.c.device == device, alarms.c.alarm == _TOLD + alarm.detector)
            connection.execute(delete(alarms).where(told))

    def devices(self) -> list[Device]:
        return self._rows(device_query().order_by(devices.c.device), Device)

    def standing_out(self) -> list[Drifting]:
        """Boards that stand out from the whole fleet, those with most evidence first: see `fleet_drift`."""
        found = (devices.c.device, devices.c.model, devices.c.log_e)
        told = self._rows(select(*found).where(devices.c.log_e >= LEAST_LOG_E), Drifting)
        return standing_out(told, self.device_count()) if told else []

    def device_count(self) -> int:
        with self._reading.begin() as connection:
            return int(connection.execute(select(func.count()).select_from(devices)).scalar_one())

    def active_alarms(self) -> list[ActiveAlarm]:
        """Alarms that were raised and not cleared, of all devices."""
        found = (alarms.c.device, alarms.c.detector, alarms.c.verdict, alarms.c.received)
        return self._rows(select(*found).where(alarms.c.active), ActiveAlarm)


def device_query() -> Select[Any]:
    """Devices with their number of active alarms, which is counted once for all of them."""
    raised = (
        select(alarms.c.device, func.count().label("alarms"))
        .where(alarms.c.active)
        .group_by(alarms.c.device)
        .subquery("raised")
    )
    count = func.coalesce(raised.c.alarms, 0).label("alarms")
    return select(devices, count).outerjoin(raised, raised.c.device == devices.c.device)


def _match_alarms(connection: Connection, device: str, status: Status, now: Wall) -> None:
    """Make the alarm records say what the status says, where their own messages were lost."""
    named = {name.strip()[:64] for name in status.alarm.split(",") if name.strip()}
    active = and_(alarms.c.device == device, alarms.c.active)
    known = set(connection.execute(select(alarms.c.detector).where(active)).scalars())
    for detector in sorted(named - known):
        upsert(connection, alarms, _told_row(device, detector, status, now))
    # An alarm's own message may overtake the status that names it: a fresh one is not taken for cleared.
    over = or_(alarms.c.alarm.startswith(_TOLD), alarms.c.received < now - OUTDATED)
    gone = and_(active, over, not_(alarms.c.detector.in_(sorted(named))))
    connection.execute(update(alarms).where(gone).values(active=False))


def _told_row(device: str, detector: str, status: Status, now: Wall) -> dict[str, Any]:
    told = [key for key, value in status.detail.items() if key.startswith(vitals.ALARM) and value]
    causes = [key.removeprefix(vitals.ALARM) for key in told]
    return {
        "device": device,
        "alarm": _TOLD + detector,
        "active": True,
        "detector": detector,
        "verdict": causes[0] if len(causes) == 1 else "undecided",
        "symptoms": [],
        "message": _UNHEARD,
        "wall": now,
        "received": now,
    }
