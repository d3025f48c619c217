"""A network of 120 traced tensors, what its traces must be, and a watch on a trace folder that misses nothing."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from watchdog.events import FileClosedEvent, FileCreatedEvent, FileDeletedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from faults.small_board import HEIGHT, WIDTH
from tidegauge.bundles.reader import read_blob, read_manifest
from tidegauge.tidl import trace_names
from tidegauge.virtualboard import tracing
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.network import load_artifacts
from tidegauge.virtualboard.options import CompileOptions

TENSORS = 120
#: What the trace folder may hold at a time: complete files, and the one that is being written.
COMPLETE, WRITTEN = 5, 1
#: Convolutions of this network have enough rows to be super-tiled; some tensors have 16 bits.
OPTIONS = CompileOptions(
    calibration_frames=4,
    high_resolution_optimization=1,
    output_feature_16bit_names_list=("features12", "sum20"),
)


def many_tensors() -> onnx.ModelProto:
    """`input` → 10 convolutions, each with 10 additions and a Sigmoid behind it, … → `enhanced`, all in 24x32."""
    rng = np.random.default_rng(11)
    constants: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def weights(name: str, *shape: int) -> str:
        constants.append(numpy_helper.from_array(rng.normal(0, 0.2, shape).astype(np.float32), name))
        return name

    source, channels, layers = "input", 3, 0
    while layers < TENSORS - 5:  # of the rest: input convert, three layers at the end, output convert
        kind = layers % 12
        if kind == 0:
            name = f"features{layers}"
            nodes.append(
                helper.make_node("Conv", [source, weights(f"w{layers}", 4, channels, 3, 3)], ["c" + name], pads=[1] * 4)
            )
            nodes.append(helper.make_node("Relu", ["c" + name], [name]))
            skip, channels = name, 4
        elif kind == 11:
            name = f"gate{layers}"
            nodes.append(helper.make_node("Sigmoid", [source], [name]))
        else:
            name = f"sum{layers}"
            nodes.append(helper.make_node("Add", [source, skip], [name]))
        source, layers = name, layers + 1
    nodes.append(helper.make_node("Sigmoid", [source], ["squeezed"]))
    nodes.append(helper.make_node("Conv", ["squeezed", weights("w_last", 3, 4, 3, 3)], ["logits"], pads=[1] * 4))
    nodes.append(helper.make_node("Sigmoid", ["logits"], ["enhanced"]))
    shape = [1, 3, HEIGHT, WIDTH]
    graph = helper.make_graph(
        nodes,
        "many",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("enhanced", TensorProto.FLOAT, shape)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def traces_of(bundle: Path) -> dict[str, str]:
    """SHA-256 by file name of the traces in a bundle."""
    return {trace.file: trace.sha256 for trace in read_manifest(bundle).traces}


def expected_of(bundle: Path, artifacts: Path) -> dict[str, str]:
    """SHA-256 by file name of every trace of the bundle's input tensor."""
    [stored] = read_manifest(bundle).inputs
    data = read_blob(bundle, stored.blob, 64 << 20)
    return expected_traces(artifacts, np.frombuffer(data, np.float32).reshape(stored.spec.shape))


def expected_traces(artifacts: Path, picture: np.ndarray) -> dict[str, str]:
    """SHA-256 by file name of every trace of one run at debug_level 3."""
    network = load_artifacts(artifacts)
    values = Twin(network).run({"input": picture}, [layer.name for layer in network.tensors()])
    return {
        tracing.file_name(layer, "subgraph_0", kind): hashlib.sha256(
            tracing.content(layer, values[layer.name], kind)
        ).hexdigest()
        for layer in network.tensors()
        for kind in tracing.kinds(layer, tracing.write_level(3))
    }


@dataclass
class Seen:
    """What happened to traces in a folder. `most`: files at any one time, the one being written among them. `closes`:
    by name. All in the order of the kernel's own queue: no file is missed between two looks."""

    most: int = 0
    created: list[str] = field(default_factory=list)
    closes: dict[str, int] = field(default_factory=dict)
    there: set[str] = field(default_factory=set)


class _Handler(FileSystemEventHandler):
    def __init__(self, seen: Seen, lock: threading.Lock) -> None:
        self._seen, self._lock = seen, lock

    def on_any_event(self, event: FileSystemEvent) -> None:
        name, seen = Path(str(event.src_path)).name, self._seen
        if trace_names.parse(name) is None:
            return
        with self._lock:
            if isinstance(event, FileCreatedEvent):
                seen.created.append(name)
                seen.there.add(name)
                seen.most = max(seen.most, len(seen.there))
            elif isinstance(event, FileDeletedEvent):
                seen.there.discard(name)
            elif isinstance(event, FileClosedEvent):
                seen.closes[name] = seen.closes.get(name, 0) + 1


@contextmanager
def watching(folder: Path) -> Iterator[Seen]:
    seen, observer = Seen(), Observer()
    events: list[type[FileSystemEvent]] = [FileCreatedEvent, FileDeletedEvent, FileClosedEvent]
    observer.schedule(_Handler(seen, threading.Lock()), str(folder), event_filter=events)
    observer.start()
    try:
        yield seen
    finally:
        observer.stop()
        observer.join()
