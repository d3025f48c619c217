"""The faults that lines of TIDL's logs name, each with its cure; the start-up lines, and how far a run has come.

Source: tidl_rt_ovx.c, vx_tidl_target.c, app_fileio_server.c, app_ipc_linux.c, onnxrt_ep.cpp, tfl_delegate.cpp (11.1);
onnxruntime_inference_collection.py of TI's ORT 1.15; release notes of SDK 11.1; public issue threads; real logs.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Literal

import msgspec

#: A longer line is judged by its beginning.
LONGEST = 4096


class LogCause(Enum):
    """Faults that a line names: (metric word, cure)."""

    DESCRIPTOR_SIZE = (
        "descriptor_size",
        "compile with the tools release of the board's SDK (docs: SDK version compatibility), or update the board's"
        " TIDL libraries and firmware together",
    )
    NETWORK_VERSION = (
        "network_version",
        "compile again with advanced_options:c7x_firmware_version set to the board's firmware",
    )
    C7X_MEMORY = ("c7x_memory", "close other TIDL sessions; if heap stays used after that it has leaked: reboot")
    TRACE_MEMORY = (
        "trace_memory",
        "this tensor's trace is missing; take the capture without other sessions on the C7x",
    )
    CREATE_FAILED = (
        "create_failed",
        "look at the lines before for the reason (version, memory, layer); do not retry in a loop, each try leaks",
    )
    TRACE_FILE = (
        "trace_file",
        "free room in /tmp or make it writable: the C7x waits until the file server can write; never restart that"
        " server during a capture",
    )
    TRACE_SETUP = ("trace_setup", "this firmware can't dump traces: update it, or open the session with debug_level 0")
    DMA = ("dma", "do not mix sessions of different priority on the C7x; reboot to clear it")
    SHARED_MEMORY = (
        "shared_memory",
        "run as root and keep ti/k3-am62a7-sk-edgeai.dtbo in name_overlays of the boot environment",
    )
    FIRMWARE_SILENT = ("firmware_silent", "the C7x firmware did not come up: see dmesg for remoteproc, then reboot")
    FIRMWARE_CRASHED = ("firmware_crashed", "the C7x crashed: keep dmesg and the remote log, then reboot the board")
    NO_ALLOWED_NODES = ("no_allowed_nodes", "put allowedNode.txt of the compile into the artifacts folder")
    CPU_FALLBACK = ("cpu_fallback", "check artifacts_folder and the provider options; the CPU ran the model")
    STOCK_RUNTIME = ("stock_runtime", "install TI's onnxruntime_tidl wheel of the board's SDK, not pip's onnxruntime")
    LIBRARY_MISSING = ("library_missing", "install the board's TIDL libraries of the SDK (target libraries, /usr/lib)")
    NUMPY_ABI = ("numpy_abi", "install numpy 1.26.4: TI's wheels are built for NumPy 1")
    ARTIFACTS_FOLDER = ("artifacts_folder", "set the profile's artifacts to the folder that the compile wrote")
    ARTIFACT_MISSING = ("artifact_missing", "copy the whole artifacts folder of the compile to the board again")
    PRIORITY = ("priority", "set the option priority to a number from 0 to 7")
    MODEL = ("model", "give the model file that was compiled, with an opset that this runtime reads")
    DELEGATE_FAILED = ("delegate_failed", "read the lines before; the interpreter would answer with zeros")
    INVOKE_FAILED = ("invoke_failed", "read the remote log around this time; close the session and open it again once")
    SESSION_THREADS = ("session_threads", "open sessions one after another from one thread (cured in SDK 11.1)")
    SUSPENDED = ("suspended", "open every session again after a resume: TIDL's context does not survive a suspend")
    LAYER_NAME = ("layer_name", "correct the name in the 16-bit or deny list: the option was silently not applied")
    UNSUPPORTED_LAYER = ("unsupported_layer", "replace the layer, or accept that the CPU runs it (more sub-graphs)")
    DATA_CONVERT = ("data_convert", "no harm to the answers: the CPU converts this output, which costs time")
    DISK_FULL = ("disk_full", "free room on the file system; a full /tmp hangs the C7x at debug_level 3 and more")
    SHM_FULL = ("shm_full", "on a PC give the emulation a larger /dev/shm (docker: --shm-size=4g)")
    HOST_MEMORY = ("host_memory", "the kernel ended a process for want of memory: end what is not needed")
    PROCESS_CRASHED = ("process_crashed", "keep the worker's log; what the process held on the C7x leaks until reboot")
    COMMAND_FAILED = ("command_failed", "the C7x refused a command: read its remote log at this time for the reason")
    CORE_ERROR = ("core_error", "look the error type up in TI's docs/tidlrt.md; keep the log for TI support")
    CONSEQUENCE = ("consequence", "the line before names the fault; this one only follows from it")
    OPENVX_ERROR = ("openvx_error", "read the remote log around this time")

    @property
    def word(self) -> str:
        return self.value[0]

    @property
    def cure(self) -> str:
        return self.value[1]


# In order: the first that fits is the most exact.
_CAUSES: tuple[tuple[re.Pattern[str], LogCause], ...] = tuple(
    (re.compile(pattern), cause)
    for pattern, cause in (
        (r"Config file size .{0,200} does not match size of sTIDL_IOBufDesc_t", LogCause.DESCRIPTOR_SIZE),
        (r"Network version - 0x[0-9A-Fa-f]+, Expected version - 0x", LogCause.NETWORK_VERSION),
        (r"Version compatibility check failed", LogCause.NETWORK_VERSION),
        (r"Failed to Allocate memory record|tivxAlgiVisionAllocMem Failed", LogCause.C7X_MEMORY),
        (r"In sufficient Memory to write Traces", LogCause.TRACE_MEMORY),
        (r"FOPEN : Could not open file|Fwrite error - count|FWRITE : File not open", LogCause.TRACE_FILE),
        (r"TIDL_initDebugTraceParams", LogCause.TRACE_SETUP),
        (r"TIDL_initDmaUtils returned Error Code", LogCause.DMA),
        (r"Unable to map memory @|DMA.?HEAP.*[Ff]ail|MEM: ERROR", LogCause.SHARED_MEMORY),
        (r"Unable to create TX channels for CPU|IPC: ERROR", LogCause.FIRMWARE_SILENT),
        (r"remoteproc\d* ?:? .{0,80}(?:request_firmware failed|[Bb]oot failed)", LogCause.FIRMWARE_SILENT),
        (r"remoteproc.{0,40}crash detected in|remoteproc.{0,40}handling crash", LogCause.FIRMWARE_CRASHED),
        (r"Entire model will run on ARM without any delegation", LogCause.NO_ALLOWED_NODES),
        (
            r"provider 'TIDL\w+Provider' is not in available provider|Unknown Provider Type: TIDL",
            LogCause.STOCK_RUNTIME,
        ),
        (r"EP Error:? .{0,2000}? using |Falling back to \[", LogCause.CPU_FALLBACK),
        (r"cannot open shared object file", LogCause.LIBRARY_MISSING),
        (r"compiled using NumPy 1|module compiled against (?:A[BP]I|api) version", LogCause.NUMPY_ABI),
        (r"numpy\S* failed to import|_ARRAY_API not found", LogCause.NUMPY_ABI),
        (r"artifacts_folder not a directory|artifacts_folder must be provided", LogCause.ARTIFACTS_FOLDER),
        (r"(?:Could not|Unable to|Failed to) open .{0,400}_tidl_(?:net|io\w*)\.bin", LogCause.ARTIFACT_MISSING),
        (r"Please provide priority betwe", LogCause.PRIORITY),
        (r"Load model from .* failed|Unsupported model IR version|Could not open '.*\.tflite'", LogCause.MODEL),
        (r"Failed to apply delegate|\(TIDLDelegate\) failed to (?:prepare|invoke)", LogCause.DELEGATE_FAILED),
        (r"TIDL Compute Invoke Failed", LogCause.INVOKE_FAILED),
        (r"RPROC_DMABUF_ATTACH", LogCause.SESSION_THREADS),
        (r"context for VPAC and TIDL is not saved", LogCause.SUSPENDED),
        (r"TIVX_CMD_NODE_CREATE failed|Graph verify failed|Verify OpenVX graph failed", LogCause.CREATE_FAILED),
        (r"kernel init for node .* failed", LogCause.CREATE_FAILED),
        (
            r"Create state function failed|algInit failed with status|Map of config object failed",
            LogCause.CREATE_FAILED,
        ),
        (r"Invalid Layer Name", LogCause.LAYER_NAME),
        (r"\] UNSUPPORTED: |not supported by TIDL", LogCause.UNSUPPORTED_LAYER),
        (r"output data convert layer is not added", LogCause.DATA_CONVERT),
        (r"No space left on device", LogCause.DISK_FULL),
        (r"Bus error", LogCause.SHM_FULL),
        (r"Out of memory: Killed process|oom-kill:", LogCause.HOST_MEMORY),
        (r"Segmentation fault|terminate called |double free or corruption|^Aborted\b", LogCause.PROCESS_CRASHED),
        (r"Assertion .{0,400} failed", LogCause.PROCESS_CRASHED),
        (r"Error type .* in .* occurred\. File:", LogCause.CORE_ERROR),
        (r"invalid values for num_input_tensors|Invalid user data object reference", LogCause.CONSEQUENCE),
        (r"please ensure no errors are occurring within the create callback", LogCause.CONSEQUENCE),
        (r"cmd_status: -\d", LogCause.COMMAND_FAILED),
        # "VX_ZONE_ERROR:Enabled" is printed at every good start.
        (r"VX_ZONE_ERROR: *(?!Enabled)\S", LogCause.OPENVX_ERROR),
        (r"TIDL_RT_OVX: ERROR:", LogCause.OPENVX_ERROR),
    )
)


def cause(text: str) -> LogCause | None:
    """The fault that a line names, None where it names none."""
    text = text[:LONGEST]
    return next((known for pattern, known in _CAUSES if pattern.search(text)), None)


class Milestone(Enum):
    """Lines of a good start, in the order in which they come; the last one seen tells where a start has stopped."""

    LIBRARY_LOADED = r"libtidl_onnxrt_EP loaded 0x"
    DELEGATE_PREPARE = r"\*+ In DelegatePrepare \*+"
    SUBGRAPHS_TOLD = r"number of subgraphs created are :|Number of subgraphs:"
    DELEGATE_INIT = r"\*+ In tidlDelegate::Init \*+"
    SUBGRAPH_CREATE = r"\*+ in TIDL_subgraphRtCreate \*+"
    INIT_BEGUN = r"APP: Init \.\.\. !!!"
    MEMORY_READY = r"MEM: Init \.\.\. Done !!!"
    IPC_READY = r"IPC: Init \.\.\. Done !!!"
    APP_READY = r"APP: Init \.\.\. Done !!!"
    HOST_READY = r"Initialization Done for HOST !!!"


_MILESTONES = tuple((re.compile(stone.value), stone) for stone in Milestone)
_OFFLOADED = re.compile(r"created are : ?(\d{1,6}), - Offloaded Nodes - (\d{1,9}), Total Nodes - (\d{1,9})", re.ASCII)
_DELEGATED = re.compile(
    r"Number of subgraphs: ?(\d{1,6}) ?, (\d{1,9}) nodes delegated out of (\d{1,9}) nodes", re.ASCII
)


def milestone(text: str) -> Milestone | None:
    """The step of a good start that a line tells of; None for every other line."""
    text = text[:LONGEST]
    return next((stone for pattern, stone in _MILESTONES if pattern.search(text)), None)


class OffloadCount(msgspec.Struct, frozen=True):
    """What a runtime prints when it has divided the model; `nodes` of `total` run on the accelerator."""

    subgraphs: int
    nodes: int
    total: int


def offload_count(text: str) -> OffloadCount | None:
    """The division that a line tells (ONNX Runtime's or TFLite's wording); None for every other line."""
    match = _OFFLOADED.search(text[:LONGEST]) or _DELEGATED.search(text[:LONGEST])
    return None if match is None else OffloadCount(int(match[1]), int(match[2]), int(match[3]))


Phase = Literal["alloc", "init", "start", "process", "end"]
_PROGRESS = re.compile(
    r"(Alg Alloc for|Alg Init for|Starting|Processing|End of) Layer # - +(\d{1,6})(?: out of +(\d{1,6}))?", re.ASCII
)
_PHASES: dict[str, Phase] = {
    "Alg Alloc for": "alloc",
    "Alg Init for": "init",
    "Starting": "start",
    "Processing": "process",
    "End of": "end",
}


class Progress(msgspec.Struct, frozen=True):
    """How far the C7x has come (debug_level 2 and more). `layer`: the first column of layer_info; `of`: how many."""

    phase: Phase
    layer: int
    of: int | None


def progress(text: str) -> Progress | None:
    """The layer that a line tells of; None for every other line."""
    match = _PROGRESS.search(text[:LONGEST])
    if match is None:
        return None
    return Progress(_PHASES[match[1]], int(match[2]), int(match[3]) if match[3] else None)
