"""What the demo knows of agent and collector: only what anybody could: MQTT topics, and the collector's HTTP API."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import msgspec

from tidegauge.demo.settings import DEVICE
from tidegauge.errors import TidegaugeError
from tidegauge.link.config import LinkConfig
from tidegauge.link.mqtt import connect
from tidegauge.link.wire import AlarmChange, Status, decode, topic


class DeviceWatch:
    """Follows the device's status and alarms. `run()` beside the rest; `until()` waits for a condition."""

    def __init__(self, port: int) -> None:
        self._config = LinkConfig(port=port, backoff_most=2.0)
        self.status: Status | None = None
        self.alarms: list[AlarmChange] = []
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        topics = {topic(DEVICE, "status"): Status, topic(DEVICE, "alarm"): AlarmChange}
        async with connect(self._config, "tidegauge-demo") as client:
            for name in topics:
                await client.subscribe(name)
            async for name, payload in client.messages():
                try:
                    self._take(decode(topics[name], payload))
                except (KeyError, msgspec.DecodeError):
                    continue  # not what was subscribed for
                async with self._changed:
                    self._changed.notify_all()

    def _take(self, message: Any) -> None:
        if isinstance(message, Status):
            self.status = message
        elif isinstance(message, AlarmChange):
            self.alarms.append(message)

    async def until(
        self, condition: Callable[[], bool], seconds: float, what: str, each: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until `condition()`; `each` is called at every change and at least twice a second."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not condition():
            each()
            if loop.time() > deadline:
                raise TidegaugeError(f"no {what} within {seconds:.0f} s", "see the logs whose folder is named above")
            try:
                async with asyncio.timeout(0.5), self._changed:
                    await self._changed.wait()
            except TimeoutError:
                continue  # time to look at the deadline and at the other programs
        each()


async def get_json(url: str) -> Any:
    """The answer of an HTTP GET, decoded; None for 404. Raises TidegaugeError otherwise."""
    return await asyncio.to_thread(_get, url)


def _get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return msgspec.json.decode(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise TidegaugeError(f"{url} answered {error.code}", "see collector.log") from error
    except (urllib.error.URLError, msgspec.DecodeError) as error:
        raise TidegaugeError(f"{url} gave no usable answer ({error})", "see collector.log") from error
