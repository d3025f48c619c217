from __future__ import annotations

from pathlib import Path

import pytest

from tidegauge.tidl.log_causes import Milestone, OffloadCount, Progress, milestone, offload_count, progress
from tidegauge.tidl.offload import NotOffloaded, fallback_told, prove_onnx, prove_tflite
from tidegauge.tidl.remote_log import LogCause, LogLine, cause, parse


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[C7x_1 ]      4.751024 s: APP: Init ... !!!\r\n", LogLine("C7x_1", 4.751024, "APP: Init ... !!!")),
        ("[MCU1_0]      4.000001 s:  VX_ZONE_INIT:Enabled", LogLine("MCU1_0", 4.000001, " VX_ZONE_INIT:Enabled")),
        ("877117.684797 s: GTC Frequency = 200 MHz", LogLine(None, 877117.684797, "GTC Frequency = 200 MHz")),
        ("MEM: Init ... !!!", LogLine(None, None, "MEM: Init ... !!!")),
        ("[C7x_1 ] no time", LogLine("C7x_1", None, "no time")),
        ("", LogLine(None, None, "")),
    ],
)
def test_core_time_and_text(line: str, expected: LogLine) -> None:
    assert parse(line) == expected


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("bbai64_size_and_version_mismatch.txt", [LogCause.DESCRIPTOR_SIZE, *[LogCause.CREATE_FAILED] * 2]),
        ("issue101_node_create_failed.txt", [LogCause.CREATE_FAILED]),
        ("issue66_am62a_tflite_size_mismatch.txt", [LogCause.DESCRIPTOR_SIZE]),
        ("gstplugins216_onnx_start.txt", []),
        ("remote_log_c7x_tidl_perf.txt", []),
        ("remote_log_j721s2_c7x1.txt", []),
    ],
)
def test_causes_in_real_logs(samples: Path, file: str, expected: list[LogCause]) -> None:
    lines = (samples / "logs" / file).read_text(errors="replace").splitlines()
    found = [known for line in lines if (known := cause(parse(line).text))]
    assert found[: len(expected)] == expected
    assert bool(found) is bool(expected), "a good start must name no fault"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Network version - 0x20240719, Expected version - 0x20250821", LogCause.NETWORK_VERSION),
        ("Failed to Allocate memory record 5 @ space = 17 and size = 99 !!!", LogCause.C7X_MEMORY),
        ("FOPEN : Could not open file /tmp/C7x_1_tidl_trace.y", LogCause.TRACE_FILE),
        ("EP Error boom when using ['TIDLExecutionProvider']", LogCause.CPU_FALLBACK),
        ("Could not open a. Entire model will run on ARM without any delegation to TIDL !", LogCause.NO_ALLOWED_NODES),
        ("APP_LOG: ERROR: Unable to map memory @ 0xa2000000 of size 3288576 bytes !!!", LogCause.SHARED_MEMORY),
        ("Invalid Layer Name  /multi_level_conv_obj.2/Conv_output_0", LogCause.LAYER_NAME),
        ("VX_ZONE_ERROR:Enabled", None),
        ("VX_ZONE_ERROR:[vxMapUserDataObject:476] Invalid user data object reference", LogCause.CONSEQUENCE),
        (
            "VX_ZONE_ERROR:[ownContextSendCmd:1001] Command ack message returned failure cmd_status: -1",
            LogCause.COMMAND_FAILED,
        ),
        ("VX_ZONE_ERROR:[tivxObjDescAlloc:1] no more", LogCause.OPENVX_ERROR),
        ("[PARSER] WARNING: Requested output data convert layer is not added to the network", LogCause.DATA_CONVERT),
        (
            "UserWarning: Specified provider 'TIDLExecutionProvider' is not in available provider names.",
            LogCause.STOCK_RUNTIME,
        ),
        ("libtidl_onnxrt_EP.so: cannot open shared object file: No such file or directory", LogCause.LIBRARY_MISSING),
        ("A module that was compiled using NumPy 1.x cannot be run in NumPy 2.4.6", LogCause.NUMPY_ABI),
        ("ERROR : Please provide priority betweeen 0-7 ... exiting", LogCause.PRIORITY),
        ("ERROR : artifacts_folder not a directory", LogCause.ARTIFACTS_FOLDER),
        ("Could not open /opt/m/subgraph_0_tidl_net.bin for reading", LogCause.ARTIFACT_MISSING),
        ("RuntimeError: Node number 3 (TIDLDelegate) failed to prepare.", LogCause.DELEGATE_FAILED),
        ("RPROC_DMABUF_ATTACH ioctl failed", LogCause.SESSION_THREADS),
        ("remoteproc remoteproc0: crash detected in 7e000000.dsp: type watchdog", LogCause.FIRMWARE_CRASHED),
        ("IPC: ERROR: Unable to create TX channels for CPU [c7x_1] !!!", LogCause.FIRMWARE_SILENT),
        ("write: No space left on device", LogCause.DISK_FULL),
        ("Bus error (core dumped)", LogCause.SHM_FULL),
        ("Out of memory: Killed process 812 (python3)", LogCause.HOST_MEMORY),
        ("python3: tidl_execution_provider.cc:68: TidlEP(): Assertion `h != 0' failed.", LogCause.PROCESS_CRASHED),
        ("TIDL Compute Invoke Failed.", LogCause.INVOKE_FAILED),
        ("In sufficient Memory to write Traces, requested size is : 9, allocated size : 4", LogCause.TRACE_MEMORY),
        ("TIDL_initDmaUtils returned Error Code for handle: 3", LogCause.DMA),
        ("Error type *2* in *x* occurred. File: *a.c* Line: *3*", LogCause.CORE_ERROR),
        ("remoteproc remoteproc0: remote processor 7e000000.dsp is now up", None),
        ("APP: Init ... Done !!!", None),
    ],
)
def test_causes(text: str, expected: LogCause | None) -> None:
    assert cause(text) is expected


