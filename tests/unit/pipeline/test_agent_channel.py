"""The agent's end of a channel: what arrives, what waits, what is told late, and how it ends."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegauge.pipeline.channel import (
    MAX_MESSAGE,
    MOST_WAITING,
    AgentChannel,
    BadMessage,
    Channel,
    ChannelClosed,
)
from tidegauge.pipeline.messages import Failed, FrameReady, SlotFree, Stop

DEADLINE = 60.0
ANY = Failed | FrameReady | SlotFree | Stop


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_two_tasks_may_send_while_the_buffer_is_full() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        worker: Channel[Any] = Channel(right, ANY)

        async def flood(first: int) -> None:
            for slot in range(first, first + 3000):
                await agent.send(SlotFree(slot))

        def drain() -> list[int]:
            return [worker.receive(DEADLINE)[0].slot for _ in range(6000)]

        async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
            group.create_task(flood(0))
            group.create_task(flood(3000))
            await asyncio.sleep(0.05)  # both are blocked by now
            received = group.create_task(asyncio.to_thread(drain))
        slots = received.result()
        assert [slot for slot in slots if slot < 3000] == list(range(3000))
        assert [slot for slot in slots if slot >= 3000] == list(range(3000, 6000))
        agent.close()
        worker.close()

    asyncio.run(scenario())


def test_a_talkative_worker_does_not_starve_the_loop() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        worker: Channel[Any] = Channel(right, ANY)
        others = 0

        async def other() -> None:
            nonlocal others
            while True:
                await asyncio.sleep(0)
                others += 1

        for slot in range(100):
            worker.send(SlotFree(slot))
        task = asyncio.create_task(other())
        for _ in range(100):
            await agent.receive()
        task.cancel()
        assert others >= 99
        agent.close()
        worker.close()

    asyncio.run(scenario())


def test_close_ends_waiting_tasks() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        waiting = asyncio.create_task(agent.receive())
        await asyncio.sleep(0.01)
        agent.close()
        agent.close()
        with pytest.raises(ChannelClosed):
            await asyncio.wait_for(waiting, DEADLINE)
        with pytest.raises(ChannelClosed):
            await agent.send(Stop())
        with pytest.raises(ChannelClosed):
            await agent.receive()
        right.close()

    asyncio.run(scenario())


def test_a_cancelled_receive_loses_no_message() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        worker: Channel[Any] = Channel(right, ANY)
        for slot in range(20):
            waiting = asyncio.create_task(agent.receive())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            waiting.cancel()
            worker.send(SlotFree(slot))
            await asyncio.gather(waiting, return_exceptions=True)
            assert (await asyncio.wait_for(agent.receive(), DEADLINE))[0] == SlotFree(slot)
        worker.close()
        with pytest.raises(ChannelClosed):
            await asyncio.wait_for(agent.receive(), DEADLINE)
        agent.close()

    asyncio.run(scenario())


def test_what_came_before_the_end_is_received_before_the_end() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        worker: Channel[Any] = Channel(right, ANY)
        await agent.send(SlotFree(1))  # never read: the kernel reports a reset, ahead of the messages below
        told = asyncio.Event()
        agent.watch(told.set)
        worker.send(SlotFree(2))
        worker.send(Failed("device_error", "it broke", "mend it"))
        worker.close()
        await asyncio.wait_for(told.wait(), DEADLINE)
        assert (await asyncio.wait_for(agent.receive(), DEADLINE))[0] == SlotFree(2)
        assert (await asyncio.wait_for(agent.receive(), DEADLINE))[0] == Failed("device_error", "it broke", "mend it")
        for _ in range(2):
            with pytest.raises(ChannelClosed):
                await asyncio.wait_for(agent.receive(), DEADLINE)
        assert agent.waiting
        agent.close()

    asyncio.run(scenario())


def test_a_bad_message_is_told_in_its_turn_and_the_channel_lives() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        worker: Channel[Any] = Channel(right, ANY)
        worker.send(SlotFree(1))
        right.send(msgspec.msgpack.encode(Failed("x", "y" * MAX_MESSAGE, "")))
        right.send(b"\xc1")
        worker.send(SlotFree(2))
        assert (await agent.receive())[0] == SlotFree(1)
        for _ in range(2):
            with pytest.raises(BadMessage):
                await asyncio.wait_for(agent.receive(), DEADLINE)
        assert (await agent.receive())[0] == SlotFree(2)
        agent.close()
        worker.close()

    asyncio.run(scenario())


def test_a_worker_that_nobody_listens_to_waits_in_the_end_and_nothing_is_lost() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        worker: Channel[Any] = Channel(right, ANY)
        told, total = 0, 5000  # far more than the socket's buffer holds

        def count() -> None:
            nonlocal told
            told += 1
            if told == MOST_WAITING:
                full.set()
            if told > total:
                again.set()

        full, again = asyncio.Event(), asyncio.Event()
        agent.watch(count)
        flood = asyncio.create_task(asyncio.to_thread(lambda: [worker.send(SlotFree(n)) for n in range(total)]))
        await asyncio.wait_for(full.wait(), DEADLINE)
        for _ in range(100):
            await asyncio.sleep(0)
        assert told == MOST_WAITING
        assert not flood.done()
        async with asyncio.timeout(DEADLINE):
            received = [(await agent.receive())[0].slot for _ in range(total)]
            await flood
        assert received == list(range(total))
        worker.send(Stop())  # it is watched again
        await asyncio.wait_for(again.wait(), DEADLINE)
        agent.close()
        worker.close()

    asyncio.run(scenario())


def test_close_gives_back_descriptors_that_nobody_has_received_and_forgets_the_number() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        worker: Channel[Any] = Channel(right, ANY)
        told = asyncio.Event()
        before = open_descriptors()
        agent.watch(told.set)
        worker.send(SlotFree(1), right.fileno())
        await asyncio.wait_for(told.wait(), DEADLINE)
        assert open_descriptors() == before + 1
        number = left.fileno()
        agent.close()
        assert open_descriptors() == before - 1
        # The next socket gets the closed one's number: an old callback of the loop would read from it.
        again, other = pair()
        assert number in (again.fileno(), other.fileno())
        successor: AgentChannel[Any] = AgentChannel(again if again.fileno() == number else other, ANY)
        peer: Channel[Any] = Channel(other if again.fileno() == number else again, ANY)
        waiting = asyncio.create_task(successor.receive())
        await asyncio.sleep(0)
        agent.close()
        peer.send(SlotFree(9))
        assert (await asyncio.wait_for(waiting, DEADLINE))[0] == SlotFree(9)
        successor.close()
        peer.close()
        worker.close()

    asyncio.run(scenario())


def test_post_sends_what_takes_no_waiting_and_says_what_does() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        worker: Channel[Any] = Channel(right, ANY)
        sent = 0
        while agent.post(SlotFree(sent)):
            sent += 1
        assert [worker.receive(DEADLINE)[0].slot for _ in range(sent)] == list(range(sent))
        assert agent.post(SlotFree(sent))
        worker.close()
        with pytest.raises(ChannelClosed):
            agent.post(Stop())
        agent.close()
        with pytest.raises(ChannelClosed):
            agent.post(Stop())

    asyncio.run(scenario())


def test_an_answer_that_is_due_is_told_late_and_only_then() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        worker: Channel[Any] = Channel(right, ANY)
        told = asyncio.Event()
        agent.watch(told.set)
        agent.expect(DEADLINE)
        agent.expect(0.01)  # an earlier one, after a later one
        await asyncio.wait_for(told.wait(), DEADLINE)
        assert agent.waiting
        with pytest.raises(TimeoutError):
            await agent.receive()
        assert not agent.waiting, "it is told once"
        agent.expect(0.01)
        agent.expect(DEADLINE)  # a later one, after an earlier one whose timer still runs
        told.clear()
        waiting = asyncio.create_task(agent.receive())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        worker.send(SlotFree(1))
        assert (await waiting)[0] == SlotFree(1)
        agent.expect(0.01)
        worker.send(SlotFree(2))
        assert (await agent.receive())[0] == SlotFree(2)
        told.clear()
        await asyncio.sleep(0.05)
        assert not agent.waiting, "what has come is due no more"
        agent.expect(0.01)
        agent.close()
        await asyncio.sleep(0.05)
        worker.close()

    asyncio.run(scenario())


def test_a_cancelled_wait_is_due_no_more() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        agent.expect(0.05)
        waiting = asyncio.create_task(agent.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.1)
        assert not agent.waiting
        agent.close()
        right.close()

    asyncio.run(scenario())


def test_what_comes_while_it_rests_wakes_nobody_and_is_there_at_once() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        worker: Channel[Any] = Channel(right, ANY)
        told = asyncio.Event()
        agent.watch(told.set)
        assert agent.at_once(SlotFree) is None, "nothing is there"
        agent.rest(DEADLINE)
        worker.send(SlotFree(1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not told.is_set()
        assert agent.at_once(SlotFree) == SlotFree(1)
        worker.send(SlotFree(2))
        assert (await agent.receive())[0] == SlotFree(2), "who receives needs no end of the rest"
        agent.close()
        worker.close()

    asyncio.run(scenario())


def test_a_rest_ends_and_what_came_in_it_is_told() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        worker: Channel[Any] = Channel(right, ANY)
        told = asyncio.Event()
        agent.watch(told.set)
        agent.rest(0.01)
        agent.rest(0.02)  # a later end, after an earlier one whose timer still runs
        worker.send(SlotFree(1))
        worker.close()
        await asyncio.wait_for(told.wait(), DEADLINE)
        assert (await agent.receive())[0] == SlotFree(1)
        with pytest.raises(ChannelClosed):
            await agent.receive()
        agent.rest(0.01)
        agent.close()
        await asyncio.sleep(0.02)

    asyncio.run(scenario())


def test_at_once_leaves_to_receive_what_is_not_wanted() -> None:
    async def scenario() -> None:
        left, right = pair()
        agent: AgentChannel[Any] = AgentChannel(left, ANY)
        worker: Channel[Any] = Channel(right, ANY)
        worker.send(Failed("device_error", "it broke", ""))
        worker.send(SlotFree(1), right.fileno())
        right.send(b"\xc1")
        assert agent.at_once(SlotFree) is None
        assert (await agent.receive())[0] == Failed("device_error", "it broke", "")
        assert agent.at_once(SlotFree) is None, "its descriptor is whose who receives"
        message, fd = await agent.receive()
        assert message == SlotFree(1)
        assert fd is not None
        os.close(fd)
        assert agent.at_once(SlotFree) is None
        with pytest.raises(BadMessage):
            await agent.receive()
        worker.close()
        assert agent.at_once(SlotFree) is None
        with pytest.raises(ChannelClosed):
            await agent.receive()
        agent.close()
        with pytest.raises(ChannelClosed):
            agent.at_once(SlotFree)

    asyncio.run(scenario())
