"""What the checks conclude, apart from how they read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from tidegauge.preflight import capture_size
from tidegauge.preflight.capture_size import CaptureSize
from tidegauge.preflight.context import Context
from tidegauge.preflight.mounts import kind_of
from tidegauge.preflight.probes import (
    clock,
    network_version,
    optimization,
    python,
    rights,
    state_folder,
    subgraphs,
    trace_folder,
)

MIB = 1 << 20
MOUNTS = (
    "/dev/root / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\nnfs:/x /tmp/in\\040here nfs rw 0 0\noverlay / overlay rw 0 0\n"
)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/tmp", "tmpfs"), ("/tmp/a/b", "tmpfs"), ("/tmpx", "overlay"), ("/tmp/in here/a", "nfs"), ("/", "overlay")],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert kind_of(path, MOUNTS) == kind


@pytest.mark.parametrize(
    ("now", "tls", "status"),
    [(1000.0, True, "failed"), (1000.0, False, "warning"), (1.8e9, True, "ok")],
)
def test_a_clock_of_1970(now: float, tls: bool, status: str) -> None:
    finding = clock.judge(now, tls=tls)
    assert finding.status == status
    assert ("1970-01-01" in finding.found) is (now == 1000.0)


@pytest.mark.parametrize(
    ("version", "numpy", "tags", "status", "words"),
    [
        ((3, 12), "1.26.4", ["cp312"], "ok", "cp312"),
        ((3, 12), "2.1.0", ["cp312"], "failed", "NumPy 1"),
        ((3, 11), "1.26.4", ["cp312"], "failed", "built for cp312, this Python is cp311"),
        ((3, 12), "1.24.1", ["cp312"], "warning", "1.26.4"),
        ((3, 12), "1.26.4", None, "not_applicable", "onnxruntime-tidl"),
        ((3, 12), None, ["cp312"], "failed", "not installed"),
    ],
)
def test_python_and_numpy_against_the_wheels(
    version: tuple[int, int], numpy: str | None, tags: list[str] | None, status: str, words: str
) -> None:
    finding = python.judge(version, numpy, {"onnxruntime-tidl": tags})
    assert finding.status == status
    assert words in finding.found


@pytest.mark.parametrize(
    ("expected", "status"),
    [({0x20250821}, "ok"), ({0x20241120}, "failed"), (set(), "warning"), ({0x20241120, 0x20250821}, "ok")],
)
def test_the_network_is_held_against_what_the_firmware_holds(expected: set[int], status: str) -> None:
    finding = network_version.judge({"subgraph_0_tidl_net.bin": 0x20250821}, expected, "fw")
    assert finding.status == status


def test_constants_are_found_little_endian_and_at_any_offset() -> None:
    data = b"\x7fELF\x00" + bytes.fromhex("21082520") + b"\x20\x24\x11\x20"
    assert network_version.constants_in(data, {0x20250821, 0x20241120}) == {0x20250821}


@pytest.mark.parametrize(
    ("free", "room", "size", "memory", "status", "words"),
    [
        (400, 256, 100, 900, "ok", "a capture writes 100.0 MiB in 9 files"),
        (200, 256, 100, 900, "failed", "of the 256 MiB"),
        (300, 256, 310, 900, "failed", "310.0 MiB"),
        (400, 256, 100, 50, "failed", "50 MiB of RAM"),
        (900, 256, 300, 900, "warning", "more than `capture.room_mib`"),
        (450, 256, 250, 900, "warning", "less than twice"),
        (400, 256, None, 900, "ok", "not known"),
    ],
)
def test_room_for_a_capture(free: int, room: int, size: int | None, memory: int, status: str, words: str) -> None:
    expected = CaptureSize(size * MIB, 9, "netLog") if size is not None else None
    finding = trace_folder.judge("/tmp", "tmpfs", free * MIB, room * MIB, expected, memory * MIB)
    assert finding.status == status, finding
    assert words in finding.found


def test_the_size_of_a_real_compiles_capture() -> None:
    root = Path(os.environ.get("TIDEGAUGE_SAMPLES", Path(__file__).resolve().parents[4] / "shared" / "samples"))
    sample = root / "am62a-yolox-s-int16-tools-10_00_08"
    if not sample.is_dir():
        pytest.skip(f"the real samples are not at {root} (set TIDEGAUGE_SAMPLES)")
    level3 = capture_size.of(sample / "artifacts", sample / "none.tflite", 3)
    level4 = capture_size.of(sample / "artifacts", sample / "none.tflite", 4)
    assert level3 is not None
    assert level4 is not None
    assert level3.tensors == 120
    # 95.7 MB of 16-bit codes, and float32 where a tensor is float
    assert 95e6 < level3.bytes < 105e6
    assert 2.5 < level4.bytes / level3.bytes < 3.0


@pytest.mark.parametrize(
    ("free", "kind", "status"),
    [(900, "ext4", "ok"), (900, "tmpfs", "warning"), (500, "ext4", "warning"), (200, "ext4", "failed")],
)
def test_room_for_the_spool(free: int, kind: str, status: str) -> None:
    assert state_folder.judge("/var", kind, free * MIB, 256 * MIB, 512 * MIB).status == status


def test_a_spool_that_holds_not_one_bundle_fails() -> None:
    found = state_folder.judge("/var", "ext4", 900 * MIB, 256 * MIB, 100 * MIB, 101 * MIB)
    assert found.status == "failed"
    assert "101 MiB" in found.found
    assert "spool.max_mib" in found.cure
    assert state_folder.judge("/var", "ext4", 900 * MIB, 256 * MIB, 100 * MIB, 100 * MIB).status == "ok"


def test_the_agent_makes_its_state_folder_and_a_check_does_not(tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b"
    assert state_folder.nearest(wanted) == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_operators_on_the_cpu_are_named_with_their_cures_where_the_indices_are_the_models() -> None:
    groups = ((0, 1), (3,))
    finding = subgraphs.judge(groups, 4, ["Conv", "Relu", "Square", "Conv"])
    assert finding.status == "warning"
    assert "1 of 4 on the CPU (1 × Square)" in finding.found
    assert "Mul of the tensor with itself" in finding.cure
    renumbered = subgraphs.judge(groups, 4, ["Conv", "Relu", "Identity", "Square", "Conv"])
    assert "Identity" not in renumbered.found
    assert "tidegauge lint" in renumbered.cure


@pytest.mark.parametrize(
    ("refused", "answered", "told", "status"),
    [
        ([], True, True, "ok"),
        ([], False, True, "warning"),
        ([], False, False, "warning"),
        (["publish tidegauge/v1/cam-1/alarm"], False, True, "failed"),
    ],
)
def test_rights(refused: list[str], answered: bool, told: bool, status: str) -> None:
    finding = rights.judge("cam-1", refused, answered=answered, told=told)
    assert finding.status == status
    assert all(name in finding.found for name in refused)


def test_links_stay_inside_the_root_and_circles_end(tmp_path: Path) -> None:
    context = Context(root=str(tmp_path))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a").symlink_to("/lib/b")
    (tmp_path / "lib" / "b").write_text("here")
    assert context.real("/lib/a") == tmp_path / "lib" / "b"
    (tmp_path / "lib" / "b").unlink()
    (tmp_path / "lib" / "b").symlink_to("a")
    with pytest.raises(OSError, match="circle"):
        context.real("/lib/a")


@pytest.mark.parametrize(
    ("level", "compiled", "status", "cure"),
    [
        ("default", 40, "ok", ""),
        ("all", 40, "ok", ""),
        ("disabled", 57, "ok", ""),
        ("default", 57, "warning", 'graph_optimization = "disabled"'),
        ("disabled", 40, "warning", 'graph_optimization = "default"'),
        ("default", 44, "not_applicable", ""),
    ],
)
def test_the_optimisers_level_is_the_compiles(level: str, compiled: int, status: str, cure: str) -> None:
    finding = optimization.judge(level, compiled, plain=57, basic=40)
    assert (finding.status, cure in finding.cure) == (status, True)
    assert str(compiled) in finding.found


def test_nodes_are_counted_as_a_provider_sees_them(tmp_path: Path) -> None:
    """A batch normalisation goes into its convolution at the level `basic` already."""
    weights = {"w": np.ones((4, 3, 1, 1)), **{name: np.ones(4) for name in ("scale", "bias", "mean", "var")}}
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["c"]),
        onnx.helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["y"]),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [value("x", onnx.TensorProto.FLOAT, [1, 3, 8, 8])],
        [value("y", onnx.TensorProto.FLOAT, [1, 4, 8, 8])],
        [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    assert optimization.optimised_nodes(path) == 1
    path.write_bytes(path.read_bytes()[:40])
    assert optimization.optimised_nodes(path) is None
