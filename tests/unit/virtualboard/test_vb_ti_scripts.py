"""TI's public scripts can read what the virtual board writes, as host and as device.

First their reading rules, stated in our own words and code (TexasInstruments/edgeai-tidl-tools, tag 11_00_06_00,
scripts/tidl_debug_scripts/layer_trace_inspector.py and stitch_multicore_traces.py). Then the scripts themselves, where
the environment variable TIDEGAUGE_TIDL_TOOLS names a checkout of that repository.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from tidegauge.cli.virtualboard import command
from tidegauge.virtualboard.calibration import float_session
from tidegauge.virtualboard.network import load_artifacts

SCRIPTS = Path(os.environ.get("TIDEGAUGE_TIDL_TOOLS", "")) / "scripts" / "tidl_debug_scripts"
needs_scripts = pytest.mark.skipif(
    not (SCRIPTS / "layer_trace_inspector.py").is_file(),
    reason="TIDEGAUGE_TIDL_TOOLS names no checkout of TexasInstruments/edgeai-tidl-tools with its debug scripts",
)


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, artifacts: Path, picture: dict[str, np.ndarray], enhancer: Path
) -> Path:
    """Folders `host` and `device` with traces of one frame at level 4, and `golden` with the float model's tensors."""
    folder = tmp_path_factory.mktemp("runs")
    np.save(folder / "x.npy", picture["input"])
    for target in ("host", "device"):
        arguments = ["run", str(artifacts), "--input", str(folder / "x.npy"), "--output", str(folder / target)]
        done = CliRunner().invoke(command, [*arguments, "--debug-level", "4", "--target", target])
        assert done.exit_code == 0, done.output
    # TI's examples name a tensor's file so (basic_example.py); always float32.
    (folder / "golden").mkdir()
    model = onnx.load(enhancer)
    names = [name for node in model.graph.node for name in node.output]
    for name, value in zip(names, float_session(model, names).run(names, picture), strict=True):
        value.astype(np.float32).tofile(folder / "golden" / f"{name.replace('/', '_')}.bin")
    return folder


def layer_info(artifacts: Path) -> Path:
    return artifacts / "tempDir" / "subgraph_0_tidl_net.bin.layer_info.txt"


def inspected(artifacts: Path, golden: Path, traces: Path) -> dict[str, tuple[Path, Path]]:
    """Golden file and trace by data id, by layer_trace_inspector.py's rules (lines 96 to 137): words between single
    blanks after the line is stripped; a line whose first two words differ is no layer; the last word is the name; the
    trace is tidl_trace_subgraph_0_, the id in four digits, and ends in _float.bin; golden is a file with the name in
    its own, `/` being `_`."""
    found = {}
    for line in layer_info(artifacts).read_text().split("\n")[:-1]:
        words = line.strip().split(" ")
        if words[0] != words[1]:
            continue
        ours = list(traces.glob(f"tidl_trace_subgraph_0_{words[0].zfill(4)}*_float.bin"))
        theirs = [path for path in golden.iterdir() if words[-1].replace("/", "_") in path.name]
        if ours and theirs:
            found[words[0]] = (theirs[0], ours[0])
    return found


def test_the_inspector_finds_a_trace_for_every_layer_and_reads_its_values(artifacts: Path, runs: Path) -> None:
    found = inspected(artifacts, runs / "golden", runs / "host" / "traces")
    layers = {str(layer.data_id): layer for layer in load_artifacts(artifacts).tensors()}
    added = {key for key, layer in layers.items() if layer.name.endswith(("_netFormat", "_original"))}
    assert found.keys() == layers.keys() - added, "all but what only TIDL has"
    for key, (golden, trace) in found.items():
        assert golden.stem == layers[key].name
        expected, got = np.fromfile(golden, np.float32), np.fromfile(trace, np.float32)
        assert expected.size == got.size
        relative = np.mean(np.abs(expected - got)) / np.mean(np.abs(expected))
        assert relative < 0.1, (layers[key].name, relative)


