"""The collector's connection to the broker: kept up, subscribed, and answering, unless another collector does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

import msgspec

from tidegauge.clocks import monotonic
from tidegauge.collector.ingest import TOPICS
from tidegauge.collector.log_kinds import (
    BROKER_DOWN,
    BROKER_REFUSED,
    BROKER_UP,
    MESSAGES_DROPPED,
    SERVES_AGAIN,
    STANDS_BACK,
)
from tidegauge.collector.presence import BEAT, EVERYONE, PREFIX, Neighbours, Presence, word
from tidegauge.link import mqtt
from tidegauge.link.config import LinkConfig

_log = logging.getLogger(__name__)

#: Boards must not storm a broker that comes back, and wait for long; the one collector they wait for should not.
_LONGEST_PAUSE = 15.0
#: Seconds in which a broker delivers what it retains of collectors.
_LOOK = 1.0
#: Seconds for which retained statuses are listened to: members of a group get none of them.
_CATCH_UP = 15.0
_FAREWELL = 2.0
_UNNOTICED = "%s; so a second collector on this broker would not be noticed"

Put = Callable[[str, bytes], Awaitable[None]]


class StandsBack(mqtt.LinkError):
    """Another collector serves this broker."""

    kind = "stands_back"


class BrokerLink:
    """`run` connects again and again until it is cancelled. `told` hears whether the broker is connected.

    `me`: this process, as it says of itself to others. `group`: the name under which processes of one collector share
    the messages; "" for a single one.
    """

    def __init__(
        self,
        config: LinkConfig,
        me: Presence,
        told: Callable[[bool], None],
        topics: tuple[str, ...] = TOPICS,
        group: str = "",
    ) -> None:
        self._topics = topics
        self._config, self._me, self._told, self._group = config, me, told, group
        self._open: mqtt.Connection | None = None
        self._beat = 0
        self._served = False
        #: Why this collector stands back; "" where it serves.
        self.stands_back = ""

    @property
    def connected(self) -> bool:
        return self._open is not None

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish an answer. One that can't be is dropped, with a line in the log: the device asks again."""
        if self._open is None:
            return
        try:
            await self._open.publish(topic, payload)
        except mqtt.PublishRefused as error:
            _log.error("%s", error, extra=BROKER_REFUSED.of(fault=error.kind))
        except mqtt.LinkLost as error:
            _log.info("an answer was not sent: %s", error)

    async def run(self, put: Put) -> None:
        """Hand every message to `put`, until cancelled."""
        failures = 0
        while True:
            try:
                await self._connection(put)
            except* mqtt.LinkError as group:
                failures = 0 if self._served else failures
                bound = min(self._config.backoff_most, _LONGEST_PAUSE, self._config.backoff_first * 2.0**failures)
                failures = min(failures + 1, 16)
                pause = random.uniform(0.1, bound)
                error = _first(group)
                _log.warning("%s; next try in %.1f s", error, pause, extra=BROKER_DOWN.of(fault=error.kind))
            await asyncio.sleep(pause)

    async def _connection(self, put: Put) -> None:
        gone = msgspec.structs.replace(self._me, state="gone")
        self._served = False
        will = mqtt.Will(self._me.topic, word(gone), qos=1, retain=True)
        async with mqtt.connect(self._config, self._me.instance, will=will) as connection:
            neighbours = Neighbours(self._me)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(connection, put, neighbours))
                await self._await_turn(connection, neighbours)
                try:
                    await self._serve(connection, neighbours, group, put)
                except (asyncio.CancelledError, StandsBack):
                    await self._farewell(connection, gone)
                    raise
                finally:
                    self._open = None
                    self._told(False)

    async def _await_turn(self, connection: mqtt.Connection, neighbours: Neighbours) -> None:
        """Return when no other collector has more right to serve this broker."""
        try:
            await connection.subscribe(EVERYONE)
        except mqtt.BrokerRefused as error:
            _log.warning(_UNNOTICED, error, extra=BROKER_REFUSED.of(fault=error.kind))
            return
        await asyncio.sleep(_LOOK)
        while (rival := neighbours.rival(monotonic())) is not None:
            reason = f"collector {rival.collector} on {rival.host} serves this broker, with a database of its own"
            if self.stands_back != reason:
                self.stands_back = reason
                said = STANDS_BACK.of(other=rival.collector)
                _log.error("%s: this one stands back; share one database, or give each a broker", reason, extra=said)
            await asyncio.sleep(_LOOK)
        if self.stands_back:
            _log.warning("the other collector is gone: this one serves", extra=SERVES_AGAIN.of())
        self.stands_back = ""

    async def _serve(
        self, connection: mqtt.Connection, neighbours: Neighbours, group: asyncio.TaskGroup, put: Put
    ) -> None:
        """Take messages, and say so to other collectors, until one with more right is heard."""
        await self._say(connection)
        for topic in self._topics:
            await connection.subscribe(f"$share/{self._group}/{topic}" if self._group else topic)
        _log.info("connected to the broker %s:%d", self._config.host, self._config.port, extra=BROKER_UP.of())
        self._open, self._served = connection, True
        self._told(True)
        if self._group:
            group.create_task(self._catch_up(put))
        due, warned = monotonic() + BEAT, False
        while neighbours.rival(monotonic()) is None:
            await asyncio.sleep(_LOOK)
            if monotonic() >= due:
                due = monotonic() + BEAT
                await self._say(connection)
                if not neighbours.hears_itself and not warned:
                    warned = True
                    _log.warning(
                        "the broker lets no collector hear of others, so a second one would not be noticed: "
                        "allow reading and writing %s/# to collectors in its access list",
                        PREFIX,
                        extra=BROKER_REFUSED.of(fault="presence"),
                    )
        raise StandsBack("another collector with an older database serves this broker", "this one stands back")

    async def _say(self, connection: mqtt.Connection) -> None:
        self._beat += 1
        try:
            presence = msgspec.structs.replace(self._me, beat=self._beat)
            await connection.publish(presence.topic, word(presence), retain=True)
        except mqtt.PublishRefused as error:
            _log.warning(_UNNOTICED, error, extra=BROKER_REFUSED.of(fault=error.kind))

    @staticmethod
    async def _farewell(connection: mqtt.Connection, gone: Presence) -> None:
        with contextlib.suppress(mqtt.LinkError):
            await connection.publish(gone.topic, word(gone), retain=True, timeout=_FAREWELL)

    async def _catch_up(self, put: Put) -> None:
        """What boards told last while nobody listened: a broker hands retained messages to no member of a group."""
        (topic,) = (topic for topic in self._topics if topic.endswith("/status"))
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(_CATCH_UP),
                mqtt.connect(self._config, f"{self._me.instance}-retained") as connection,
            ):
                await connection.subscribe(topic)
                async for each, payload in connection.messages():
                    await put(each, payload)

    async def _listen(self, connection: mqtt.Connection, put: Put, neighbours: Neighbours) -> None:
        try:
            async for topic, payload in connection.messages():
                if topic.startswith(PREFIX):
                    neighbours.hear(topic, payload, monotonic())
                else:
                    await put(topic, payload)
        finally:
            if connection.inbound_dropped:
                said = MESSAGES_DROPPED.of(dropped=connection.inbound_dropped)
                _log.warning("%d messages came faster than they could be taken", connection.inbound_dropped, extra=said)


def _first(group: BaseExceptionGroup[mqtt.LinkError]) -> mqtt.LinkError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, mqtt.LinkError)
    return error
