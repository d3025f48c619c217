"""The ways in which a board fails, each switched on by name in `board.json`, alone or with others.

Wrong numbers of one layer are faults (`faults.py`); here is what the whole stack does: processes that die or wait for
ever, sessions that lie, dumps that never end, memory that doesn't come back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from tidegauge.errors import TidegaugeError

FailureName = Literal[
    "cpu_fallback",
    "no_delegation",
    "zeros_after_failed_create",
    "create_fails",
    "exit_in_create",
    "abort_missing_library",
    "hang_in_create",
    "hang_in_run",
    "unkillable",
    "invoke_fails",
    "no_shared_memory",
    "size_mismatch",
    "version_mismatch",
    "out_of_heap",
    "semaphore_held",
    "slow",
    "no_log_server",
    "server_restarted",
    "trace_folder_full",
    "slow_dump",
    "stale_traces",
    "trace_leak",
    "traces_change_result",
    "trace_too_large",
]
FAILURE_NAMES: tuple[FailureName, ...] = get_args(FailureName)


class Mode(msgspec.Struct, frozen=True):
    """A failure mode for people: what it does, `amount` in words with its default (None: it takes none), its source."""

    does: str
    amount: str | None
    default: float
    source: str
    low: float = 0.0


MODES: dict[FailureName, Mode] = {
    "cpu_fallback": Mode(
        "ONNX Runtime can't construct the TIDL provider, says so on stdout, and returns a session of the CPU",
        None,
        0,
        "onnxruntime_inference_collection.py of TI's ORT 1.15",
    ),
    "no_delegation": Mode(
        "allowedNode.txt can't be opened: the session names the TIDL provider, and the CPU computes",
        None,
        0,
        "onnxrt_ep.cpp, SDK 11.1; edgeai-tidl-tools issues 30 and 55",
    ),
    "zeros_after_failed_create": Mode(
        "the create fails in the log only; every output is 0, benchmark keys are there",
        None,
        0,
        "tfl_delegate.cpp, SDK 11.1 (Init ignores the status); edgeai-tidl-tools issue 101",
    ),
    "create_fails": Mode(
        "the C7x refuses the network after it has allocated memory, which leaks; an exception that is no RuntimeError",
        "creates that fail until one succeeds; 0: all",
        0,
        "tivx_alg_vision.c, SDK 11.1 (no free on the error path); func_kernel.h of ORT",
    ),
    "exit_in_create": Mode(
        "the library ends the process", "exit code", 255, "tfl_delegate.cpp, SDK 11.1: exit(-1) on a bad folder"
    ),
    "abort_missing_library": Mode(
        "an assertion ends the process with SIGABRT", None, 0, "tidl_execution_provider.cc of TI's ORT 1.15"
    ),
    "hang_in_create": Mode(
        "the create never returns, and from then on the C7x answers nobody",
        "only networks with a tensor of so many bits or more",
        16,
        "vx_tidl_target.c, SDK 11.1 (create runs with interrupts disabled); a 16-bit low-light enhancer on AM62A",
        8,
    ),
    "hang_in_run": Mode(
        "a run never returns, and from then on the C7x answers nobody",
        "runs of a session that still succeed",
        0,
        "tiovx vx_kernel.h: TIVX_DEFAULT_KERNEL_TIMEOUT is VX_TIMEOUT_WAIT_FOREVER",
    ),
    "unkillable": Mode(
        "a run never returns, the C7x answers nobody, and SIGKILL doesn't end the process (state D) until the reboot; "
        "it takes root and the cgroup freezer of version 1",
        "runs of a session that still succeed",
        0,
        "the kernel: a process that sleeps in a driver without a way out takes no signal",
    ),
    "invoke_fails": Mode(
        "a run ends with `TIDL Compute Invoke Failed.`, an exception that is no RuntimeError",
        "runs of a session that still succeed",
        0,
        "tidl_execution_provider.cc:611 of TI's ORT 1.15",
    ),
    "no_shared_memory": Mode(
        "the carve-outs are missing or the process isn't root: memory can't be mapped, the create fails",
        None,
        0,
        "AM62A FAQ of Processor SDK 11.1 (overlay left out of name_overlays)",
    ),
    "size_mismatch": Mode(
        "the runtime is of another release than the artifacts: the descriptor has the wrong size",
        "bytes that the runtime wants",
        93976,
        "tidl_rt_ovx.c, SDK 11.1; edgeai-tidl-tools issue 66",
        1,
    ),
    "version_mismatch": Mode(
        "the firmware is of another release than the network",
        "version word that the firmware wants",
        0x20241120,
        "vx_tidl_target.c:1104, SDK 11.1",
        1,
    ),
    "out_of_heap": Mode(
        "each failed create leaks so much that no create succeeds after a few, whatever else was cured, until reboot",
        "failed creates until the C7x's heap is gone",
        3,
        "tivx_alg_vision.c:289-370, SDK 11.1",
        1,
    ),
    "semaphore_held": Mode(
        "a killed process has left /tiovxsem taken: creates and runs of all others wait for ever, until reboot",
        None,
        0,
        "tivx_platform_hlos.c, SDK 11.1",
    ),
    "slow": Mode("each run takes longer", "times as long", 10, "priority inversion, throttling, DDR load", 1),
    "no_log_server": Mode(
        "the remote-log server lives but doesn't serve the C7x: a dump never ends",
        None,
        0,
        "app_fileio_core.c, SDK 11.1 (spins without a time-out)",
    ),
    "server_restarted": Mode(
        "the server forgets its open files in mid-dump: `FWRITE : File not open` for ever",
        "files that are still written",
        2,
        "app_fileio_server.c, SDK 11.1",
    ),
    "trace_folder_full": Mode(
        "the trace folder has no more room: the write is tried again for ever, until there is room",
        "bytes of traces that fit",
        0,
        "app_fileio_server.c, SDK 11.1 (an error never clears the flag)",
    ),
    "slow_dump": Mode(
        "each file operation of a dump takes its time", "seconds an operation", 0.01, "app_fileio_server.c, SDK 11.1"
    ),
    "stale_traces": Mode(
        "the first create finds the trace folder full of an earlier run's traces, under the same names",
        "files",
        50,
        "names are the same for every frame and run: TIDL's debug trace, SDK 11.1",
        1,
    ),
    "trace_leak": Mode(
        "a create without tracing leaves the C7x's trace globals as the session before set them",
        None,
        0,
        "TIDL_initDebugTraceParams (derived from source, not seen on a board)",
    ),
    "traces_change_result": Mode(
        "while traces are dumped, a share of all codes is one off",
        "share of the codes",
        0.05,
        "none known: a check of the comparison between a traced and a plain run",
    ),
    "trace_too_large": Mode(
        "the C7x has too little scratch memory for a large trace: the log says so, the file is missing",
        "bytes that fit",
        16384,
        "TIDL's debug trace: `In sufficient Memory to write Traces`",
    ),
}


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One failure mode that is switched on. `amount`: see `MODES`; None is the mode's default."""

    name: FailureName
    amount: float | None = None

    @property
    def strength(self) -> float:
        return MODES[self.name].default if self.amount is None else self.amount


