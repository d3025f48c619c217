"""The check `compile`: on a real compile's files, and on what goes wrong with such files."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tidegauge.camera.config import CameraConfig
from tidegauge.link.config import LinkConfig
from tidegauge.preflight import options
from tidegauge.preflight.context import Context, Settings
from tidegauge.preflight.probe import Finding
from tidegauge.preflight.probes import compile as compile_check
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.spool.limits import SpoolLimits

PREPARED = Preprocess(width=32, height=16, mean=(123.675, 116.28, 103.53), scale=(0.017125, 0.017507, 0.017429))
PARAM = """
preprocess:
  crop:
  - 16
  - 32
  data_layout: NCHW
  resize: 64
  reverse_channels: false
session:
  input_mean:
  - 123.675
  - 116.28
  - 103.53
  input_optimization: false
  input_scale:
  - 0.017125
  - 0.017507
  - 0.017429
  runtime_options:
    advanced_options:calibration_frames: 10
    tensor_bits: 8
  session_name: onnxrt
"""


def run(folder: Path, prepared: Preprocess = PREPARED) -> Finding:
    profile = Profile("m", "onnx", "m.onnx", str(folder / "artifacts"), prepared, Output("y", "raw", 1.0))
    camera = CameraConfig("rtsp", "rtsp://127.0.0.1/none")
    return compile_check.run(Context(settings=Settings("d", "/s", profile, camera, LinkConfig(), SpoolLimits())))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "param.yaml").write_text(PARAM)
    return tmp_path


def test_a_profile_with_the_compiles_numbers(package: Path) -> None:
    finding = run(package)
    assert finding.status == "ok", finding
    (package / "param.yaml").rename(package / "artifacts" / "param.yaml")
    assert run(package).status == "ok", "also inside the folder"


def test_nothing_is_said_without_the_files(tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    assert run(tmp_path).status == "not_applicable"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": 48}, "height × width is 16 48 in the profile, 16 32 at compile time"),
        ({"layout": "NHWC"}, "layout is NHWC in the profile, NCHW at compile time"),
        ({"channel_order": "BGR"}, "channel_order is BGR in the profile, RGB at compile time"),
        ({"mean": (0.0, 0.0, 0.0)}, "mean is 0 0 0 in the profile, 123.675 116.28 103.53 at compile time"),
        ({"scale": (1.0, 1.0, 1.0)}, "scale is 1 1 1 in the profile, 0.017125"),
    ],
)
def test_a_profile_with_other_numbers_fails(package: Path, change: dict[str, object], words: str) -> None:
    finding = run(package, msgspec.structs.replace(PREPARED, **change))
    assert finding.status == "failed"
    assert words in finding.found
    assert ";" not in finding.found, "only what differs"


def test_numbers_that_were_folded_into_the_model_are_not_the_callers(package: Path) -> None:
    (package / "param.yaml").write_text(PARAM.replace("input_optimization: false", "input_optimization: true"))
    assert run(package, msgspec.structs.replace(PREPARED, scale=(1.0, 1.0, 1.0))).status == "ok"


def test_options_that_tidl_ignores_are_named_with_the_nearest_one(package: Path) -> None:
    (package / "param.yaml").write_text(PARAM.replace("calibration_frames", "calibration_frame"))
    finding = run(package)
    assert finding.status == "warning"
    assert "advanced_options:calibration_frame" in finding.found
    assert "did you mean `advanced_options:calibration_frames`" in finding.cure


def test_layer_names_that_the_compile_did_not_find(package: Path) -> None:
    (package / "run.log").write_text("WARNING: Invalid Layer Name  /head/Conv_output_0\n")
    finding = run(package)
    assert finding.status == "warning", finding
    assert "/head/Conv_output_0" in finding.found


def test_a_damaged_file_is_said(package: Path) -> None:
    (package / "param.yaml").write_text("preprocess: [1, 2\n")
    assert run(package).status == "warning"


def test_a_real_compile() -> None:
    root = Path(os.environ.get("TIDEGAUGE_SAMPLES", Path(__file__).resolve().parents[4] / "shared" / "samples"))
    sample = root / "am62a-yolox-s-int16-tools-10_00_08"
    if not sample.is_dir():
        pytest.skip(f"the real samples are not at {root} (set TIDEGAUGE_SAMPLES)")
    right = Preprocess(width=640, height=640, channel_order="BGR")
    finding = run(sample, right)
    assert finding.status == "warning", finding
    assert "/multi_level_conv_obj.2/Conv_output_0" in finding.found, "its 16-bit list was not applied"
    assert run(sample, msgspec.structs.replace(right, channel_order="RGB")).status == "failed"


def test_every_known_option_is_known_once() -> None:
    assert options.unknown(options.KNOWN) == {}
    assert options.unknown(["advanced_options:m_spatial_split_1"]) == {}
    assert options.unknown(["frobnicate"]) == {"frobnicate": ""}
