"""Speed and memory of the layer comparison, each figure as a ratio to something measured in the same run.

    make bench-compare                                  # or: .venv/bin/python tests/benchmarks/bench_compare.py
    [--sides 384,544,768] [--runs 3] [--json FILE] [--markdown FILE] [--plot FILE.svg]

A capture of a 250-layer network is made on the virtual board for each side of its input. Exit code 1 where a goal is
missed. A busy machine makes the absolute times worse, not the ratios: the load is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import mmap
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
from bench_compare_network import capture
from bench_compare_tools import anonymous, drawn, interleaved, line, malloc_trim, open_page, peak_anonymous
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.qdq_loss_debug import compute_signal_to_quantization_noice_ratio
from polygraphy.comparator import Comparator, IterationResult, RunResults
from polygraphy.comparator.compare import CosineSimilarityCompareFunc
from rich.console import Console

from tidegauge.cli.evaluate import show
from tidegauge.compare import open_source
from tidegauge.compare.cutgraph import Room
from tidegauge.compare.evaluate import prepare
from tidegauge.compare.layers import Evaluation
from tidegauge.compare.match import match_tensors
from tidegauge.compare.model import load_model
from tidegauge.compare.reference import GROUP_BYTES
from tidegauge.compare.statistics import Encoding, measure
from tidegauge.evaluation.figures import Figure, Report, markdown

Array = NDArray[Any]
TOUCH, POLYGRAPHY, ORT = 0.4, 20.0, 2.0
STATISTICS_MB, LOCAL_MB = 100.0, 300.0
#: A quadratic part of 40 % of the time at the largest of three doubling sizes is 14 % apart.
LOCAL, WHOLE_S, LINEAR = 2.0, 15.0, 10.0
HTML_MB, OPEN_S = 15.0, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", default="384,544,768")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3, help="of everything that is a ratio; the median counts")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--plot", type=Path, help="an SVG of CPU time over size")
    parser.add_argument("--memory", nargs=2, metavar=("PASS", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(_memory(options.memory[0], Path(options.memory[1])))
        return
    if shutil.which("chromium") is None:
        parser.error("Chromium is not installed, which opens the report: apt-get install chromium")
    sides = [int(side) for side in options.sides.split(",")]
    figures: list[Figure] = []
    print(f"load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="tidegauge-bench-") as name:
        root = Path(name)
        sizes = {}
        for side in sides:
            sizes[side] = capture(root / str(side), side)
            print(f"capture of {sizes[side] / 1e6:.0f} MB is made", flush=True)
        largest = root / str(sides[-1])
        figures += medians([passes(largest, options.repeat) for _ in range(options.runs)])
        figures += memory(largest)
        figures += subnormal(root)
        figures += whole([(root / str(side), sizes[side]) for side in sides], options.runs, options.plot)
    report = Report(0, False, figures, [])
    show(Console(width=140), report)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if options.markdown:
        options.markdown.write_text(markdown(report))
    sys.exit(1 if report.missed else 0)


def medians(runs: list[list[Figure]]) -> list[Figure]:
    """Of each figure the run in the middle."""
    return [sorted(same, key=lambda figure: figure.value)[len(same) // 2] for same in zip(*runs, strict=True)]


# --- the passes --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def prepared(folder: Path) -> Iterator[Evaluation]:
    """A capture made ready, its shapes known and its float run written to files, as the statistics read them."""
    inputs = [str(folder / "input.npy")]
    with open_source(
        folder / "traces", model=folder / "net.onnx", tempdir=folder / "artifacts", inputs=inputs
    ) as source:
        model = load_model(source.model, source.model_name, source.model_folder)
        matched = match_tensors(model, source.tensors, source.subgraphs, None)
        value = {"input": np.load(folder / "input.npy")}
        work = prepare(model, value, source.tensors, matched.found, GROUP_BYTES)
        floats = folder / "floats"
        there = floats.exists()
        floats.mkdir(exist_ok=True)
        for group in work.reference.walk(Room()):
            for name, tensor in group.items():
                path = floats / f"{work.by_twin[name].tensor.data_id}.bin"
                if not there:
                    np.asarray(tensor, np.float32).tofile(path)
                work.by_twin[name].floats = path  # type: ignore[attr-defined]
        yield work


def passes(folder: Path, repeat: int) -> list[Figure]:
    """Statistics and local error of one capture, file cache warm."""
    with prepared(folder) as work:
        found = _statistics(work, repeat)
        print("statistics are measured", flush=True)
        found += _peers(work, repeat)
        print("peers are measured", flush=True)
        return found + _local(work, folder, repeat)


def _pairs(work: Evaluation) -> Iterator[tuple[Array, Array, Encoding]]:
    """Codes and float run of each layer, both mapped anew."""
    for layer in work.by_twin.values():
        path = getattr(layer, "floats", None)
        if path is None or layer.encoding is None or not layer.encoding.integer:
            continue
        shape = work.reference.specs[layer.twin].shape
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        yield layer.tensor.codes().reshape(shape), np.frombuffer(mapped, np.float32).reshape(shape), layer.encoding


def _statistics(work: Evaluation, repeat: int) -> list[Figure]:
    there = [(codes.reshape(-1), reference.reshape(-1)) for codes, reference, _ in _pairs(work)]

    def touch() -> None:
        for codes, reference, _ in _pairs(work):
            _touch(codes.reshape(-1), reference.reshape(-1))

    def mapped() -> None:
        for codes, reference in there:
            _touch(codes, reference)

    def ours() -> None:
        for codes, reference, encoding in _pairs(work):
            measure(codes, reference, encoding)

    size = sum(codes.nbytes + reference.nbytes for codes, reference in there)
    floor, took, light = interleaved(repeat, touch, ours, mapped)
    large, small = _split(work)
    group = "Statistics: tensor, channel, row, column, of every layer"
    rates = f"{size / took / 1e9:.2f} of {size / floor / 1e9:.2f} GB/s; {size / light / 1e9:.2f} once mapped"
    return [
        Figure(group, "rate over the touch floor", floor / took, "", TOUCH, note=f"{rates}; {len(there)} tensors"),
        Figure(group, "share of the time in tensors under 256 Ki elements", 100 * small / (large + small), "%"),
    ]


def _touch(codes: Array, reference: Array) -> None:
    np.dot(reference, reference)
    np.bitwise_xor.reduce(codes[: codes.size // 8 * 8].view(np.int64))


def _split(work: Evaluation) -> tuple[float, float]:
    times = [0.0, 0.0]
    for codes, reference, encoding in _pairs(work):
        begun = time.perf_counter()
        measure(codes, reference, encoding)
        times[codes.size < 256 * 1024] += time.perf_counter() - begun
    return times[0], times[1]


def _peers(work: Evaluation, repeat: int) -> list[Figure]:
    """The peers get the same tensors as floats in memory, which is what they work on; ours are codes and floats."""
    some = [
        (encoding.values(codes), np.array(reference), np.array(codes), encoding)
        for codes, reference, encoding in list(_pairs(work))[::8]
    ]
    sides = [{str(i): pair[side] for i, pair in enumerate(some)} for side in (0, 1)]
    cosine = CosineSimilarityCompareFunc()

    def results() -> list[IterationResult]:
        return [IterationResult(outputs=dict(side), runner_name=str(n)) for n, side in enumerate(sides)]

    def polygraphy() -> None:
        runs = RunResults()
        for result in results():
            runs.append((result.runner_name, [result]))
        Comparator.compare_accuracy(runs, compare_func=cosine)

    def bare() -> None:
        cosine(*results())

    def ort() -> None:
        for device, reference, _, _ in some:
            compute_signal_to_quantization_noice_ratio(reference, device)

    def here() -> None:
        for _, reference, codes, encoding in some:
            measure(codes, reference, encoding)

    with contextlib.redirect_stdout(io.StringIO()):
        (slow,) = interleaved(1, polygraphy)
        alone, middle, fast = interleaved(repeat, bare, ort, here)
    group = "Beside peers, same tensors, all statistics"
    size = sum(reference.size for _, reference, _, _ in some)
    note = f"{slow / size * 1e9:.0f} ns an element, ours {fast / size * 1e9:.1f}"
    return [
        Figure(
            group, "times as fast as Polygraphy's compare_accuracy by cosine", slow / fast, "", POLYGRAPHY, note=note
        ),
        Figure(group, "times as fast as its cosine function alone, without what it reports", alone / fast, ""),
        Figure(group, "times as fast as ORT's qdq_loss_debug (SQNR alone)", middle / fast, "", ORT),
    ]


def _local(work: Evaluation, folder: Path, repeat: int) -> list[Figure]:
    reference, room = work.reference, Room()
    groups = [group.tensors for group in reference.groups]

    def local() -> None:
        for names in groups:
            reference.local(names, room=room)

    session = onnxruntime.InferenceSession(str(folder / "net.onnx"), providers=["CPUExecutionProvider"])

    def inference() -> None:
        session.run(None, {"input": reference.inputs["input"]})

    def reading() -> None:
        for path in (folder / "traces").iterdir():
            np.fromfile(path, np.uint8)

    took, once, read = interleaved(repeat, local, inference, reading)
    # The goal allows two inferences and one reading of the files, not two of each.
    note = f"{took:.2f} s; inference {once:.2f} s, reading {read:.2f} s"
    name = "time less one reading of the files, over one float inference"
    return [Figure("Local error of every layer", name, (took - read) / once, "", LOCAL, "<=", note)]


# --- memory ------------------------------------------------------------------------------------------------------


def memory(folder: Path) -> list[Figure]:
    """Each pass in a process of its own that has done nothing else."""
    weights = sum(numpy_helper.to_array(t).nbytes for t in onnx.load(folder / "net.onnx").graph.initializer)
    allowed = (weights + GROUP_BYTES) / 1e6 + LOCAL_MB
    rows = (
        ("statistics", STATISTICS_MB, "goal holds for any size"),
        ("local", allowed, "goal: model, one group, 300 MB"),
    )
    found = []
    for name, goal, note in rows:
        command = [sys.executable, __file__, "--memory", name, str(folder)]
        grown = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        found.append(Figure("Peak memory above the interpreter", f"{name} pass", grown / 1e6, "MB", goal, "<=", note))
    return found


def _memory(name: str, folder: Path) -> float:
    """By how much the anonymous memory grows: in the statistics pass; for the local pass above the bare process, so
    that the model counts."""
    bare = anonymous()
    with prepared(folder) as work:
        malloc_trim()

        def statistics() -> None:
            for codes, floats, encoding in _pairs(work):
                measure(codes, floats, encoding)

        def local() -> None:
            room = Room()
            for group in work.reference.groups:
                work.reference.local(group.tensors, room=room)

        before = anonymous() if name == "statistics" else bare
        return peak_anonymous(statistics if name == "statistics" else local) - before


def subnormal(root: Path) -> list[Figure]:
    """The float run with weights below the smallest normal float32, as they are and flushed to zero."""
    random = np.random.default_rng(2)
    small = (random.normal(0, 1, (64, 64, 3, 3)) * 1e-40).astype(np.float32)
    value = random.uniform(0, 1, (1, 64, 96, 96)).astype(np.float32)
    sessions = []
    for name, weight in (("as they are", small), ("flushed", np.zeros_like(small))):
        node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, value.shape)]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, value.shape)]
        graph = helper.make_graph([node], name, inputs, outputs, [numpy_helper.from_array(weight, "w")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, root / "small.onnx")
        sessions.append(onnxruntime.InferenceSession(str(root / "small.onnx"), providers=["CPUExecutionProvider"]))
    works = [lambda session=session: session.run(None, {"x": value}) for session in sessions]
    slow, fast = interleaved(3, *works)
    name = "time of a convolution with subnormal weights over flushed ones"
    return [Figure("Subnormal weights", name, slow / fast, "", note="some CPUs have no penalty, others over 50")]


# --- the whole ---------------------------------------------------------------------------------------------------


def _once(command: list[str], folder: Path, html: Path) -> tuple[float, float, int]:
    """Seconds, seconds of CPU, exit code."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1) or not html.exists():
        sys.exit(f"compare ended with code {done.returncode}: {done.stderr}")
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.returncode