def test_how_far_a_start_came(samples: Path) -> None:
    lines = (samples / "logs/gstplugins216_onnx_start.txt").read_text().splitlines()
    stones = [stone for line in lines if (stone := milestone(parse(line).text))]
    assert (stones[0], stones[-1]) == (Milestone.LIBRARY_LOADED, Milestone.HOST_READY)
    order = list(Milestone)
    assert stones == sorted(stones, key=order.index)
    assert offload_count(lines[1]) == OffloadCount(1, 289, 289)
    issue = (samples / "logs/issue66_am62a_tflite_size_mismatch.txt").read_text().splitlines()
    assert next(count for line in issue if (count := offload_count(line))) == OffloadCount(2, 31, 38)
    assert offload_count("nothing") is None


def test_the_layer_at_which_the_c7x_is(samples: Path) -> None:
    lines = (samples / "logs/remote_log_c7x_tidl_perf.txt").read_text().splitlines()
    seen = [told for line in lines if (told := progress(parse(line).text))]
    assert seen == [
        Progress("alloc", 0, None),
        Progress("init", 2, 32),
        Progress("start", 1, None),
        Progress("process", 1, None),
        Progress("end", 1, None),
    ]


def test_every_cause_has_a_word_and_a_cure() -> None:
    assert len({known.word for known in LogCause}) == len(LogCause)
    assert all(known.cure for known in LogCause)


STAMPS = {
    "ts:run_start": 100,
    "ts:run_end": 900,
    "ts:subgraph_subgraph_0_copy_in_start": 110,
    "ts:subgraph_subgraph_0_proc_start": 200,
    "ts:subgraph_subgraph_0_proc_end": 800,
}
PROVIDERS = ["TIDLExecutionProvider", "CPUExecutionProvider"]


def test_a_proven_offload() -> None:
    proof = prove_onnx(PROVIDERS, STAMPS, virtual=True)
    assert (proof.provider, proof.subgraphs, proof.nodes, proof.virtual) == (PROVIDERS[0], ("subgraph_0",), -1, True)
    proof = prove_tflite(["DELEGATE", "SOFTMAX", "DELEGATE"], STAMPS)
    assert (proof.subgraphs, proof.nodes, proof.virtual) == (("subgraph_0",), 2, False)


@pytest.mark.parametrize(
    ("providers", "stamps"),
    [
        (["CPUExecutionProvider"], STAMPS),
        (list(reversed(PROVIDERS)), STAMPS),
        ([], STAMPS),
        (PROVIDERS, {}),
        (PROVIDERS, {key: value for key, value in STAMPS.items() if "subgraph" not in key}),
        (PROVIDERS, STAMPS | {"ts:subgraph_subgraph_0_proc_end": 200}),
        (PROVIDERS, STAMPS | {"ts:subgraph_subgraph_0_proc_start": 0}),
        (PROVIDERS, dict.fromkeys(STAMPS, 0)),
    ],
)
def test_no_proof_no_offload(providers: list[str], stamps: dict[str, int]) -> None:
    with pytest.raises(NotOffloaded):
        prove_onnx(providers, stamps)


def test_a_delegate_without_work_is_no_offload() -> None:
    with pytest.raises(NotOffloaded, match="DELEGATE"):
        prove_tflite(["CONV_2D"], STAMPS)
    with pytest.raises(NotOffloaded, match="processing"):
        prove_tflite(["DELEGATE"], {"ts:run_start": 1})


def test_what_onnx_runtime_prints_when_it_leaves_tidl() -> None:
    words = (
        "*** EP Error ***\nEP Error TIDL_populateOptions failed when using ['TIDL']\n"
        "Falling back to ['CPU'] and retrying.\n"
    )
    assert fallback_told(words) == "EP Error TIDL_populateOptions failed when using ['TIDL']"
    assert fallback_told("Falling back to ['CPU'] and retrying.") == "it gives no reason"
    assert fallback_told("EP Error x\n") is None
    assert fallback_told("") is None
    assert cause("EP Error: boom using ['TIDLExecutionProvider']") is LogCause.CPU_FALLBACK