def test_the_inspector_finds_nothing_among_the_devices_traces(artifacts: Path, runs: Path) -> None:
    """It knows no `C7x_1_` before a name: a trap of the real board."""
    assert not inspected(artifacts, runs / "golden", runs / "device" / "traces")


def stitched(traces: Path) -> dict[int, tuple[tuple[int, ...], bool]]:
    """Dims (batch, dim1, dim2, channels, width, height) and whether float, by data id, by stitch_multicore_traces.py's
    rules (lines 105 to 150): the part before the last dot, at underscores; the first two words are C7x and the core;
    a last word with `float` moves everything by one; counted from the right: WIDTHxHEIGHT, channels, dim2, dim1, batch,
    id."""
    found = {}
    for path in traces.iterdir():
        words = path.name.rpartition(".")[0].split("_")
        if words[0] != "C7x" or int(words[1]) != 1:
            continue
        at = -1 if "float" in words[-1] else 0
        width, height = (int(word) for word in words[at - 1].split("x"))
        dims = (*(int(words[at - back]) for back in (5, 4, 3, 2)), width, height)
        found[int(words[at - 6]), at] = dims
    return {key: (dims, at == -1) for (key, at), dims in sorted(found.items())}


def test_the_stitcher_reads_the_devices_names(artifacts: Path, runs: Path) -> None:
    layers = {layer.data_id: layer for layer in load_artifacts(artifacts).tensors()}
    found = stitched(runs / "device" / "traces")
    assert found.keys() == layers.keys()
    for key, (dims, _) in found.items():
        batch, dim1, dim2, channels, height, width = layers[key].dims
        assert dims == (batch, dim1, dim2, channels, width, height)
    assert not stitched(runs / "host" / "traces")


#: TI's class without its web page: what it would draw with is replaced, what it would draw is printed.
INSPECT = """
import importlib.util, json, sys
from unittest.mock import MagicMock
for name in ("streamlit", "pandas", "plotly", "plotly.express", "matplotlib", "matplotlib.pyplot"):
    sys.modules[name] = MagicMock()
sys.modules["matplotlib.pyplot"].subplots.return_value = (MagicMock(), [MagicMock()] * 3)
sys.modules["matplotlib"].pyplot = sys.modules["matplotlib.pyplot"]
spec = importlib.util.spec_from_file_location("inspector", sys.argv[1])
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
inspector = script.LayerTraceInspector(*sys.argv[2:])
inspector.network_error_summary()
errors = sys.modules["pandas"].DataFrame.call_args_list[0].args[0]
told = dict(zip(errors["layerId"], map(float, errors["error"])))
json.dump({"files": inspector.tidl_onnx_trace_mapping, "errors": told}, sys.stdout)
"""


@needs_scripts
def test_tis_own_inspector_computes_the_same_errors(artifacts: Path, runs: Path) -> None:
    script = SCRIPTS / "layer_trace_inspector.py"
    folders = [runs / "golden", runs / "host" / "traces", layer_info(artifacts)]
    done = subprocess.run(
        [sys.executable, "-c", INSPECT, str(script), *map(str, folders)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = inspected(artifacts, runs / "golden", runs / "host" / "traces")
    told = json.loads(done.stdout)
    assert told["files"] == {key: [golden.name, trace.name] for key, (golden, trace) in found.items()}
    for key, (golden, trace) in found.items():
        expected, got = np.fromfile(golden, np.float32), np.fromfile(trace, np.float32)
        error = np.mean(np.abs(expected - got)) / np.mean(np.abs(expected))
        assert told["errors"][key] == pytest.approx(float(error), rel=1e-3)


@needs_scripts
def test_tis_own_stitcher_takes_the_devices_traces(artifacts: Path, runs: Path, tmp_path: Path) -> None:
    for path in (runs / "device" / "traces").glob("*.y"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    script = SCRIPTS / "stitch_multicore_traces.py"
    done = subprocess.run(
        [sys.executable, str(script), "--traceDir", str(tmp_path), "--numCores", "1"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    whole = {path.name: path.read_bytes() for path in tmp_path.glob("*.y")}
    assert len(whole) > 10
    assert {path.name: path.read_bytes() for path in (tmp_path / "stitch_traces").iterdir()} == whole
