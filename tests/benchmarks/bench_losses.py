"""What losses cost: microseconds of CPU for one frame, beside a plain copy of the same bytes.

Run: `python tests/benchmarks/bench_losses.py`. CPU time of the process, best of several repeats, so that a busy machine
disturbs little; a ratio carries over to another processor better than a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from tidegauge.losses.output_stats import output_stats, summary
from tidegauge.losses.select import loss_for
from tidegauge.losses.symptoms import symptoms
from tidegauge.losses.tensor_error import tensor_errors
from tidegauge.profile import Output

OUTPUT = Output("enhanced", "image", 1 / 255)
REPEATS, LEAST_SECONDS = 7, 0.05


def pair(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A smooth scene with texture, and an int8 device's answer to it."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    scene = np.stack([0.5 + 0.3 * np.sin(x / 40 + k) * np.cos(y / 25) for k in range(3)])[None]
    reference = np.clip(scene + rng.normal(0, 0.02, scene.shape), 0, 1).astype(np.float32)
    codes = np.clip(np.round(reference * 255) + rng.integers(-1, 2, reference.shape), 0, 255)
    return (codes / 255).astype(np.float32), reference


def microseconds(work: Callable[[], object]) -> float:
    """CPU time of one call: the best of several repeats of at least 50 ms each."""
    work()
    count, best = 1, float("inf")
    for _ in range(REPEATS):
        while True:
            started = time.process_time()
            for _ in range(count):
                work()
            spent = time.process_time() - started
            if spent >= LEAST_SECONDS:
                break
            count *= 2
        best = min(best, spent / count)
    return best * 1e6


def main() -> None:
    for width, height in ((192, 128), (1280, 720)):
        device, reference = pair(height, width)
        target, loss = np.empty_like(device), loss_for(OUTPUT)
        copy = microseconds(lambda d=device, t=target: np.copyto(t, d))
        works: dict[str, Callable[[], object]] = {
            "output_stats (every frame)": lambda d=device: output_stats("enhanced", d, 0.0, 1.0),
            "summary (every frame)": lambda d=device: summary(OUTPUT, d),
            "loss (every sample)": lambda d=device, r=reference, f=loss: f(d, r),
            "tensor_errors (every sample)": lambda d=device, r=reference: tensor_errors("y", d, r, 1 / 255, 0.0, 1.0),
            "symptoms (every sample)": lambda d=device, r=reference: symptoms(OUTPUT, d, r, r[..., ::-1]),
        }
        print(f"{width}×{height}×3 float32, copy {copy:.0f} µs")
        for name, work in works.items():
            cost = microseconds(work)
            print(f"  {name:30s} {cost:9.0f} µs  {cost / copy:7.1f} × copy")


if __name__ == "__main__":
    main()
