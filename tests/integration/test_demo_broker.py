"""The demo's broker where no mosquitto is installed: amqtt, in the demo's own process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tidegauge.demo import broker
from tidegauge.demo.processes import running
from tidegauge.errors import TidegaugeError
from tidegauge.link.config import LinkConfig
from tidegauge.link.mqtt import connect


def test_amqtt_carries_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "mosquitto", lambda: None)

    async def round_trip() -> tuple[str, bytes]:
        async with (
            asyncio.timeout(30),
            broker.broker(tmp_path, tmp_path) as (port, name),
            connect(LinkConfig(port=port), "somebody") as client,
        ):
            assert name == "amqtt"
            await client.subscribe("tidegauge/v1/+/status")
            await client.publish("tidegauge/v1/board/status", b"{}")
            return await anext(client.messages())

    assert asyncio.run(round_trip()) == ("tidegauge/v1/board/status", b"{}")


def test_a_program_that_ends_by_itself_is_named_with_its_last_words(tmp_path: Path) -> None:
    async def start() -> None:
        async with running("collector", ["sh", "-c", "echo busy port >&2; exit 2"], tmp_path) as child:
            await child.process.wait()
            child.check()

    with pytest.raises(TidegaugeError, match=r"the collector ended with code 2: busy port"):
        asyncio.run(start())
