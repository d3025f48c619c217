"""Speed and memory of the layer comparison, each figure as a ratio to something measured in the same run.

    make bench-compare                                  # or: .venv/bin/python tests/benchmarks/bench_compare.py
    [--sides 360,512,720] [--repeat 3] [--json FILE] [--markdown FILE]

A capture of a 250-layer network is made on the virtual board for each side of its input. Exit code 1 where a goal is
missed. A busy machine makes the absolute times worse, not the ratios: the load is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
from bench_compare_network import capture
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.qdq_loss_debug import compute_signal_to_quantization_noice_ratio
from polygraphy.comparator import IterationResult
from polygraphy.comparator.compare import CosineSimilarityCompareFunc
from rich.console import Console

from tidegauge.cli.evaluate import show
from tidegauge.compare import open_source
from tidegauge.compare.evaluate import prepare
from tidegauge.compare.layers import Evaluation
from tidegauge.compare.match import match_tensors
from tidegauge.compare.model import load_model
from tidegauge.compare.reference import GROUP_BYTES, Reference
from tidegauge.compare.statistics import Encoding, measure
from tidegauge.evaluation.figures import Figure, Report, markdown

Array = NDArray[Any]
TOUCH, POLYGRAPHY, ORT = 0.4, 20.0, 2.0
STATISTICS_MB, LOCAL_MB = 100.0, 300.0
LOCAL, WHOLE_S, LINEAR = 2.0, 15.0, 1.5
HTML_MB, OPEN_S = 15.0, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", default="360,512,720")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    sides = [int(side) for side in options.sides.split(",")]
    figures: list[Figure] = []
    print(f"load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="tidegauge-bench-") as name:
        root = Path(name)
        sizes = {}
        for side in sides:
            sizes[side] = capture(root / str(side), side)
            print(f"capture of {sizes[side] / 1e6:.0f} MB is made", flush=True)
        figures += passes(root / str(sides[0]), options.repeat)
        figures += subnormal(root)
        figures += whole([(root / str(side), sizes[side]) for side in sides])
    report = Report(0, False, figures, [])
    show(Console(width=140), report)
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if options.markdown:
        options.markdown.write_text(markdown(report))
    sys.exit(1 if report.missed else 0)


# --- the passes --------------------------------------------------------------------------------------------------


def passes(folder: Path, repeat: int) -> list[Figure]:
    """Statistics and local error of one capture, file cache warm."""
    inputs = [str(folder / "input.npy")]
    with open_source(
        folder / "traces", model=folder / "net.onnx", tempdir=folder / "artifacts", inputs=inputs
    ) as source:
        model = load_model(source.model, source.model_name, source.model_folder)
        matched = match_tensors(model, source.tensors, source.subgraphs, None)
        value = {"input": np.load(folder / "input.npy")}
        work = prepare(model, value, source.tensors, matched.found, GROUP_BYTES)
        floats = folder / "floats"
        floats.mkdir()
        for group in work.reference.walk():
            for name, tensor in group.items():
                np.asarray(tensor, np.float32).tofile(floats / f"{len(list(floats.iterdir()))}.bin")
                work.by_twin[name].floats = floats / f"{len(list(floats.iterdir())) - 1}.bin"  # type: ignore[attr-defined]
        found = _statistics(work, repeat)
        print("statistics are measured", flush=True)
        found += _peers(work, repeat)
        print("peers are measured", flush=True)
        return found + _local(work, folder, repeat)


def _pairs(work: Evaluation) -> Iterator[tuple[Array, Array, Encoding]]:
    for layer in work.by_twin.values():
        shape = work.reference.specs[layer.twin].shape
        if layer.encoding is None or not layer.encoding.integer:
            continue
        yield (
            layer.tensor.codes().reshape(shape),
            np.memmap(layer.floats, np.float32, "r", shape=shape),  # type: ignore[attr-defined]
            layer.encoding,
        )


def _statistics(work: Evaluation, repeat: int) -> list[Figure]:
    def touch() -> None:
        for codes, reference, _ in _pairs(work):
            flat = reference.reshape(-1)
            np.dot(flat, flat)
            np.bitwise_xor.reduce(codes.reshape(-1)[: codes.size // 8 * 8].view(np.int64))

    def ours() -> None:
        for codes, reference, encoding in _pairs(work):
            measure(codes, reference, encoding)

    size = sum(codes.nbytes + reference.nbytes for codes, reference, _ in _pairs(work))
    peak = peak_anonymous(ours)  # first: later runs find the memory of earlier ones in the heap
    floor, took = interleaved(repeat, touch, ours)
    large, small = _split(work)
    group = "Statistics: tensor, channel, row, of every layer"
    return [
        Figure(
            group,
            "rate over the touch floor",
            floor / took,
            "",
            TOUCH,
            note=f"{size / took / 1e9:.2f} of {size / floor / 1e9:.2f} GB/s, {len(work.by_twin)} tensors",
        ),
        Figure(group, "peak memory of the pass", peak / 1e6, "MB", STATISTICS_MB, "<="),
        Figure(group, "share of the time in tensors under 64 Ki elements", 100 * small / (large + small), "%"),
    ]


def _split(work: Evaluation) -> tuple[float, float]:
    times = [0.0, 0.0]
    for codes, reference, encoding in _pairs(work):
        begun = time.perf_counter()
        measure(codes, reference, encoding)
        times[codes.size < 64 * 1024] += time.perf_counter() - begun
    return times[0], times[1]


def _peers(work: Evaluation, repeat: int) -> list[Figure]:
    """The peers get the same tensors as floats in memory, which is what they work on."""
    some = [
        (encoding.values(np.asarray(codes)), np.asarray(reference), np.asarray(codes), encoding)
        for codes, reference, encoding in list(_pairs(work))[::8]
    ]
    ours = [{str(i): pair[side] for i, pair in enumerate(some)} for side in (0, 1)]
    compare = CosineSimilarityCompareFunc(cosine_similarity_threshold=-1.0)

    def polygraphy() -> None:
        compare(*(IterationResult(outputs=dict(side), runner_name=str(n)) for n, side in enumerate(ours)))

    def ort() -> None:
        for device, reference, _, _ in some:
            compute_signal_to_quantization_noice_ratio(reference, device)

    def here() -> None:
        for _, reference, codes, encoding in some:
            measure(codes, reference, encoding)

    with contextlib.redirect_stdout(io.StringIO()):
        slow, middle, fast = interleaved(repeat, polygraphy, ort, here)
    group = "Beside peers, same tensors"
    return [
        Figure(group, "times as fast as Polygraphy's cosine", slow / fast, "", POLYGRAPHY),
        Figure(group, "times as fast as ORT's qdq_loss_debug (SQNR alone)", middle / fast, "", ORT),
    ]


def _local(work: Evaluation, folder: Path, repeat: int) -> list[Figure]:
    reference: Reference = work.reference
    groups = [group.tensors for group in reference._groups]

    def local() -> None:
        for names in groups:
            reference.local(names)

    session = onnxruntime.InferenceSession(str(folder / "net.onnx"), providers=["CPUExecutionProvider"])

    def inference() -> None:
        session.run(None, {"input": reference.inputs["input"]})

    def reading() -> None:
        for path in (folder / "traces").iterdir():
            np.fromfile(path, np.uint8)

    peak = peak_anonymous(local)  # first, for the same reason
    took, once, read = interleaved(repeat, local, inference, reading)
    weights = sum(value.nbytes for value in reference.model.weights.values())
    allowed = (weights + GROUP_BYTES) / 1e6 + LOCAL_MB
    group = "Local error of every layer"
    return [
        Figure(
            group,
            "time over one float inference and reading",
            took / (once + read),
            "",
            LOCAL,
            "<=",
            f"{took:.2f} s; inference {once:.2f} s, reading {read:.2f} s",
        ),
        Figure(group, "peak memory of the pass", peak / 1e6, "MB", allowed, "<=", "goal: model, one group and 300 MB"),
    ]


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


def whole(captures: list[tuple[Path, int]]) -> list[Figure]:
    """`tidegauge compare` with its report, as a process of its own."""
    group, found, rates = "The whole compare, HTML included", list[Figure](), list[float]()
    for number, (folder, size) in enumerate(captures):
        html = folder / "report.html"
        command = [sys.executable, "-m", "tidegauge", "compare", "--device", "traces", "--model", "net.onnx"]
        command += ["--tempdir", "artifacts", "--input", "input.npy", "--html", str(html)]
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode not in (0, 1) or not html.exists():
            sys.exit(f"compare ended with code {done.returncode}: {done.stderr}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        rates.append(cpu / size)
        last = number == len(captures) - 1
        note = f"{cpu:.1f} s of CPU; exit code {done.returncode}; load {os.getloadavg()[0]:.1f}"
        goal = WHOLE_S if last else None
        found.append(Figure(group, f"{size / 1e6:.0f} MB of traces", took, "s", goal, "<=", note))
        if last:
            found.append(Figure(group, "the page", html.stat().st_size / 1e6, "MB", HTML_MB, "<="))
            opened = open_page(html)
            if opened is not None:
                found.append(
                    Figure(
                        group,
                        "the page opens in Chromium, start-up of a blank page taken off",
                        opened,
                        "s",
                        OPEN_S,
                        "<=",
                    )
                )
    found.append(
        Figure(group, "CPU time a byte, dearest over cheapest size", max(rates) / min(rates), "", LINEAR, "<=")
    )
    return found


def open_page(html: Path) -> float | None:
    """Seconds until Chromium has laid the page out; None without Chromium."""
    times = []
    with tempfile.TemporaryDirectory() as name:
        blank = Path(name) / "blank.html"
        blank.write_text("<!doctype html><title>blank</title>")
        for page in (blank, html):
            flags = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
            ]
            command = ["chromium", *flags, f"--user-data-dir={name}/{page.stem}", "--dump-dom", page.as_uri()]
            begun = time.perf_counter()
            try:
                subprocess.run(command, capture_output=True, timeout=120, check=True)
            except FileNotFoundError:
                return None
            times.append(time.perf_counter() - begun)
    return max(0.0, times[1] - times[0])


# --- measuring ---------------------------------------------------------------------------------------------------


def interleaved(repeat: int, *works: Callable[[], None]) -> list[float]:
    """The best time of each, taken in turns so that a busy moment meets them all; the first round warms up."""
    best = [float("inf")] * len(works)
    for turn in range(repeat + 1):
        for number, work in enumerate(works):
            begun = time.perf_counter()
            work()
            if turn:
                best[number] = min(best[number], time.perf_counter() - begun)
    return best


def peak_anonymous(work: Callable[[], None]) -> float:
    """By how many bytes the process's anonymous memory (file pages do not count) grows while `work` runs."""
    gc.collect()
    start, peak, done = _anonymous(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], _anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return max(0.0, peak[0] - start)


def _anonymous() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
