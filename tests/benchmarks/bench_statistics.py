"""Speed of the one-pass statistics beside a plain read of the same bytes.

    .venv/bin/python tests/benchmarks/bench_statistics.py [--layers 20] [--elements 5000000] [--repeat 3]

Prints GB/s over int8 codes and float32 reference together, the ratio to the plain read, and the peak memory.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tidegauge.compare.statistics import Encoding, measure

ENCODING = Encoding("int8", 40.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--elements", type=int, default=5_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    side = max(8, int((options.elements / 64) ** 0.5))
    shape = (64, side, side)
    with tempfile.TemporaryDirectory() as folder:
        files = _write(Path(folder), options.layers, shape)
        size = sum(path.stat().st_size for pair in files for path in pair)
        print(f"{options.layers} layers of {shape}, {size / 1e9:.2f} GB in all, warm cache, best of {options.repeat}")
        read = _best(options.repeat, lambda: _each(files, shape, _touch))
        print(f"plain read        {size / read / 1e9:6.2f} GB/s")
        for label, profiles in (("sums", False), ("sums + profiles", True)):
            took = _best(options.repeat, lambda p=profiles: _each(files, shape, lambda c, f: _measure(c, f, p)))
            print(f"{label:17} {size / took / 1e9:6.2f} GB/s, {took / read:.1f} × the plain read")
    anonymous = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")]
    print(f"peak RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB, {' '.join(anonymous)}")


def _write(folder: Path, layers: int, shape: tuple[int, ...]) -> list[tuple[Path, Path]]:
    random = np.random.default_rng(0)
    files = []
    for number in range(layers):
        reference = random.standard_normal(shape, np.float32)
        pair = folder / f"{number}.y", folder / f"{number}.bin"
        ENCODING.codes(reference).astype(np.int8).tofile(pair[0])
        reference.tofile(pair[1])
        files.append(pair)
    return files


def _each(files: list[tuple[Path, Path]], shape: tuple[int, ...], work: Callable[[Any, Any], None]) -> None:
    for codes, reference in files:
        work(np.memmap(codes, np.int8, "r", shape=shape), np.memmap(reference, np.float32, "r", shape=shape))


def _touch(codes: Any, reference: Any) -> None:
    flat = reference.reshape(-1)
    np.dot(flat, flat)
    np.bitwise_xor.reduce(codes.reshape(-1)[: codes.size // 8 * 8].view(np.int64))


def _measure(codes: Any, reference: Any, profiles: bool) -> None:
    measure(codes, reference, ENCODING, profiles=profiles)


def _best(repeat: int, work: Callable[[], None]) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
