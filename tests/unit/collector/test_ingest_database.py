"""A database that fails for a while ends no ingester: what it could not take is counted, and asked for again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from tidegauge.collector.ingest import Ingest
from tidegauge.collector.reception import Reception
from tidegauge.collector.shelf import Shelf
from tidegauge.link.answers import judge
from tidegauge.link.commands import chunk_topic, fin_topic, init_topic
from tidegauge.link.wire import AlarmChange, FileResponse, Init, encode, topic

DEVICE = "cam-1"
COUNTED = b'postponed_total{reason="database"}'


def failing(*_: object, **__: object) -> None:
    raise OperationalError("select", {}, Exception("the server closed the connection unexpectedly"))


@pytest.mark.parametrize("broken", ["seen", "record", "tick", "set_alarm"])
def test_a_database_that_fails_ends_no_ingester(
    broken: str, shelf: Shelf, bundle_maker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bundle_maker().head
    name = hashlib.sha256(content).hexdigest()
    init = Init("manifest.json", len(content), name, {"kind": "manifest", "bundle": "bundle-0001"})
    alarm = AlarmChange("a", True, "loss", "accelerator", ("band",), "loss is high", 1.0, "boot", 2.0)
    answers: list[FileResponse] = []

    async def work() -> None:
        heard = asyncio.Event()

        async def publish(_: str, payload: bytes) -> None:
            answer = judge(payload, frozenset(), "")
            assert isinstance(answer, FileResponse)
            answers.append(answer)
            heard.set()

        ingest = Ingest(shelf, publish)
        task = asyncio.create_task(ingest.run())
        async with asyncio.timeout(60):
            with monkeypatch.context() as fault:
                fault.setattr(Reception if broken in ("record", "tick") else type(shelf.store), broken, failing)
                await ingest.put(topic(DEVICE, "alarm"), encode(alarm))
                await ingest.put(init_topic(DEVICE, name), encode(init))
                await heard.wait()
                while COUNTED not in shelf.metrics.render():  # noqa: ASYNC110 # nobody signals it
                    await asyncio.sleep(0.05)
            await ingest.put(chunk_topic(DEVICE, name, 0, name), content)
            await ingest.put(fin_topic(DEVICE, name, len(content)), b"")
            while not any(answer.stored for answer in answers):
                heard.clear()
                await heard.wait()
        assert not task.done(), "the ingester goes on"
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(work())
