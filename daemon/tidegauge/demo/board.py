"""The demo's virtual board: compiled from the clip it will see, and given its fault."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import msgspec
import onnx

from tidegauge.camera.folder import list_pictures, load_picture
from tidegauge.camera.synthetic import Clip
from tidegauge.demo.settings import HEIGHT, MODEL, PHOTOS, SCENE_FRAMES, WIDTH, Places, profile, write_toml
from tidegauge.errors import TidegaugeError
from tidegauge.pipeline.preprocess import input_tensor
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.faults import ALL_KINDS, KINDS, Fault, Kind, eligible_layers
from tidegauge.virtualboard.options import CompileOptions, CompileReport

CALIBRATION_FRAMES = 24
#: Frames of the clip between two calibration frames, so that each sees another scene.
CALIBRATION_STRIDE = 11
#: `nan` exists in few layers only; a seed draws from the kinds that any layer can have, and names `nan` apart.
DRAWN: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "nan")


def compile_demo(places: Places, seed: int) -> CompileReport:
    """Compile the enhancer, calibrated on the clip: convolutions in 8 bits, curves in 16.

    The compile's folder, tempDir included, goes to the collector's library; the board gets the artifacts alone.
    """
    prepared = profile(places.root).preprocess
    photos = [load_picture(path) for path in list_pictures(PHOTOS)]
    clip = Clip(photos, 2 * WIDTH, 2 * HEIGHT, seed, SCENE_FRAMES)
    frames = [
        {"input": input_tensor(clip.frame(number * CALIBRATION_STRIDE), prepared)}
        for number in range(CALIBRATION_FRAMES)
    ]
    library = places.library / "enhancer" / "artifacts"
    library.parent.mkdir(parents=True)
    report = compile_model(MODEL, library, frames, options())
    shutil.copytree(library, places.board / "artifacts", ignore=shutil.ignore_patterns("tempDir"))
    (places.board / "model").mkdir(parents=True)
    shutil.copyfile(MODEL, places.board / "model" / MODEL.name)
    write_toml(places.board / "enhancer.toml", msgspec.to_builtins(profile(places.root)))
    return report


def options() -> CompileOptions:
    """Mixed precision, by name, as an engineer would cure an 8-bit compile of this network: see docs/demo.md."""
    names = [output for node in onnx.load(MODEL).graph.node for output in node.output]
    return CompileOptions(
        quantization_scale_type=4,
        output_feature_16bit_names_list=(
            "input",
            *(name for name in names if name.startswith(("/curve", "/conv7/"))),
            "enhanced_original",
        ),
        params_16bit_names_list=tuple(name for name in names if name.endswith("/Relu_output_0")),
        calibration_frames=CALIBRATION_FRAMES,
    )


def choose_fault(artifacts: Path, seed: int, kind: str | None, layer: str | None) -> Fault | None:
    """The fault to inject: what was asked for, the rest drawn from `seed`. None for kind "none".

    Raises TidegaugeError for a layer that can't have the fault, naming those that can.
    """
    if kind == "none":
        return None
    eligible = eligible_layers(artifacts)
    draw = random.Random(seed)
    drawn = draw.choice(DRAWN)
    asked = [known for known in ALL_KINDS if known == kind]
    if asked:
        drawn = asked[0]
    elif layer is not None:
        possible = [known for known in KINDS if layer in eligible[known]]
        drawn = draw.choice(possible) if possible else drawn
    candidates = eligible[drawn]
    if layer is None:
        return Fault(draw.choice(candidates), drawn)
    if layer not in candidates:
        raise TidegaugeError(
            f"layer {layer} can't have the fault `{drawn}`", f"layers that can: {', '.join(candidates)}"
        )
    return Fault(layer, drawn)
