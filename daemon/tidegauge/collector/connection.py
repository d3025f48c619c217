"""The collector's connection to the broker: kept up, subscribed, and answering."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from tidegauge.collector.ingest import TOPICS
from tidegauge.link import mqtt
from tidegauge.link.config import LinkConfig

_log = logging.getLogger(__name__)

#: Boards must not storm a broker that comes back, and wait for long; the one collector they wait for should not.
_LONGEST_PAUSE = 15.0

Put = Callable[[str, bytes], Awaitable[None]]


class BrokerLink:
    """`run` connects again and again until it is cancelled. `told` hears whether the broker is connected."""

    def __init__(self, config: LinkConfig, client_id: str, told: Callable[[bool], None]) -> None:
        self._config, self._client_id, self._told = config, client_id, told
        self._open: mqtt.Connection | None = None

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
            _log.error("%s", error)
        except mqtt.LinkLost as error:
            _log.info("an answer was not sent: %s", error)

    async def run(self, put: Put) -> None:
        """Hand every message to `put`, until cancelled."""
        failures = 0
        while True:
            try:
                async with mqtt.connect(self._config, self._client_id) as connection:
                    for topic in TOPICS:
                        await connection.subscribe(topic)
                    _log.info("connected to the broker %s:%d", self._config.host, self._config.port)
                    failures = 0
                    await self._listen(connection, put)
            except mqtt.LinkError as error:
                bound = min(self._config.backoff_most, _LONGEST_PAUSE, self._config.backoff_first * 2.0**failures)
                failures = min(failures + 1, 16)
                pause = random.uniform(0.1, bound)
                _log.warning("%s; next try in %.1f s", error, pause)
                await asyncio.sleep(pause)

    async def _listen(self, connection: mqtt.Connection, put: Put) -> None:
        self._open = connection
        self._told(True)
        try:
            async for topic, payload in connection.messages():
                await put(topic, payload)
        finally:
            self._open = None
            self._told(False)
            if connection.inbound_dropped:
                _log.warning("%d messages came faster than they could be taken", connection.inbound_dropped)