def parse(text: str) -> Failure:
    """`NAME[:AMOUNT]`, the amount a number, also hexadecimal. Raises `TidegaugeError`."""
    word, colon, tail = text.partition(":")
    name = next((known for known in FAILURE_NAMES if known == word), None)
    if name is None:
        raise TidegaugeError(f"there is no failure {word!r}", f"use one of {', '.join(FAILURE_NAMES)}")
    if not colon:
        return Failure(name)
    mode = MODES[name]
    if mode.amount is None:
        raise TidegaugeError(f"the failure {name} takes no amount, but {tail!r} is given", f"write {name} alone")
    try:
        amount = float(int(tail, 16)) if tail.lower().startswith("0x") else float(tail)
    except ValueError as error:
        raise TidegaugeError(f"{tail!r} in {text!r} is not a number", f"give {mode.amount}") from error
    if not mode.low <= amount < float("inf"):
        raise TidegaugeError(f"{text!r} is out of range", f"give {mode.amount}, {mode.low:g} or more")
    return Failure(name, amount)


def find(failures: Iterable[Failure], name: FailureName) -> float | None:
    """The strength of a failure that is switched on, else None. Of two of one name the last counts."""
    strengths = [failure.strength for failure in failures if failure.name == name]
    return strengths[-1] if strengths else None
