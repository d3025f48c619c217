"""Compile options: float, powers of two, a quantisation proto, sub-graphs; and TI's emulation on a PC."""

from __future__ import annotations

import os
import shutil
import threading
from io import BytesIO
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from tidegauge.cli.virtualboard import command
from tidegauge.errors import TidegaugeError
from tidegauge.tidl import artifacts as artifact_rules
from tidegauge.tidl import layer_info, offload, quant_proto, svg, tensor_table, trace_names
from tidegauge.virtualboard.calibration import float_session
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.failures import Failure
from tidegauge.virtualboard.faults import Fault, eligible_layers
from tidegauge.virtualboard.network import load_all, load_artifacts
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.state import BoardState, fail, inject
from unit.virtualboard.vb_client import open_session

Tensors = dict[str, np.ndarray]
Frames = list[Tensors]
NET = "subgraph_0_tidl_net.bin"


def call(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    if isinstance(result.exception, TidegaugeError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def reference(model: Path, picture: Tensors) -> np.ndarray:
    return np.asarray(onnxruntime.InferenceSession(str(model)).run(None, picture)[0])


@pytest.fixture(scope="module")
def in_float(tmp_path_factory: pytest.TempPathFactory, enhancer: Path, calibration: Frames) -> Path:
    folder = tmp_path_factory.mktemp("float") / "artifacts"
    compile_model(enhancer, folder, calibration, CompileOptions(tensor_bits=32, calibration_frames=4))
    return folder


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory, enhancer: Path, calibration: Frames) -> Path:
    """The Tanh and one slice stay on the CPU."""
    folder = tmp_path_factory.mktemp("cut") / "artifacts"
    options = CompileOptions(
        quantization_scale_type=4, calibration_frames=4, deny_list_layer_name=("curves", "rate1", "nowhere")
    )
    report = compile_model(enhancer, folder, calibration, options)
    assert report.subgraphs == ("subgraph_0", "subgraph_1")
    assert (report.nodes, report.offloaded) == (17, 15)
    assert "Invalid Layer Name  nowhere" in report.warnings
    assert 25 < report.sqnr_db["enhanced"] < 80
    return folder


def test_float_networks_say_so_everywhere(in_float: Path) -> None:
    for layer in svg.parse((in_float / "tempDir" / f"{NET}.svg").read_text()):
        for out in layer.outputs:
            assert out.element == "TIDL_SinglePrecFloat"
            assert float(out.scale or "nan") == 1
    assert not list(in_float.rglob("*.prototxt"))


def test_float_networks_run_on_the_host_only(
    in_float: Path, enhancer: Path, picture: Tensors, board: Path, tmp_path: Path
) -> None:
    with pytest.raises(Fail, match="Create state function failed"):
        open_session(enhancer, in_float)
    traces = Path(BoardState.load(board).trace_folder)
    BoardState(trace_folder=str(traces), target="host").save(board)
    output = open_session(enhancer, in_float, 3).run(None, picture)[0]
    assert np.abs(output - reference(enhancer, picture)).max() < 1e-5
    names = [trace_names.parse(path.name) for path in traces.iterdir()]
    assert len(names) == len(load_artifacts(in_float).tensors())
    assert {(name.cpu, name.kind) for name in names if name is not None} == {(None, "float")}


def test_faults_of_a_float_network(in_float: Path, enhancer: Path, picture: Tensors, board: Path) -> None:
    BoardState(trace_folder="/nowhere", target="host").save(board)
    session = open_session(enhancer, in_float)
    healthy = session.run(None, picture)[0]
    able = eligible_layers(in_float)
    for kind in ("weights", "bias", "accumulator"):
        assert "relu2" in able[kind]
        inject(board, [Fault("relu2", kind)], in_float)
        assert not np.array_equal(session.run(None, picture)[0], healthy), kind
    assert able["requantise"] == ()


def test_power_of_two_scales(enhancer: Path, calibration: Frames, tmp_path: Path) -> None:
    options = CompileOptions(quantization_scale_type=1, calibration_frames=4)
    report = compile_model(enhancer, tmp_path / "a", calibration, options)
    scales = [layer.quant.scale for layer in load_artifacts(tmp_path / "a").tensors() if not layer.quant.is_float]
    assert all(float(np.log2(scale)).is_integer() for scale in scales)
    assert (
        20
        < report.sqnr_db["enhanced"]
        < compile_model(enhancer, tmp_path / "b", calibration, CompileOptions(calibration_frames=4)).sqnr_db["enhanced"]
    )


def test_a_quantisation_proto_is_written_then_read(enhancer: Path, calibration: Frames, tmp_path: Path) -> None:
    proto = tmp_path / "params" / "q.prototxt"
    options = CompileOptions(calibration_frames=4, quant_params_proto_path=str(proto))
    compile_model(enhancer, tmp_path / "first", calibration, options)
    assert proto.read_text() == (tmp_path / "first" / "tempDir" / "model_qparams.prototxt").read_text()
    compile_model(enhancer, tmp_path / "same", calibration[:1], options)  # one frame's ranges would differ
    first, same = load_artifacts(tmp_path / "first"), load_artifacts(tmp_path / "same")
    assert [layer.quant for layer in first.layers] == [layer.quant for layer in same.layers]
    assert first.twin == same.twin
    scale = first.layer("relu1").quant.scale
    by_hand = "# by hand\n" + proto.read_text().replace(f"scale: {scale:.17g}", f"scale: {scale / 2:.17g}", 1)
    proto.write_text(by_hand)
    compile_model(enhancer, tmp_path / "edited", calibration, options)
    assert proto.read_text() == by_hand
    edited = load_artifacts(tmp_path / "edited")
    assert edited.layer("relu1").quant.scale == pytest.approx(scale / 2)
    assert edited.layer("relu2").quant == first.layer("relu2").quant
    proto.write_text("num_layers: 3")
    with pytest.raises(TidegaugeError, match=r"q\.prototxt .*num_layers is 3, 0 layers follow"):
        compile_model(enhancer, tmp_path / "bad", calibration, options)
    assert not (tmp_path / "bad").exists()


def test_denied_nodes_cut_the_network(cut: Path, enhancer: Path) -> None:
    meta = artifact_rules.parse_metadata((cut / "onnxrtMetaData.txt").read_text())
    groups = artifact_rules.parse_allowed_nodes((cut / "allowedNode.txt").read_text())
    assert meta.graph_nodes == 17
    assert [(g.name, g.outputs) for g in meta.subgraphs][1] == ("subgraph_1", ("enhanced",))
    assert set(meta.subgraphs[0].outputs) >= {"conv3_out"}
    assert {"curves", "rate1"} <= set(meta.subgraphs[1].inputs)
    on_cpu = [i for i, node in enumerate(onnx.load(enhancer).graph.node) if node.output[0] in ("curves", "rate1")]
    assert len(on_cpu) == 2
    assert sorted(index for group in groups for index in group) == [i for i in range(17) if i not in on_cpu]
    files = {path.name: path for path in cut.iterdir() if path.is_file()}
    sizes = {name: path.stat().st_size for name, path in files.items()}
    assert artifact_rules.check("onnx", sizes, {name: path.read_bytes() for name, path in files.items()}) == ()
    for name, network in load_all(cut).items():
        rows = layer_info.parse((cut / "tempDir" / f"{name}_tidl_net.bin.layer_info.txt").read_text())
        assert len(rows) == len(network.layers)


def test_a_cut_network_runs_in_turns(
    cut: Path, enhancer: Path, picture: Tensors, board: Path, log_server: BytesIO
) -> None:
    session = open_session(enhancer, cut, 3)
    output = session.run(None, picture)[0]
    assert 0 < np.abs(output - reference(enhancer, picture)).max() < 0.1
    assert offload.subgraphs(session.get_TI_benchmark_data()) == ("subgraph_0", "subgraph_1")
    found = [trace_names.parse(path.name) for path in Path(BoardState.load(board).trace_folder).iterdir()]
    for name, network in load_all(cut).items():
        ids = sorted(trace.data_id for trace in found if trace is not None and trace.subgraph == name)
        assert ids == [layer.data_id for layer in network.tensors()]
    assert len(found) == sum(len(network.tensors()) for network in load_all(cut).values())
    assert tensor_table.from_remote_log((board / "remote_log.txt").read_text())
    # A fault belongs to the sub-graph that has its layer.
    for layer in ("relu1", "enhanced_original"):
        inject(board, [Fault(layer, "zero")], cut)
        assert np.abs(session.run(None, picture)[0] - output).max() > 0.01
    with pytest.raises(TidegaugeError, match="no layer 'curves': use one of input_netFormat"):
        inject(board, [Fault("curves", "zero")], cut)


def test_a_cut_network_of_another_model_is_refused(cut: Path, enhancer: Path, board: Path, tmp_path: Path) -> None:
    text = (cut / "onnxrtMetaData.txt").read_text()
    shutil.copytree(cut, tmp_path / "copy")
    (tmp_path / "copy" / "allowedNode.txt").write_text("2\n1\n0\n1\n1\n")
    with pytest.raises(Fail, match="belong to another model"):
        open_session(enhancer, tmp_path / "copy")
    (tmp_path / "copy" / "onnxrtMetaData.txt").write_text(text.replace("1:", "0:"))
    with pytest.raises(Fail, match=r"2 groups, onnxrtMetaData\.txt 1"):
        open_session(enhancer, tmp_path / "copy")


def test_nothing_left_for_the_device_is_refused(enhancer: Path, calibration: Frames, tmp_path: Path) -> None:
    every = tuple(node.output[0] for node in onnx.load(enhancer).graph.node)
    with pytest.raises(TidegaugeError, match="leaves nothing for the C7x"):
        compile_model(enhancer, tmp_path / "a", calibration, CompileOptions(deny_list_layer_name=every))


def test_host_emulation_from_the_command_line(
    artifacts: Path, enhancer: Path, picture: Tensors, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", picture["input"])
    run = ("run", artifacts, "--input", tmp_path / "x.npy", "--input", tmp_path / "x.npy", "--debug-level", 4)
    call(*run, "--output", tmp_path / "host", "--target", "host")
    call(*run, "--output", tmp_path / "device")
    host = {path.name: path.read_bytes() for path in (tmp_path / "host" / "traces").iterdir()}
    device = {path.name: path.read_bytes() for path in (tmp_path / "device" / "traces").iterdir()}
    assert device == {f"C7x_1_{name}": data for name, data in host.items()}
    tensors = load_artifacts(artifacts).tensors()
    assert sum(name.endswith("_float.bin") for name in host) == len(tensors)
    # As TI's basic_example.py writes them.
    output = np.load(tmp_path / "host" / "enhanced.npy")
    for frame in ("frame_0", "frame_1"):
        assert (tmp_path / "host" / "offload" / frame / "enhanced.bin").read_bytes() == output.astype("<f4").tobytes()
    with_model = ("--model", enhancer, "--output", tmp_path / "session")
    call(*run, *with_model)
    assert np.array_equal(np.load(tmp_path / "session" / "enhanced.npy"), output)


def test_options_from_the_command_line(enhancer: Path, calibration: Frames, picture: Tensors, tmp_path: Path) -> None:
    frames, x = tmp_path / "frame.npy", tmp_path / "x.npy"
    np.save(frames, calibration[0]["input"])
    np.save(x, picture["input"])
    compile_ = ("compile", enhancer, "--calibration", frames, "--artifacts")
    said = call(
        *(*compile_, tmp_path / "a", "--deny", "curves", "--option", "accuracy_level=1", "--option", "colour=red"),
        *("--option", "advanced_options:calibration_frames=1"),
    )
    assert "warning: colour is no compile option of TIDL: ignored" in said
    assert "16 of 17 nodes in 2 sub-graph(s), 1 calibration frames" in said
    with pytest.raises(TidegaugeError, match="name the model with --model"):
        call("run", tmp_path / "a", "--input", x, "--output", tmp_path / "o")
    call("run", tmp_path / "a", "--model", enhancer, "--input", x, "--output", tmp_path / "o")
    call(*compile_, tmp_path / "f", "--tensor-bits", 32)
    with pytest.raises(TidegaugeError, match="float networks run with --target host only"):
        call("run", tmp_path / "f", "--input", x, "--output", tmp_path / "o")
    with pytest.raises(TidegaugeError, match="KEY=VALUE"):
        call(*compile_, tmp_path / "g", "--option", "oops")


def test_super_tiled_layers_are_written_once_a_tile(
    enhancer: Path, calibration: Frames, picture: Tensors, board: Path, log_server: BytesIO, tmp_path: Path
) -> None:
    options = {"advanced_options:high_resolution_optimization": 1, "advanced_options:calibration_frames": 4}
    compile_model(enhancer, tmp_path / "a", calibration, CompileOptions.from_tidl(options))
    traces = Path(BoardState.load(board).trace_folder)
    network = load_artifacts(tmp_path / "a")
    expected = {layer.data_id: 2 * layer.tiles for layer in network.tensors()}
    assert {layer.name for layer in network.tensors() if layer.tiles == 4} == {"relu1", "relu2", "conv3_out"}
    seen: dict[int, list[bytes]] = {}
    finished = threading.Event()

    class Watch(FileSystemEventHandler):
        def on_closed(self, event: FileSystemEvent) -> None:
            path = Path(os.fsdecode(event.src_path))
            name = trace_names.parse(path.name)
            assert name is not None
            seen.setdefault(name.data_id, []).append(path.read_bytes())
            if {key: len(value) for key, value in seen.items()} == expected:
                finished.set()

    fail(board, [Failure("slow_dump", 0.01)])  # so that the watcher sees each state
    observer = Observer()
    observer.schedule(Watch(), str(traces))
    observer.start()
    try:
        open_session(enhancer, tmp_path / "a", 3).run(None, picture)
        assert finished.wait(20), seen
    finally:
        observer.stop()
        observer.join()
    layer = network.layer("relu1")
    whole = [data for data in seen[layer.data_id] if len(data) == np.prod(layer.shape)]
    assert len(whole) >= 4
    assert whole[0] != whole[-1]  # the full size, and a close, and yet not complete
    plain = compile_model(enhancer, tmp_path / "b", calibration, CompileOptions(calibration_frames=4))
    assert [other.tiles for other in plain.layers] == [1] * len(plain.layers)
    inject(board, [])
    for path in traces.iterdir():
        path.unlink()
    open_session(enhancer, tmp_path / "b", 3).run(None, picture)
    names = [(path, trace_names.parse(path.name)) for path in traces.iterdir()]
    (single,) = [path for path, name in names if name is not None and name.data_id == layer.data_id]
    assert single.read_bytes() == whole[-1]


def test_bias_calibration_takes_the_mean_error_away(enhancer: Path, calibration: Frames, tmp_path: Path) -> None:
    def mean_error(name: str, **options: int) -> tuple[float, float]:
        chosen = CompileOptions(calibration_frames=4, **options)
        report = compile_model(enhancer, tmp_path / name, calibration, chosen)
        network = load_artifacts(tmp_path / name)
        twin, session = Twin(network), float_session(onnx.load(enhancer), ["conv3_out"])
        errors = []
        for frame in calibration:
            codes = twin.run(frame, ["conv3_out"])["conv3_out"]
            difference = network.layer("conv3_out").quant.values(codes) - session.run(["conv3_out"], frame)[0]
            errors.append(difference.mean(axis=(0, 2, 3)))
        return float(np.abs(np.mean(errors, axis=0)).max()), report.sqnr_db["enhanced"]

    plain, plain_sqnr = mean_error("plain")
    corrected, corrected_sqnr = mean_error("corrected", calibration_iterations=4)
    assert corrected < plain / 3
    assert corrected_sqnr > plain_sqnr - 0.5
    assert mean_error("simple", calibration_iterations=4, accuracy_level=0) == (plain, plain_sqnr)


def test_16_bit_parameters_alone_bring_the_layer_nearer(enhancer: Path, calibration: Frames, tmp_path: Path) -> None:
    name = "conv3_out"
    truth = float_session(onnx.load(enhancer), [name]).run([name], calibration[0])[0]

    def noise(folder: str, **options: tuple[str, ...]) -> tuple[float, int]:
        """Deviation of the layer from float, and the bits of its output."""
        compile_model(enhancer, tmp_path / folder, calibration, CompileOptions(calibration_frames=4, **options))
        network = load_artifacts(tmp_path / folder)
        layer = network.layer(name)
        codes = Twin(network).run(calibration[0], [name])[name]
        return float(np.std(layer.quant.values(codes) - truth)), layer.quant.bits

    plain, wide = noise("plain"), noise("wide", params_16bit_names_list=("conv1_out", "relu1", "relu2", name))
    assert plain[1] == wide[1] == 8, "activations keep their 8 bits"
    assert wide[0] < plain[0]
    text = (tmp_path / "wide" / "tempDir" / "model_qparams.prototxt").read_text()
    assert {block.weights[0].element for block in quant_proto.parse(text) if block.name == name} == {3}


def test_calibration_frames_beyond_the_limit_do_not_count(enhancer: Path, calibration: Frames, tmp_path: Path) -> None:
    bright = {"input": np.full_like(calibration[0]["input"], 4.0)}

    def top(folder: str, frames: Frames, limit: int) -> tuple[float, int]:
        report = compile_model(enhancer, tmp_path / folder, frames, CompileOptions(calibration_frames=limit))
        return load_artifacts(tmp_path / folder).layer("input_netFormat").high, report.frames

    assert top("one", [calibration[0], bright], 1) == (float(calibration[0]["input"].max()), 1)
    assert top("both", [calibration[0], bright], 2) == (4.0, 2)
