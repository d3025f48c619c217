"""Local references and statistics are shared out to the cores, and don't depend on how many there are."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tidegauge.compare import cores
from tidegauge.compare.cutgraph import Room
from tidegauge.compare.model import load_model
from tidegauge.compare.reference import Recorded, Reference
from tidegauge.compare.statistics import Encoding
from tidegauge.errors import TidegaugeError

SIDE, LAYERS = 160, 5
SHAPE = (1, 24, SIDE, SIDE)


@pytest.fixture(autouse=True)
def _fresh_threads() -> Iterator[None]:
    yield
    cores._pool.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    cores._pool.cache_clear()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)))


def reference(folder: Path) -> Reference:
    """Convolutions one after the other, each with a trace, and the float run's shapes known."""
    random = np.random.default_rng(4)
    nodes, weights = [], []
    for number in range(LAYERS):
        weight = random.normal(0, 0.2, (24, 24, 3, 3) if number % 2 else (24, 24, 1, 1)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        side = weight.shape[2]
        inputs = [f"t{number}", f"w{number}"]
        nodes.append(
            helper.make_node("Conv", inputs, [f"t{number + 1}"], kernel_shape=[side] * 2, pads=[side // 2] * 4)
        )
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("t0", f"t{LAYERS}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    path = folder / "chain.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    model = load_model(path.read_bytes(), path.name, folder)
    names = [f"t{number}" for number in range(LAYERS + 1)]
    codes = {name: random.integers(-128, 128, SHAPE).astype(np.int8) for name in names}
    device = {name: Recorded(lambda name=name: codes[name], Encoding("int8", 40.0, 3)) for name in names}  # type: ignore[misc]
    made = Reference(
        model, {"t0": random.normal(0, 1, SHAPE).astype(np.float32)}, device, dict.fromkeys(names, 24 * SIDE**2)
    )
    for _ in made.walk():
        pass
    return made


def test_local_references_are_the_same_with_any_number_of_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = reference(tmp_path)
    names = [f"t{number}" for number in range(LAYERS + 1)]
    found = []
    for count in (1, 2, 7):
        use(monkeypatch, count)
        for room in (None, Room()):
            local = made.local(names, room=room)
            assert list(local) == names
            found.append({name: value.copy() for name, value in local.items()})
    assert len(made._pieces(names[1:])) > 1
    for other in found[1:]:
        for name in names:
            assert np.array_equal(found[0][name], other[name]), name


def test_a_room_may_be_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 2)
    made, room = reference(tmp_path), Room()
    first = {name: value.copy() for name, value in made.local(["t1", "t2", "t3"], room=room).items()}
    made.local(["t4", "t5"], room=room)
    again = made.local(["t1", "t2", "t3"], room=room)
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_what_fails_on_another_core_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 2)
    other, main = threading.Event(), threading.get_ident()

    def work(number: int) -> int:
        if threading.get_ident() != main:
            other.set()
            raise TidegaugeError("this piece fails", "leave it")
        assert other.wait(60)
        return number

    with pytest.raises(TidegaugeError, match="this piece fails"):
        cores.share(work, range(4))


def test_results_keep_the_order_of_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 3)
    assert cores.share(lambda number: number * number, range(50)) == [number * number for number in range(50)]
    assert cores.share(lambda number: number, []) == []
