"""Story `sdk-upgrade`: a key-point network that lost accuracy from one SDK release to the next.

What the newer release does is modelled on the virtual board, by one rule: a global average pool over 8-bit codes keeps
its sum in too few bits, so the lowest bits of the mean are lost. Pools at 16 bits, and pools on the Arm core, are as
they were. The network has two: in its squeeze-and-excite block, and in its classification head.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from rich.console import Console

from tidegauge.demo.story import Measure, Teller, Told, options_arguments
from tidegauge.demo.story_faces import POINTS, POSES, Faces, draw, error_pixels
from tidegauge.demo.story_pictures import marked, rgb, strip
from tidegauge.errors import TidegaugeError

MODEL = Path(__file__).parent / "data" / "keypoints.onnx"
OLD, NEW = "SDK A", "SDK B"
CALIBRATION_FACES, TEST_FACES = 24, 64
#: Bits of the mean that the newer release loses.
LOST_BITS = 5
#: What the product needs: mean error of a point in pixels of 64, and share of right poses in per cent.
MAX_ERROR, MIN_RIGHT = 1.0, 95.0
_SEED = 7

Array = NDArray[Any]


def tell(folder: Path, console: Console) -> Told:
    """The whole story. Raises `TidegaugeError` where a step fails."""
    teller = Teller("sdk-upgrade", folder, console)
    faces = _prepare(folder)
    teller.chapter(
        f"Problem: worse since {NEW}",
        "A network finds five points of a face and its pose. The same model, calibration and pictures, compiled with "
        f"two releases. {NEW} is a virtual release that differs from {OLD} in one rule: a global average pool over "
        f"8-bit codes loses the lowest {LOST_BITS} bits of its mean.",
    )
    _compile(teller, "compiled", [])
    old = _accuracy(teller, "compiled", "run-old", faces, newer=False)
    new = _accuracy(teller, "compiled", "run-new", faces, newer=True)
    _print(teller, OLD, old)
    _print(teller, NEW, new)
    face = _telling(old, new, faces)
    answer = _report(teller, "report-before", "compiled", "traces-new", face)
    teller.told.culprits += [culprit.layer for culprit in answer.culprits]
    options = teller.paste(answer)
    teller.chapter("Cure: paste, recompile, run again", f"Still {NEW}, the same model, calibration and pictures.")
    _compile(teller, "cured", options_arguments(options))
    cured = _accuracy(teller, "cured", "run-cured", faces, newer=True)
    _print(teller, f"{NEW}, cured", cured)
    _report(teller, "report-after", "cured", "traces-cured", face)
    runs = [(OLD, old), (NEW, new), (f"{NEW}, cured", cured)]
    teller.picture("before-after.png", _picture(faces, int(np.argmax(_errors(new, faces).mean(1))), runs))
    return teller.end(
        [
            Measure("mean error of a point", new.error, cured.error, MAX_ERROR, "pixels", lower=True),
            Measure("poses right", new.right, cured.right, MIN_RIGHT, "%"),
        ]
    )


class Accuracy:
    """What a run made of the test faces. `points`: (n, 5, 2); `error` in pixels; `right`: poses, in per cent."""

    def __init__(self, points: Array, poses: Array, faces: Faces) -> None:
        self.points, self.poses = points, poses
        self.error = float(error_pixels(points, faces.points).mean())
        self.right = 100 * float((poses.argmax(1) == faces.poses).mean())


def pools(network: list[dict[str, Any]], model: onnx.ModelProto) -> list[str]:
    """The layers that the newer release's rule holds for: global average pools with 8-bit codes.

    `network`: rows of `tidegauge virtualboard layers --json`.
    """
    outputs = {out for node in model.graph.node if node.op_type == "GlobalAveragePool" for out in node.output}
    narrow = {0, 1}  # TIDL's element types: unsigned and signed 8 bit
    return [row["name"] for row in network if row["name"] in outputs and row["quant"]["element_type"] in narrow]


def _prepare(folder: Path) -> Faces:
    calibration = folder / "calibration"
    calibration.mkdir()
    for number, picture in enumerate(draw(np.random.default_rng(_SEED), CALIBRATION_FACES).pictures):
        np.save(calibration / f"{number:02}.npy", picture[None])
    faces = draw(np.random.default_rng(_SEED + 1), TEST_FACES)
    (folder / "faces").mkdir()
    for number, picture in enumerate(faces.pictures):
        np.save(folder / "faces" / f"{number:02}.npy", picture[None])
    (folder / "keypoints.onnx").write_bytes(MODEL.read_bytes())
    return faces


def _compile(teller: Teller, artifacts: str, options: list[str]) -> None:
    source = ("virtualboard", "compile", "keypoints.onnx", "--artifacts", artifacts, "--calibration", "calibration")
    teller.run(*source, *options)


def _faults(teller: Teller, artifacts: str) -> list[str]:
    """The newer release's rule as arguments of `tidegauge virtualboard run`."""
    rows = json.loads(teller.run("virtualboard", "layers", artifacts, "--json"))
    names = pools(rows, onnx.load(MODEL))
    return [part for name in names for part in ("--fault", f"{name}:coarse:{LOST_BITS}")]


