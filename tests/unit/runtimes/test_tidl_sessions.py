"""The TIDL sessions against fakes of TI's runtimes: exact call shapes, refusals, and the proof of offload."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tidegauge.errors import TidegaugeError
from tidegauge.profile import Profile
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.runtimes.factory import open_device
from tidegauge.tensors import TensorSpec
from tidegauge.tidl.offload import NotOffloaded

ONNX, TFLITE = "fake_onnxruntime_tidl", "fake_tflite_tidl"
X = np.arange(60, dtype=np.float32).reshape(1, 3, 4, 5)
P = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)


def test_onnx_calls_are_ti_s(onnx_profile: Profile, fake_onnx: Any) -> None:
    session = open_device(onnx_profile, ONNX, debug_level=3)
    (name, (args, kwargs)) = fake_onnx.calls[0]
    assert (name, args) == ("InferenceSession", (onnx_profile.model,))
    options = kwargs.pop("sess_options")
    assert kwargs == {
        "providers": ["TIDLExecutionProvider", "CPUExecutionProvider"],
        "provider_options": [{"artifacts_folder": onnx_profile.artifacts, "debug_level": "3"}, {}],
    }
    assert vars(options) == {"log_severity_level": 3}, "the graph optimisation must stay as it was at the compile"
    answer = session.run({"x": X})
    np.testing.assert_array_equal(answer["y"], X * 2)
    assert fake_onnx.calls[1][1][0] == ["y"]
    session.close()


def test_onnx_offload_is_proven_after_a_run(onnx_profile: Profile, fake_onnx: Any) -> None:
    session = open_device(onnx_profile, ONNX)
    with pytest.raises(RuntimeFault, match="before a run"):
        session.offload()
    session.run({"x": X})
    proof = session.offload()
    assert proof is not None
    assert (proof.provider, proof.subgraphs, proof.virtual) == ("TIDLExecutionProvider", ("subgraph_0",), False)
    assert session.benchmark()["ts:subgraph_subgraph_0_proc_end"] == 7000
    fake_onnx.VIRTUAL = True
    session.close()
    virtual = open_device(onnx_profile, ONNX)
    virtual.run({"x": X})
    told = virtual.offload()
    assert told is not None
    assert told.virtual
    virtual.close()


@pytest.mark.parametrize("failure", ["fallback", "no_stamps"])
def test_onnx_on_the_cpu_is_not_offloaded(onnx_profile: Profile, fake_onnx: Any, failure: str) -> None:
    fake_onnx.failure = failure
    session = open_device(onnx_profile, ONNX)
    session.run({"x": X})
    with pytest.raises(NotOffloaded):
        session.offload()
    session.close()


def test_ort_s_own_exceptions_become_faults(onnx_profile: Profile, fake_onnx: Any) -> None:
    fake_onnx.failure = "create"
    with pytest.raises(RuntimeFault, match="Create state function failed"):
        open_device(onnx_profile, ONNX)
    fake_onnx.failure = ""
    session = open_device(onnx_profile, ONNX)
    fake_onnx.failure = "run"
    with pytest.raises(RuntimeFault, match="Invoke Failed"):
        session.run({"x": X})
    with pytest.raises(RuntimeFault, match="before a run"):
        session.offload()
    session.close()


def test_an_emulation_s_own_fault_keeps_its_cure(onnx_profile: Profile, fake_onnx: Any) -> None:
    fake_onnx.TidegaugeError = TidegaugeError

    def broken(tensor: object) -> object:
        raise TidegaugeError("the emulation broke", "mend it")

    fake_onnx.answer = broken
    session = open_device(onnx_profile, ONNX)
    with pytest.raises(TidegaugeError, match=r"^the emulation broke: mend it$"):
        session.run({"x": X})
    session.close()


def test_the_stock_runtime_is_refused(onnx_profile: Profile, fake_onnx: Any) -> None:
    fake_onnx.failure = "stock"
    with pytest.raises(RuntimeFault, match="no TIDLExecutionProvider"):
        open_device(onnx_profile, ONNX)
    assert fake_onnx.calls == []


def test_the_stock_onnxruntime_of_this_machine_is_refused(onnx_profile: Profile) -> None:
    with pytest.raises(RuntimeFault, match=r"onnxruntime has no TIDLExecutionProvider.*install TI's onnxruntime_tidl"):
        open_device(onnx_profile)


def test_ti_s_missing_library_is_told_before_it_aborts(
    onnx_profile: Profile, fake_onnx: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", fake_onnx)
    with pytest.raises(RuntimeFault, match=r"libtidl_onnxrt_EP\.so can't be loaded"):
        open_device(onnx_profile)
    assert fake_onnx.calls == []


@pytest.mark.parametrize("missing", ["allowedNode.txt", "subgraph_0_tidl_net.bin", "subgraph_0_tidl_io_1.bin"])
@pytest.mark.parametrize("runtime", ["onnx", "tflite"])
def test_an_incomplete_folder_is_refused_before_the_runtime_sees_it(
    onnx_profile: Profile,
    tflite_profile: Profile,
    fake_onnx: Any,
    fake_tflite: Any,
    missing: str,
    runtime: str,
) -> None:
    (Path(onnx_profile.artifacts) / missing).unlink()
    profile, module = (onnx_profile, ONNX) if runtime == "onnx" else (tflite_profile, TFLITE)
    with pytest.raises(RuntimeFault) as caught:
        open_device(profile, module)
    if not (runtime == "tflite" and missing.endswith("net.bin")):
        assert missing in str(caught.value)
    assert fake_onnx.calls == []
    assert fake_tflite.calls == []


def test_an_absent_folder_is_told(onnx_profile: Profile, fake_onnx: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match="nowhere can't be read"):
        open_device(msgspec.structs.replace(onnx_profile, artifacts=str(tmp_path / "nowhere")), ONNX)


def test_two_sessions_with_different_options_do_not_share_a_process(onnx_profile: Profile, fake_onnx: Any) -> None:
    production = open_device(onnx_profile, ONNX)
    with pytest.raises(RuntimeFault, match="other options"):
        open_device(onnx_profile, ONNX, debug_level=3)
    production.close()
    open_device(onnx_profile, ONNX, debug_level=3).close()


def test_shapes_left_open_come_from_the_io_descriptor(onnx_profile: Profile, fake_onnx: Any) -> None:
    fake_onnx.output_shape = ["n", 3, None, 5]
    session = open_device(onnx_profile, ONNX)
    assert session.outputs == (TensorSpec("y", (1, 3, 4, 5), "float32"),)
    fake_onnx.answer = lambda x: x[:, :2]
    with pytest.raises(RuntimeFault, match=r"output y is float32 \[1, 2, 4, 5\]"):
        session.run({"x": X})
    session.close()


def test_a_refused_model_leaves_no_session_open(onnx_profile: Profile, fake_onnx: Any) -> None:
    fake_onnx.input_shape = ["n", 3, 4, 5]
    with pytest.raises(RuntimeFault, match="input x has the dynamic shape"):
        open_device(onnx_profile, ONNX)
    fake_onnx.input_shape = [1, 3, 4, 5]
    open_device(onnx_profile, ONNX, debug_level=4).close()


def test_strict_inputs_and_a_closed_session(onnx_profile: Profile, fake_onnx: Any) -> None:
    session = open_device(onnx_profile, ONNX)
    with pytest.raises(RuntimeFault, match=r"float64.*float32"):
        session.run({"x": X.astype(np.float64)})
    assert len(fake_onnx.calls) == 1
    session.close()
    for call in (lambda: session.run({"x": X}), session.offload, session.benchmark):
        with pytest.raises(RuntimeFault, match="closed"):
            call()


def test_a_module_without_the_call_shapes_is_told(onnx_profile: Profile, tflite_profile: Profile) -> None:
    with pytest.raises(RuntimeFault, match="json has no get_available_providers"):
        open_device(onnx_profile, "json")
    with pytest.raises(RuntimeFault, match="json has no load_delegate"):
        open_device(tflite_profile, "json")
    with pytest.raises(RuntimeFault, match="no_such_module can't be imported"):
        open_device(onnx_profile, "no_such_module")


def test_tflite_calls_are_ti_s(tflite_profile: Profile, fake_tflite: Any) -> None:
    session = open_device(tflite_profile, TFLITE, debug_level=4)
    assert fake_tflite.calls[0] == (
        "load_delegate",
        (
            "libtidl_tfl_delegate.so",
            {"artifacts_folder": tflite_profile.artifacts, "debug_level": "4", "core_number": "1"},
        ),
    )
    name, (args, kwargs) = fake_tflite.calls[1]
    (delegate,) = kwargs.pop("experimental_delegates")
    assert (name, args, delegate.library) == ("Interpreter", (tflite_profile.model,), "libtidl_tfl_delegate.so")
    assert kwargs == {
        "num_threads": 1,
        "experimental_op_resolver_type": fake_tflite.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    }
    assert fake_tflite.calls[2] == ("allocate_tensors", ())
    np.testing.assert_array_equal(session.run({"x": P})["y"], P * 2)
    proof = session.offload()
    assert proof is not None
    assert (proof.provider, proof.nodes, proof.subgraphs) == ("libtidl_tfl_delegate.so", 1, ("subgraph_0",))
    session.close()
    with pytest.raises(RuntimeFault, match="closed"):
        session.run({"x": P})


@pytest.mark.parametrize("failure", ["no_nodes", "zeros"])
def test_a_delegate_that_does_nothing_is_not_offloaded(tflite_profile: Profile, fake_tflite: Any, failure: str) -> None:
    fake_tflite.failure = failure
    session = open_device(tflite_profile, TFLITE)
    session.run({"x": P})
    with pytest.raises(NotOffloaded):
        session.offload()
    session.close()


def test_tflite_faults(tflite_profile: Profile, fake_tflite: Any) -> None:
    fake_tflite.failure = "no_delegate"
    with pytest.raises(RuntimeFault, match=r"libtidl_tfl_delegate\.so can't be loaded"):
        open_device(tflite_profile, TFLITE)
    fake_tflite.failure = "run"
    session = open_device(tflite_profile, TFLITE)
    with pytest.raises(RuntimeFault, match="failed to invoke"):
        session.run({"x": P})
    with pytest.raises(RuntimeFault, match="before a run"):
        session.offload()
    with pytest.raises(RuntimeFault, match=r"float32.*uint8"):
        session.run({"x": P.astype(np.float32)})
    session.close()


def test_a_dark_scene_is_no_failed_create(tflite_profile: Profile, fake_tflite: Any) -> None:
    session = open_device(tflite_profile, TFLITE)
    assert not session.run({"x": np.zeros_like(P)})["y"].any()
    proof = session.offload()
    assert proof is not None
    assert proof.nodes == 1
    session.close()


@pytest.mark.parametrize(("told", "level"), [("disabled", 0), ("all", 99)])
def test_the_graph_is_optimised_as_at_the_compile(onnx_profile: Profile, fake_onnx: Any, told: Any, level: int) -> None:
    open_device(msgspec.structs.replace(onnx_profile, graph_optimization=told), ONNX).close()
    options = fake_onnx.calls[0][1][1]["sess_options"]
    assert vars(options) == {"log_severity_level": 3, "graph_optimization_level": level}


def test_a_level_that_the_runtime_lacks_is_told(onnx_profile: Profile, fake_onnx: Any) -> None:
    with pytest.raises(RuntimeFault, match="has no ORT_ENABLE_BASIC"):
        open_device(msgspec.structs.replace(onnx_profile, graph_optimization="basic"), ONNX)
