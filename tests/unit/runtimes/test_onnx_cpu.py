from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tidegauge.profile import Profile
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.factory import libraries, open_reference
from tidegauge.tensors import TensorSpec


def test_the_reference_computes_the_model(onnx_profile: Profile) -> None:
    session = open_reference(onnx_profile)
    assert session.kind == "onnx_cpu"
    assert session.inputs == (TensorSpec("x", (1, 3, 4, 5), "float32"),)
    assert session.outputs == (TensorSpec("y", (1, 3, 4, 5), "float32"),)
    x = np.random.default_rng(1).random((1, 3, 4, 5), np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], np.maximum(2 * x - 1, 0), rtol=1e-6)
    assert session.offload() is None
    assert session.benchmark() == {}
    session.close()
    with pytest.raises(RuntimeFault, match="closed"):
        session.run({"x": x})


def test_a_tensor_that_is_a_view_is_read_in_its_own_order(onnx_profile: Profile) -> None:
    x = np.random.default_rng(2).random((1, 4, 5, 3), np.float32).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(open_reference(onnx_profile).run({"x": x})["y"], np.maximum(2 * x - 1, 0), rtol=1e-6)


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({}, r"\[\].*\['x'\]"),
        ({"z": np.zeros((1, 3, 4, 5), np.float32)}, r"\['z'\].*\['x'\]"),
        ({"x": np.zeros((1, 3, 4, 5))}, "float64.*float32"),
        ({"x": np.zeros((3, 4, 5), np.float32)}, r"\[3, 4, 5\].*\[1, 3, 4, 5\]"),
        ({"x": np.zeros((2, 3, 4, 5), np.float32)}, r"\[2, 3, 4, 5\].*\[1, 3, 4, 5\]"),
        ({"x": [[1.0]]}, "list"),
    ],
)
def test_a_wrong_input_is_refused_and_told(onnx_profile: Profile, tensors: dict[str, np.ndarray], told: str) -> None:
    with pytest.raises(RuntimeFault, match=told):
        open_reference(onnx_profile).run(tensors)


def test_a_dynamic_input_is_refused_by_name(
    tmp_path: Path, artifacts: Path, model_maker: Callable[..., Path], profile_maker: Callable[..., Profile]
) -> None:
    model = model_maker(tmp_path / "dynamic.onnx", ["batch", 3, 4, 5])
    with pytest.raises(RuntimeFault, match=r"input x has the dynamic shape.*batch.*fixed batch"):
        open_reference(profile_maker(model, artifacts))


def test_an_open_output_shape_is_measured(
    tmp_path: Path, artifacts: Path, model_maker: Callable[..., Path], profile_maker: Callable[..., Profile]
) -> None:
    model = model_maker(tmp_path / "open.onnx", [1, 3, 4, 5], ["n", 3, 4, "w"])
    assert open_reference(profile_maker(model, artifacts)).outputs[0].shape == (1, 3, 4, 5)


def test_one_thread_and_the_cpu_only(onnx_profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    seen = {}
    true_session = onnxruntime.InferenceSession

    def spy(path: str, sess_options: onnxruntime.SessionOptions, providers: list[str]) -> onnxruntime.InferenceSession:
        seen.update(intra=sess_options.intra_op_num_threads, inter=sess_options.inter_op_num_threads)
        seen.update(providers=providers)
        return true_session(path, sess_options=sess_options, providers=providers)

    monkeypatch.setattr(onnxruntime, "InferenceSession", spy)
    open_reference(onnx_profile).close()
    assert seen == {"intra": 1, "inter": 1, "providers": ["CPUExecutionProvider"]}


def test_a_missing_or_broken_model_is_told(
    tmp_path: Path, artifacts: Path, profile_maker: Callable[..., Profile]
) -> None:
    with pytest.raises(RuntimeFault, match=r"absent\.onnx is not a file"):
        open_reference(profile_maker(tmp_path / "absent.onnx", artifacts))
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(RuntimeFault, match=r"broken\.onnx"):
        open_reference(profile_maker(broken, artifacts))


def test_a_missing_package_is_told(onnx_profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RuntimeFault, match=r"onnxruntime can't be imported.*install"):
        open_reference(onnx_profile)


def test_importing_the_factory_imports_no_runtime() -> None:
    code = "import sys, tidegauge.runtimes.factory; print(*(m for m in sys.modules if 'onnx' in m or 'lite' in m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = [name for name in done.stdout.split() if not name.startswith("tidegauge.")]
    assert loaded == []


def test_libraries_tell_versions_and_hashes(tmp_path: Path) -> None:
    (tmp_path / "libvx_tidl_rt.so").write_bytes(b"library")
    told = libraries(tmp_path)
    assert told["python"].startswith("3.")
    assert told["numpy"] == np.__version__
    assert "onnxruntime" in told
    assert told["libvx_tidl_rt.so"] == "b718f1354f7247312eca086d9a024afe5fa717ddea5adeddd6f12bcf945b2e8c"
    assert "libtidl_onnxrt_EP.so" not in told
