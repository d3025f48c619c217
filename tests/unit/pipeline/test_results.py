from __future__ import annotations

import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tidegauge.pipeline.process import FailureKind, WorkerFault
from tidegauge.pipeline.results import HEADER_LENGTH, MAX_CLIENTS, ResultHeader, ResultServer, ResultTensor
from tidegauge.runtimes.session import Array
from tidegauge.tensors import TensorSpec

DEADLINE = 60.0
PICTURE = TensorSpec("enhanced", (1, 3, 4, 5), "float32")
SCORES = TensorSpec("scores", (7,), "int16")
BIG = TensorSpec("big", (4 << 20,), "uint8")  # far more than a Unix socket's buffers hold


def outputs(seed: int) -> list[tuple[TensorSpec, Array]]:
    rng = np.random.default_rng(seed)
    picture = rng.random(PICTURE.shape, dtype=np.float32)
    return [(PICTURE, picture), (SCORES, rng.integers(-9, 9, 7).astype(np.int16))]


def big(value: int) -> list[tuple[TensorSpec, Array]]:
    return [(BIG, np.full(BIG.shape, value, np.uint8))]


def exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(min(count - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def read_record(sock: socket.socket) -> tuple[ResultHeader, dict[str, Array]]:
    """What the product's side does, from the format's description alone."""
    (length,) = HEADER_LENGTH.unpack(exactly(sock, 4))
    header = msgspec.msgpack.decode(exactly(sock, length), type=ResultHeader)
    data = exactly(sock, header.nbytes)
    tensors: dict[str, Array] = {}
    for tensor in header.tensors:
        dtype = np.dtype(tensor.dtype).newbyteorder("<")
        count = int(np.prod(tensor.shape))
        tensors[tensor.name] = np.frombuffer(data, dtype, count, tensor.offset).reshape(tensor.shape)
    return header, tensors


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.sock"


@pytest.fixture
def server(path: Path) -> Iterator[ResultServer]:
    server = ResultServer(path)
    yield server
    server.close()
    assert not path.exists()


def connect(server: ResultServer, path: Path) -> socket.socket:
    before = len(server._clients)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(DEADLINE)
    client.connect(str(path))
    until(lambda: len(server._clients) > before)
    return client


def test_a_client_gets_every_frame_whole_and_bit_for_bit(server: ResultServer, path: Path) -> None:
    with connect(server, path) as client, connect(server, path) as second:
        for frame in range(5):
            server.publish(frame, 100.5 + frame, outputs(frame))
            for each in (client, second):
                header, tensors = read_record(each)
                assert (header.frame_id, header.captured, header.dropped) == (frame, 100.5 + frame, 0)
                assert list(tensors) == ["enhanced", "scores"]
                for spec, array in outputs(frame):
                    assert tensors[spec.name].dtype == array.dtype
                    np.testing.assert_array_equal(tensors[spec.name], array)


def test_mode_of_the_socket_lets_the_group_in_and_nobody_else(server: ResultServer, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_client_that_never_reads_costs_the_device_run_nothing(server: ResultServer, path: Path) -> None:
    with connect(server, path) as idle, connect(server, path) as reader:
        slowest = 0.0
        for frame in range(50):
            frames = big(frame)
            started = time.perf_counter()
            server.publish(frame, 0.0, frames)
            slowest = max(slowest, time.perf_counter() - started)
            header, tensors = read_record(reader)
            assert (header.frame_id, header.dropped) == (frame, 0), "one client's sloth is not the other's loss"
            assert tensors["big"][-1] == frame
        assert slowest < 0.1
        # The idle one wakes up: the record that was on its way, then the newest; the 48 between are counted.
        first, tensors = read_record(idle)
        assert (first.frame_id, first.dropped) == (0, 0)
        assert not tensors["big"].any()
        last, tensors = read_record(idle)
        assert (last.frame_id, last.dropped) == (49, 48)
        assert (tensors["big"] == 49).all()


def test_without_clients_a_frame_is_nobodys_loss(server: ResultServer, path: Path) -> None:
    for frame in range(10):
        server.publish(frame, 0.0, outputs(frame))
    with connect(server, path) as client:
        server.publish(10, 0.0, outputs(10))
        tensors = (
            ResultTensor("enhanced", (1, 3, 4, 5), "float32", 0),
            ResultTensor("scores", (7,), "int16", PICTURE.nbytes),
        )
        assert read_record(client)[0] == ResultHeader(10, 0.0, tensors, PICTURE.nbytes + SCORES.nbytes, dropped=0)


def test_doubts_go_out_with_the_answer(server: ResultServer, path: Path) -> None:
    with connect(server, path) as client:
        server.publish(1, 0.0, outputs(1), ("known_answer_device",))
        assert read_record(client)[0].doubts == ("known_answer_device",)
        server.publish(2, 0.0, outputs(2))
        assert read_record(client)[0].doubts == ()


def test_a_fifth_client_is_turned_away_until_one_leaves(server: ResultServer, path: Path) -> None:
    clients = [connect(server, path) for _ in range(MAX_CLIENTS)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as fifth:
        fifth.settimeout(DEADLINE)
        fifth.connect(str(path))
        assert fifth.recv(1) == b""
    clients.pop().close()
    until(lambda: len(server._clients) == MAX_CLIENTS - 1)
    clients.append(connect(server, path))
    server.publish(1, 0.0, outputs(1))
    for client in clients:
        assert read_record(client)[0].frame_id == 1
        client.close()


def test_a_client_that_dies_in_the_middle_or_talks_back_disturbs_nobody(server: ResultServer, path: Path) -> None:
    with connect(server, path) as other:
        with connect(server, path) as dying:
            dying.sendall(b"hello?" * 1000)
            server.publish(1, 0.0, big(1))
            dying.recv(10)
        until(lambda: len(server._clients) == 1)
        assert read_record(other)[0].frame_id == 1
        server.publish(2, 0.0, big(2))
        assert read_record(other)[0].frame_id == 2


def test_close_disconnects_clients(path: Path) -> None:
    server = ResultServer(path)
    with connect(server, path) as client:
        server.close()
        assert client.recv(1) == b""


def test_the_socket_of_a_killed_predecessor_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(str(path))
        stale.listen()
    assert path.exists()
    server = ResultServer(path)
    connect(server, path).close()
    server.close()


def test_a_socket_somebody_serves_is_left_alone(server: ResultServer, path: Path) -> None:
    with pytest.raises(WorkerFault, match="another process serves the results socket") as caught:
        ResultServer(path)
    assert caught.value.kind == FailureKind.RESULTS_SOCKET
    connect(server, path).close()


def test_a_full_backlog_still_counts_as_served(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stuck:
        stuck.bind(str(path))
        stuck.listen(0)
        waiting = []
        for _ in range(8):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client.setblocking(False)
            waiting.append(client)
            if client.connect_ex(str(path)) != 0:
                break
        with pytest.raises(WorkerFault, match="another process serves"):
            ResultServer(path)
        for client in waiting:
            client.close()
    assert path.exists()


def test_a_file_of_another_kind_is_not_deleted(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(WorkerFault, match="exists and is not a socket: choose another path"):
        ResultServer(path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("name", ["missing/results.sock", "x" * 120])
def test_a_path_that_can_not_be_bound_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(WorkerFault, match=name):
        ResultServer(tmp_path / name)


def test_the_successors_socket_survives_the_predecessors_late_end(path: Path) -> None:
    first = ResultServer(path)
    path.rename(path.with_suffix(".old"))
    second = ResultServer(path)
    first.close()
    connect(second, path).close()
    second.close()
    path.with_suffix(".old").unlink()


def test_closing_a_server_whose_thread_is_through_already(path: Path) -> None:
    """It may be awake for a client, and see that it is to close before it is woken for that."""
    server = ResultServer(path)
    server._closing = True
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        server._thread.join(60)
        assert not server._thread.is_alive()
    server.close()
    assert not path.exists()