def whole(captures: list[tuple[Path, int]], repeat: int, plot: Path | None) -> list[Figure]:
    """`tidegauge compare` with its report, as a process of its own: of each size the run in the middle, and for the
    cost of a further byte the one that other work on this machine made dearer least."""
    group, found, costs = "The whole compare, HTML included", list[Figure](), list[tuple[int, float]]()
    for number, (folder, size) in enumerate(captures):
        html = folder / "report.html"
        command = [sys.executable, "-m", "tidegauge", "compare", "--device", "traces", "--model", "net.onnx"]
        command += ["--tempdir", "artifacts", "--input", "input.npy", "--html", str(html)]
        runs = [_once(command, folder, html) for _ in range(repeat)]
        took, cpu, code = sorted(runs)[len(runs) // 2]
        costs.append((size, min(run[1] for run in runs)))
        last = number == len(captures) - 1
        note = f"{cpu:.1f} s of CPU; exit code {code}; load {os.getloadavg()[0]:.1f}"
        goal = WHOLE_S if last else None
        found.append(Figure(group, f"{size / 1e6:.0f} MB of traces", took, "s", goal, "<=", note))
        if last:
            found.append(Figure(group, "the page", html.stat().st_size / 1e6, "MB", HTML_MB, "<="))
            page, blank = open_page(html)
            name = "the page opens in Chromium, less what a blank page takes"
            found.append(Figure(group, name, page - blank, "s", OPEN_S, "<=", f"{page:.2f} s, blank {blank:.2f} s"))
    slope, start, apart = line(costs)
    note = f"CPU time = {start:.1f} s + {slope * 1e9:.1f} ns a byte; apart from it by "
    note += ", ".join(f"{share:+.0%}" for share in apart)
    name = "distance from a straight line through all sizes, of the time there"
    found.append(Figure(group, name, 100 * max(map(abs, apart)), "%", LINEAR, "<=", note))
    if plot is not None:
        plot.write_text(drawn(costs, slope, start))
    return found


if __name__ == "__main__":
    main()
