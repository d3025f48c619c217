"""Lines of the remote log and of the TIDL libraries' stdout: what they say, and what cures it.

Source: app_log (`[%-6s] %s`, message mostly `%6d.%06u s: text`), tidl_rt_ovx.c, vx_tidl_target.c, app_fileio_server.c,
onnxrt_ep.cpp, SDK 11.1; onnxruntime_inference_collection.py of TI's ORT 1.15; excerpts of real logs.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

_LONGEST = 4096
_LINE = re.compile(r"(?:\[(?P<core>[A-Za-z0-9_]{1,16}) *\] )?(?P<text>.*)", re.DOTALL)
_TIME = re.compile(r" *(?P<seconds>\d{1,10}\.\d{6}) s: ?(?P<text>.*)", re.DOTALL | re.ASCII)
_NUMBER = r"(-?(?:\d{1,40}\.\d{5}|nan|inf))"
_SCALES = re.compile(rf" *(\d{{1,9}}) +{_NUMBER} +{_NUMBER} +{_NUMBER} +(\d{{1,3}}) *", re.ASCII)


class LogLine(msgspec.Struct, frozen=True):
    """`core`: "C7x_1", "MCU1_0", "MPU1_0"; None in a process's own output. `seconds`: since boot (GTC), or None."""

    core: str | None
    seconds: float | None
    text: str


class ScaleLine(msgspec.Struct, frozen=True):
    """What the C7x prints for each tensor that it dumps. Numbers as printed, five decimals; `element` a type's code."""

    data_id: int
    scale: str
    minimum: str
    maximum: str
    element: int


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
    C7X_MEMORY = (
        "c7x_memory",
        "close other TIDL sessions; if heap stays used after that it has leaked: reboot",
    )
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
    DMA = ("dma", "do not mix sessions of different priority on the C7x; reboot to clear it")
    SHARED_MEMORY = (
        "shared_memory",
        "run as root and keep ti/k3-am62a7-sk-edgeai.dtbo in name_overlays of the boot environment",
    )
    FIRMWARE_SILENT = ("firmware_silent", "the C7x firmware did not come up: see dmesg for remoteproc, then reboot")
    NO_ALLOWED_NODES = ("no_allowed_nodes", "put allowedNode.txt of the compile into the artifacts folder")
    CPU_FALLBACK = ("cpu_fallback", "check artifacts_folder and the provider options; the CPU ran the model")
    ARTIFACTS_FOLDER = ("artifacts_folder", "set the profile's artifacts to the folder that the compile wrote")
    INVOKE_FAILED = ("invoke_failed", "read the remote log around this time; close the session and open it again once")
    LAYER_NAME = ("layer_name", "correct the name in the 16-bit or deny list: the option was silently not applied")
    CORE_ERROR = ("core_error", "look the error type up in TI's docs/tidlrt.md; keep the log for TI support")
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
        (r"Config file size .* does not match size of sTIDL_IOBufDesc_t", LogCause.DESCRIPTOR_SIZE),
        (r"Network version - 0x[0-9A-Fa-f]+, Expected version - 0x", LogCause.NETWORK_VERSION),
        (r"Version compatibility check failed", LogCause.NETWORK_VERSION),
        (r"Failed to Allocate memory record|tivxAlgiVisionAllocMem Failed", LogCause.C7X_MEMORY),
        (r"In sufficient Memory to write Traces", LogCause.TRACE_MEMORY),
        (r"FOPEN : Could not open file|Fwrite error - count|FWRITE : File not open", LogCause.TRACE_FILE),
        (r"TIDL_initDmaUtils returned Error Code", LogCause.DMA),
        (r"Unable to map memory @|DMA.?HEAP.*[Ff]ail", LogCause.SHARED_MEMORY),
        (r"Unable to create TX channels for CPU \[c7x_1\]", LogCause.FIRMWARE_SILENT),
        (r"Entire model will run on ARM without any delegation", LogCause.NO_ALLOWED_NODES),
        (r"EP Error .* when using |Falling back to \[", LogCause.CPU_FALLBACK),
        (r"artifacts_folder not a directory|artifacts_folder must be provided", LogCause.ARTIFACTS_FOLDER),
        (r"TIDL Compute Invoke Failed", LogCause.INVOKE_FAILED),
        (r"TIVX_CMD_NODE_CREATE failed|Graph verify failed|Verify OpenVX graph failed", LogCause.CREATE_FAILED),
        (
            r"Create state function failed|algInit failed with status|Map of config object failed",
            LogCause.CREATE_FAILED,
        ),
        (r"Invalid Layer Name", LogCause.LAYER_NAME),
        (r"Error type .* in .* occurred\. File:", LogCause.CORE_ERROR),
        # "VX_ZONE_ERROR:Enabled" is printed at every good start.
        (r"VX_ZONE_ERROR: *(?!Enabled)\S", LogCause.OPENVX_ERROR),
        (r"TIDL_RT_OVX: ERROR:", LogCause.OPENVX_ERROR),
    )
)


def parse(line: str) -> LogLine:
    """Core, time and text of a line, each where present. Any text is a line; a longer one than 4096 is cut."""
    whole = line[:_LONGEST].rstrip("\r\n")
    match = _LINE.fullmatch(whole)
    core, text = (match["core"], match["text"]) if match else (None, whole)
    timed = _TIME.fullmatch(text)
    if timed is None:
        return LogLine(core, None, text)
    return LogLine(core, float(timed["seconds"]), timed["text"])


def cause(text: str) -> LogCause | None:
    """The fault that a line names, None where it names none."""
    text = text[:_LONGEST]
    return next((known for pattern, known in _CAUSES if pattern.search(text)), None)


def scale_line(text: str) -> ScaleLine | None:
    """A tensor's scale line (its text, without core and time); None for every other line."""
    match = _SCALES.fullmatch(text[:_LONGEST])
    if match is None:
        return None
    return ScaleLine(int(match[1]), match[2], match[3], match[4], int(match[5]))
