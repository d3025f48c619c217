"""What comes faster than it is dealt with: chunks of one file go together, other devices don't wait for a check."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec
import pytest

from tidegauge.collector.ingest import Ingest
from tidegauge.collector.reception import Reception
from tidegauge.collector.shelf import Shelf
from tidegauge.link.commands import chunk_topic, fin_topic, init_topic
from tidegauge.link.wire import FileResponse, Init, encode

DATA = Random(4).randbytes(12 * 4096)
NAME = hashlib.sha256(DATA).hexdigest()
INIT = encode(Init("x", len(DATA), NAME, {"kind": "blob"}))


def chunk(device: str, number: int) -> tuple[str, bytes]:
    piece = DATA[number * 4096 : (number + 1) * 4096]
    return chunk_topic(device, NAME, number * 4096, hashlib.sha256(piece).hexdigest()), piece


def neighbours(ingest: Ingest) -> tuple[str, str]:
    """Two devices of one lane."""
    first, *others = (f"cam-{number}" for number in range(100))
    return first, next(each for each in others if ingest._lane(each) is ingest._lane(first))


class Answers:
    def __init__(self) -> None:
        self.said: list[FileResponse] = []
        self._new = asyncio.Event()

    async def publish(self, _topic: str, payload: bytes) -> None:
        self.said.append(msgspec.json.decode(payload, type=FileResponse))
        self._new.set()

    async def until(self, seen: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not seen():
                self._new.clear()
                await self._new.wait()


def run(shelf: Shelf, work: Callable[[Ingest, Answers], Awaitable[None]]) -> None:
    async def test() -> None:
        answers = Answers()
        ingest = Ingest(shelf, answers.publish)
        task = asyncio.create_task(ingest.run())
        await work(ingest, answers)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(test())


class Gate:
    """Holds the calls of a method of `Reception` until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, device: str = "") -> None:
        self.entered, self.open, self.calls = threading.Event(), threading.Event(), list[Any]()
        real = getattr(Reception, method)

        def held(reception: Reception, *args: Any) -> Any:
            self.calls.append(args)
            if not device or reception.device == device:
                self.entered.set()
                assert self.open.wait(60)
            return real(reception, *args)

        monkeypatch.setattr(Reception, method, held)


def test_chunks_that_wait_are_dealt_with_together_and_have_one_answer(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(ingest: Ingest, answers: Answers) -> None:
        await ingest.put(init_topic("cam-1", NAME), INIT)
        await answers.until(lambda: len(answers.said) == 1)
        gate = Gate(monkeypatch, "handle")
        for number in range(12):
            await ingest.put(*chunk("cam-1", number))
        await ingest.put(fin_topic("cam-1", NAME, len(DATA)), b"")
        await asyncio.to_thread(gate.entered.wait, 60)
        gate.open.set()
        await answers.until(lambda: answers.said[-1].stored)
        assert [len(messages) for messages, _ in gate.calls] == [4, 4, 4, 1]
        ends = [4 * 4096, 8 * 4096, 12 * 4096]
        assert [each.acked for each in answers.said[1:-1]] == [((0, end),) for end in ends]

    run(shelf, work)
    assert shelf.blobs.get(NAME, len(DATA)) == DATA


def test_only_chunks_of_the_same_file_go_together(shelf: Shelf) -> None:
    """Two boards in one lane send alternately, with a status between: everybody's bytes and words arrive."""

    async def work(ingest: Ingest, answers: Answers) -> None:
        devices = neighbours(ingest)
        for device in devices:
            await ingest.put(init_topic(device, NAME), INIT)
        for number in range(12):
            for device in devices:
                await ingest.put(*chunk(device, number))
            await ingest.put(f"tidegauge/v1/{devices[0]}/status", encode({"state": "online", "session": number + 1}))
        for device in devices:
            await ingest.put(fin_topic(device, NAME, len(DATA)), b"")
        await answers.until(lambda: sum(each.stored for each in answers.said) == 2)
        status = shelf.store.device(devices[0])
        assert status is not None and status.session == 12

    run(shelf, work)


def test_a_fin_that_came_before_its_last_chunk_stops_no_other_board(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(ingest: Ingest, answers: Answers) -> None:
        hasty, other = neighbours(ingest)
        for device in (hasty, other):
            await ingest.put(init_topic(device, NAME), INIT)
        gate = Gate(monkeypatch, "_verify", hasty)
        for number in range(11):
            await ingest.put(*chunk(hasty, number))
        await ingest.put(fin_topic(hasty, NAME, len(DATA)), b"")
        await ingest.put(*chunk(hasty, 11))
        await asyncio.to_thread(gate.entered.wait, 60)
        for number in range(12):
            await ingest.put(*chunk(other, number))
        whole = ((0, len(DATA)),)
        await answers.until(
            lambda: any(each.topic.split("/")[2] == other and each.acked == whole for each in answers.said)
        )
        assert not any(each.stored for each in answers.said)
        gate.open.set()
        await answers.until(lambda: any(each.stored for each in answers.said))

    run(shelf, work)