def _accuracy(teller: Teller, artifacts: str, output: str, faces: Faces, *, newer: bool) -> Accuracy:
    faults = _faults(teller, artifacts) if newer else []
    inputs = [part for number in range(TEST_FACES) for part in ("--input", f"faces/{number:02}.npy")]
    start, end = ("virtualboard", "run", artifacts, "--model", "keypoints.onnx"), ("--output", output, *faults)
    given, shown = (*start, *inputs, *end), (*start, *inputs[:2], "…", *inputs[-2:], *end)
    teller.run(*given, shown=shown)
    frames = [teller.folder / output / "offload" / f"frame_{number}" for number in range(TEST_FACES)]
    points = np.stack([np.fromfile(frame / "points.bin", "<f4").reshape(len(POINTS), 2) for frame in frames])
    poses = np.stack([np.fromfile(frame / "pose.bin", "<f4").reshape(len(POSES)) for frame in frames])
    return Accuracy(points, poses, faces)


def _telling(old: Accuracy, new: Accuracy, faces: Faces) -> int:
    """The best-lit face of those that the newer release does worse: it uses most of the codes."""
    worse = _errors(new, faces).mean(1) > _errors(old, faces).mean(1) + 0.3
    light = faces.pictures.mean((1, 2, 3))
    return int(np.argmax(np.where(worse, light, -1.0)))


def _errors(accuracy: Accuracy, faces: Faces) -> Array:
    return error_pixels(accuracy.points, faces.points)


def _print(teller: Teller, name: str, accuracy: Accuracy) -> None:
    text = f"mean error of a point {accuracy.error:.2f} pixels, poses right {accuracy.right:.0f} %"
    teller.say(f"{name}: {text} ({TEST_FACES} faces)", "bold")


def _report(teller: Teller, name: str, artifacts: str, output: str, face: int) -> Any:
    """Traces of the face that suffers most, and their comparison with the float model."""
    value = f"faces/{face:02}.npy"
    faults = _faults(teller, artifacts)
    start = ("virtualboard", "run", artifacts, "--model", "keypoints.onnx", "--input", value)
    teller.run(*start, "--output", output, "--debug-level", "3", *faults)
    if not (teller.folder / output / "traces").is_dir():
        raise TidegaugeError(f"{output} has no traces", f"see {teller.folder / 'commands.log'}")
    sources = ("--device", f"{output}/traces", "--tempdir", f"{artifacts}/tempDir", "--model", "keypoints.onnx")
    return teller.compare(name, *sources, "--input", value)


def _picture(faces: Faces, face: int, runs: list[tuple[str, Accuracy]]) -> bytes:
    base = rgb(faces.pictures[face])
    bright = (base.astype(np.float32) / max(1, int(base.max())) * 255).astype(np.uint8)  # a dusk's face can't be seen
    tiles = [
        (f"{name}: {_errors(run, faces)[face].mean():.1f} px", marked(bright, run.points[face], faces.points[face]))
        for name, run in runs
    ]
    return strip(tiles, 1)
