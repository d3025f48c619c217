"""Story `low-light`: an enhancer whose picture is black, and then banded.

Chapter 1: the application divides by 255, and so does the pre-processing before it. The picture is black on the board,
in the emulation at 8 bits, and already at 32 bits: no bits and no calibration can cure that. Chapter 2: with the right
input the night sky has bands: a calibration that saw noon leaves thirteen codes to the dusk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from rich.console import Console

from tidegauge.camera.folder import list_pictures, load_picture
from tidegauge.demo.settings import HEIGHT, MODEL, PHOTOS, WIDTH
from tidegauge.demo.story import Measure, Teller, Told, options_arguments
from tidegauge.demo.story_pictures import rgb, strip

#: Light of the calibration's pictures as a share of noon's; and of the night scene.
LIGHTS, NIGHT = (1.0, 0.3, 0.05), 0.03
#: The night scene is the launch of a rocket, the fifth photograph.
SCENE = 4
#: What the picture must reach against the float model (dB): bands can't be seen any more.
TARGET_DB = 34.0
#: How much brighter the close-up of the sky is shown, so that paper shows what a dark room does.
_BRIGHTER = 3
#: The image signal processor gives 12 bits.
_TOP = 4095

Array = NDArray[Any]


def scene(picture_bgr: Array, light: float) -> Array:
    """The input tensor (1, 3, H, W) of a photograph in less light, sRGB in steps of 12 bits, 0…1, without noise."""
    height, width = picture_bgr.shape[:2]
    factor = max(WIDTH / width, HEIGHT / height)
    size = (round(width * factor), round(height * factor))
    small = cv2.resize(picture_bgr.astype(np.float32), size, interpolation=cv2.INTER_AREA)[:HEIGHT, :WIDTH, ::-1] / 255
    linear = np.where(small <= 0.04045, small / 12.92, ((small + 0.055) / 1.055) ** 2.4) * light
    shown = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    steps = np.round(shown * _TOP) / _TOP
    return np.ascontiguousarray(steps.transpose(2, 0, 1)[None], np.float32)


def tell(folder: Path, console: Console) -> Told:
    """The whole story. Raises `TidegaugeError` where a step fails."""
    teller = Teller("low-light", folder, console)
    night = _prepare(folder)
    expected = _float_model(night)
    black = _black(teller, expected)
    banded, cured = _banded(teller)
    teller.picture(
        "before-after.png",
        strip(
            [
                ("input", rgb(night)),
                ("chapter 1: black", rgb(black)),
                ("chapter 2: banded", rgb(banded)),
                ("after the cure", rgb(cured)),
                ("float model", rgb(expected)),
            ]
        ),
    )
    sky = np.s_[..., : HEIGHT // 2, WIDTH // 2 :]
    shown = (("banded", banded), ("cured", cured), ("float model", expected))
    near = [(f"{label}, {_BRIGHTER} times as bright", rgb(value[sky] * _BRIGHTER)) for label, value in shown]
    teller.picture("sky.png", strip(near, 4))
    return teller.end(
        [
            Measure("brightness, share of the float model's", _share(black, expected), _share(cured, expected), 0.9),
            Measure("SQNR of the picture", _sqnr(banded, expected), _sqnr(cured, expected), TARGET_DB, "dB"),
        ]
    )


def _prepare(folder: Path) -> Array:
    photos = [load_picture(path) for path in list_pictures(PHOTOS)]
    calibration = folder / "calibration"
    calibration.mkdir()
    for number, photo in enumerate(photos):
        for light in LIGHTS:
            np.save(calibration / f"{number}-{light}.npy", scene(photo, light))
    night = scene(photos[SCENE], NIGHT)
    np.save(folder / "night.npy", night)
    np.save(folder / "night-divided-twice.npy", (night / np.float32(255)).astype(np.float32))
    (folder / "enhancer.onnx").write_bytes(MODEL.read_bytes())
    return night


def _black(teller: Teller, expected: Array) -> Array:
    teller.chapter(
        "Problem: black",
        "The enhancer works with ONNX Runtime on the PC and gives a black picture on the board. Following TI's own "
        "procedure, it is compiled as float for the PC (tensor_bits 32) first, then at 8 bits for the board.",
    )
    _compile(teller, "float", ["--tensor-bits", "32"])
    _compile(teller, "8bit", [])
    for name, artifacts, target in (("pc-float", "float", "host"), ("pc", "8bit", "host"), ("board", "8bit", "device")):
        _run(teller, artifacts, "night-divided-twice.npy", name, target)
    black: Array = np.load(teller.folder / "board" / "enhanced.npy")
    in_float = np.load(teller.folder / "pc-float" / "enhanced.npy")
    teller.say(
        f"Mean brightness: the float model on the picture {expected.mean():.3f}, board {black.mean():.4f}, TIDL at 32 "
        f"bits {in_float.mean():.4f}. Black at 32 bits too: neither bits nor calibration can be the reason."
    )
    answer = teller.compare(
        "report-black",
        *("--device", "board/traces", "--host", "pc/traces", "--host-float", "pc-float/traces"),
        *("--host-float-tempdir", "float/tempDir", "--tempdir", "8bit/tempDir"),
        *("--model", "enhancer.onnx", "--input", "night-divided-twice.npy"),
    )
    entered = answer.rungs.enters if answer.rungs is not None else ()
    teller.told.culprits += [f"rung:{stage}" for stage in entered]
    teller.say("So the pre-processing divides once from here on; nothing is recompiled for that.")
    return black


def _banded(teller: Teller) -> tuple[Array, Array]:
    teller.chapter(
        "Problem: bands",
        "Divided once, the picture is there, but the night sky has bands. The same compile, the right input.",
    )
    _run(teller, "8bit", "night.npy", "board-8bit", "device")
    banded = np.load(teller.folder / "board-8bit" / "enhanced.npy")
    answer = teller.compare("report-before", *_sources("board-8bit", "8bit"), "--target", f"{TARGET_DB:g}")
    options = teller.paste(answer)
    teller.told.culprits += [step.layer for step in answer.cure.steps] if answer.cure is not None else []
    teller.chapter(
        "Cure: paste, recompile, run again", "Nothing else changes: same model, same calibration, same input."
    )
    _compile(teller, "cured", options_arguments(options))
    _run(teller, "cured", "night.npy", "board-cured", "device")
    cured = np.load(teller.folder / "board-cured" / "enhanced.npy")
    teller.compare("report-after", *_sources("board-cured", "cured"), "--target", f"{TARGET_DB:g}")
    return banded, cured


def _sources(run: str, artifacts: str) -> list[str]:
    given = ["--device", f"{run}/traces", "--tempdir", f"{artifacts}/tempDir"]
    return [*given, "--model", "enhancer.onnx", "--input", "night.npy"]


def _compile(teller: Teller, artifacts: str, options: list[str]) -> None:
    teller.run(
        *("virtualboard", "compile", "enhancer.onnx", "--artifacts", artifacts, "--calibration", "calibration"),
        *options,
    )


def _run(teller: Teller, artifacts: str, value: str, output: str, target: str) -> None:
    debug = ["--debug-level", "3"] + (["--target", target] if target != "device" else [])
    teller.run("virtualboard", "run", artifacts, "--input", value, "--output", output, *debug)


def _float_model(value: Array) -> Array:
    session: Any = onnxruntime.InferenceSession(
        onnx.load(MODEL).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    result: Array = session.run(["enhanced"], {"input": value})[0]
    return result


def _share(picture: Array, expected: Array) -> float:
    return float(picture.mean() / expected.mean())


def _sqnr(picture: Array, expected: Array) -> float:
    error = np.sum((picture.astype(np.float64) - expected) ** 2)
    return float(10 * np.log10(np.sum(expected.astype(np.float64) ** 2) / error))
