from __future__ import annotations

import array
import asyncio
import os
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.errors import TidegaugeError
from tidegauge.pipeline.channel import (
    FD_ENVIRONMENT,
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


@pytest.fixture
def ends() -> Any:
    left, right = pair()
    channel: Channel[Any] = Channel(left, ANY)
    other: Channel[Any] = Channel(right, ANY)
    yield channel, other
    channel.close()
    other.close()


def test_messages_keep_order_and_carry_a_descriptor(ends: tuple[Channel[Any], Channel[Any]]) -> None:
    worker, agent = ends
    with Path(os.devnull).open() as file:
        worker.send(SlotFree(1))
        worker.send(SlotFree(2), file.fileno())
        worker.send(Stop())
        assert agent.receive(DEADLINE) == (SlotFree(1), None)
        message, fd = agent.receive(DEADLINE)
        assert message == SlotFree(2)
        assert fd is not None
        assert fd != file.fileno()
        assert os.fstat(fd).st_rdev == os.fstat(file.fileno()).st_rdev
        assert not os.get_inheritable(fd), "a grandchild must not keep the ring alive"
        os.close(fd)
        assert agent.receive(DEADLINE) == (Stop(), None)


def test_a_time_out_is_not_an_end(ends: tuple[Channel[Any], Channel[Any]]) -> None:
    worker, agent = ends
    with pytest.raises(TimeoutError):
        agent.receive(0.01)
    worker.send(Stop())
    assert agent.receive(0) == (Stop(), None)


def test_waiting_in_receive_puts_no_time_out_on_other_threads_sends(ends: tuple[Channel[Any], Channel[Any]]) -> None:
    worker, agent = ends
    sent = 0
    failures: list[Exception] = []

    def flood() -> None:
        nonlocal sent
        try:
            for slot in range(5000):  # far more than the socket's buffer holds
                worker.send(SlotFree(slot))
                sent += 1
        except (OSError, ChannelClosed) as error:
            failures.append(error)

    thread = threading.Thread(target=flood)
    thread.start()
    with pytest.raises(TimeoutError):
        worker.receive(0.3)
    received = [agent.receive(DEADLINE)[0].slot for _ in range(5000)]
    thread.join(DEADLINE)
    assert failures == []
    assert received == list(range(5000))


def test_the_last_message_of_one_who_left_in_a_hurry_arrives(ends: tuple[Channel[Any], Channel[Any]]) -> None:
    worker, agent = ends
    agent.send(SlotFree(1))  # never read: the kernel reports a reset, ahead of the message below
    worker.send(Failed("device_error", "it broke", "mend it"))
    worker.close()
    assert agent.receive(DEADLINE)[0] == Failed("device_error", "it broke", "mend it")
    with pytest.raises(ChannelClosed):
        agent.receive(DEADLINE)
    with pytest.raises(ChannelClosed):
        agent.send(Stop())


def test_leave_wakes_a_waiting_receive_and_sending_goes_on(ends: tuple[Channel[Any], Channel[Any]]) -> None:
    worker, agent = ends
    result: list[str] = []

    def wait() -> None:
        try:
            worker.receive()
        except ChannelClosed:
            result.append("closed")

    thread = threading.Thread(target=wait)
    thread.start()
    worker.leave()
    thread.join(DEADLINE)
    assert result == ["closed"]
    worker.send(SlotFree(7))
    assert agent.receive(DEADLINE)[0] == SlotFree(7)


def test_leave_ignores_what_is_queued(ends: tuple[Channel[Any], Channel[Any]]) -> None:
    worker, agent = ends
    agent.send(SlotFree(1))
    worker.leave()
    with pytest.raises(ChannelClosed):
        worker.receive(DEADLINE)


def test_an_oversized_message_is_refused_on_both_sides(ends: tuple[Channel[Any], Channel[Any]]) -> None:
    worker, agent = ends
    with pytest.raises(ValueError, match="over 131072"):
        worker.send(Failed("x", "y" * MAX_MESSAGE, ""))
    worker._sock.send(msgspec.msgpack.encode(Failed("x", "y" * MAX_MESSAGE, "")))
    with pytest.raises(BadMessage, match="longer than agreed"):
        agent.receive(DEADLINE)


def test_descriptors_of_a_bad_message_are_closed(ends: tuple[Channel[Any], Channel[Any]]) -> None:
    worker, agent = ends
    with Path(os.devnull).open() as file:
        before = open_descriptors()
        for count, data in ((1, b"\xc1"), (2, msgspec.msgpack.encode(Stop()))):
            fds = array.array("i", [file.fileno()] * count)
            worker._sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            with pytest.raises(BadMessage):
                agent.receive(DEADLINE)
        assert open_descriptors() == before


@settings(max_examples=200)
@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_a_message_or_a_typed_error(data: bytes) -> None:
    left, right = pair()
    channel: Channel[Any] = Channel(right, ANY)
    with left:
        left.send(data)
        try:
            message, _ = channel.receive(DEADLINE)
        except BadMessage:
            pass
        else:
            assert isinstance(message, ANY)
        finally:
            channel.close()


@pytest.mark.parametrize("value", [None, "", "nonsense", "987654"])
def test_a_worker_started_by_hand_says_so(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv(FD_ENVIRONMENT, raising=False)
    else:
        monkeypatch.setenv(FD_ENVIRONMENT, value)
    with pytest.raises(TidegaugeError, match="started by hand: run `tidegauge agent run` instead"):
        Channel.from_environment(Stop)


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
