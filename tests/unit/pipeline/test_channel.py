from __future__ import annotations

import array
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
