"""The create of one TIDL sub-graph on the virtual C7x, step by step, each with its way to fail.

Sources: tidl_rt_ovx.c, vx_tidl_target.c, tivx_alg_vision.c, SDK 11.1; logs of real failures.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from tidegauge.tidl import io_descriptor
from tidegauge.virtualboard import core, freezer, remote_log, tracing
from tidegauge.virtualboard.core import CoreState, Held
from tidegauge.virtualboard.network import TwinNetwork, load
from tidegauge.virtualboard.state import BoardState, BoardWatch, update, update_core
from tidegauge.virtualboard.waiting import say, wait_for_ever

_STALE = b"\xa5"
_MOST_STALE_BYTES = 1 << 16


@dataclass(frozen=True)
class Created:
    """A sub-graph on the C7x. `number`: of the session in `core.json`, None on the host. `zeros`: the create failed,
    nobody noticed, and every output will be 0."""

    network: TwinNetwork
    subgraph: str
    number: int | None
    zeros: bool = False


def die_early(state: BoardState) -> None:
    """The failures of loading ONNX Runtime's library, before any session exists."""
    if state.failing("abort_missing_library") is not None:
        os.write(
            2,
            b"libtidl_onnxrt_EP.so: cannot open shared object file: No such file or directory\n"
            b"python3: tidl_execution_provider.cc:70: Assertion `libtidl_onnxrt_EP_handle != nullptr' failed.\n",
        )
        os.abort()
    exit_early(state)


def exit_early(state: BoardState) -> None:
    """The library ends the process."""
    code = state.failing("exit_in_create")
    if code is not None:
        say("ERROR : artifacts_folder not a directory")
        os._exit(int(code))


def wait_while_blocked(watch: BoardWatch) -> None:
    """Never returns while a dead process holds the semaphore, or the C7x hangs."""
    if watch.current().failing("semaphore_held") is not None or watch.core().hung:
        wait_for_ever()


def hang(folder: Path, where: str, unkillable: bool = False) -> NoReturn:
    """The C7x stops: this call and every later one of any process never return."""
    update_core(folder, lambda now: msgspec.structs.replace(now, hung=where))
    if unkillable:
        freezer.freeze_self(folder)
    wait_for_ever()


def create(watch: BoardWatch, artifacts: Path, subgraph: str, level: int) -> Created:
    """Create one sub-graph. Raises `Fail` as ONNX Runtime does where TIDL's create fails."""
    folder, state = watch.folder, watch.current()
    wait_while_blocked(watch)
    zeros = state.failing("zeros_after_failed_create") is not None
    try:
        if state.failing("no_shared_memory") is not None:
            say("APP_LOG: ERROR: Unable to map memory @ 0xa2000000 of size 3288576 bytes !!!")
            raise _failed()
        _check_descriptor(artifacts, subgraph, state)
        _check_version(artifacts, subgraph, folder, state)
        network = load(artifacts / f"{subgraph}_tidl_net.bin")
        if state.target == "host":
            return Created(network, subgraph, None)
        if all(layer.quant.is_float for layer in network.tensors()):
            _node_create_failed(folder, "float networks (tensor_bits=32) run in host emulation only")
        if zeros:
            _node_create_failed(folder, "Calling ialg.algInit failed with status = -1115")
        number = _allocate(folder, artifacts, subgraph, network, level)
    except Fail:
        if not zeros:
            raise
        return Created(load(artifacts / f"{subgraph}_tidl_net.bin"), subgraph, None, zeros=True)
    _hang_in_create(folder, state, network, level)
    _set_globals(folder, state, subgraph, level)
    _plant_stale(watch, network, subgraph, level)
    return Created(network, subgraph, number)


def refuse_invoke() -> NoReturn:
    """A run that fails and says so."""
    say("TIDL_RT_OVX: ERROR: OpenVX graph execution failed")
    raise Fail("TIDL Compute Invoke Failed.")


def _failed() -> Fail:
    return Fail("Create state function failed. Return value:-1")


def _node_create_failed(folder: Path, reason: str) -> NoReturn:
    remote_log.append(folder, f" VX_ZONE_ERROR:[tivxAlgiVisionCreate:360] {reason}")
    say("VX_ZONE_ERROR: [ownContextSendCmd:1001] Command ack message returned failure cmd_status: -1")
    say("VX_ZONE_ERROR: [ownNodeKernelInit:704] Target kernel, TIVX_CMD_NODE_CREATE failed for node TIDLNode")
    say("TIDL_RT_OVX: ERROR: Verify OpenVX graph failed")
    raise _failed()


def _check_descriptor(artifacts: Path, subgraph: str, state: BoardState) -> None:
    wanted = int(state.failing("size_mismatch") or io_descriptor.SIZE)
    path = artifacts / f"{subgraph}_tidl_io_1.bin"
    size = path.stat().st_size if path.is_file() else 0
    if size != wanted:
        say(
            f"TIDL_RT_OVX: ERROR: Config file size ({size} bytes) does not match size of sTIDL_IOBufDesc_t "
            f"({wanted} bytes)"
        )
        say("TIDL_RT_OVX: ERROR: Map of config object failed")
        raise _failed()


def _check_version(artifacts: Path, subgraph: str, folder: Path, state: BoardState) -> None:
    expected = int(state.failing("version_mismatch") or state.firmware_version)
    path = artifacts / f"{subgraph}_tidl_net.bin"
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        say(f"Could not open {path} file for reading ")
        raise _failed() from error
    found = struct.unpack("<I", head)[0] if len(head) == 4 else 0
    if found != expected:
        remote_log.append(
            folder,
            f" VX_ZONE_ERROR:[tivxKernelTIDLCreate:1108] Network version - 0x{found:08X}, "
            f"Expected version - 0x{expected:08X}",
        )
        say("VX_ZONE_ERROR: [ownContextSendCmd:1001] Command ack message returned failure cmd_status: -1")
        say("VX_ZONE_ERROR: [ownNodeKernelInit:704] Target kernel, TIVX_CMD_NODE_CREATE failed for node TIDLNode")
        say("TIDL_RT_OVX: ERROR: Verify OpenVX graph failed")
        raise _failed()


def _allocate(folder: Path, artifacts: Path, subgraph: str, network: TwinNetwork, level: int) -> int:
    """Take the session's memory. A create that the C7x refuses leaks what it took."""
    state = BoardState.load(folder)
    need = core.c7x_need(network)
    net_bytes = (artifacts / f"{subgraph}_tidl_net.bin").stat().st_size
    shared = core.shared_need(network, net_bytes, bool(tracing.write_level(level)))
    refused = state.failing("create_fails")
    steps = state.failing("out_of_heap")
    leak = need if steps is None else core.C7X_HEAP_BYTES // int(steps) + 1
    pid, started = core.own()
    outcome = ["ok"]

    def change(now: CoreState) -> CoreState:
        if now.shared_free < shared:
            outcome[0] = "shared"
            return now
        if now.c7x_free < need or (refused is not None and (refused == 0 or now.failed_creates < refused)):
            outcome[0] = "heap" if now.c7x_free < need else "refused"
            leaked = min(now.leaked_bytes + leak, core.C7X_HEAP_BYTES)
            return msgspec.structs.replace(now, failed_creates=now.failed_creates + 1, leaked_bytes=leaked)
        held = Held(now.created, pid, started, need, shared)
        return msgspec.structs.replace(now, created=now.created + 1, sessions=(*now.sessions, held))

    after = update_core(folder, change)
    if outcome[0] == "shared":
        say("MEM: ERROR: Alloc failed with status = 12 !!!")
        say(" VX_ZONE_ERROR:[tivxMemBufferAlloc:111] Shared mem ptr allocation failed")
        raise _failed()
    if outcome[0] == "heap":
        remote_log.append(folder, f"Failed to Allocate memory record 5 @ space = 17 and size = {need} !!!")
        _node_create_failed(folder, "tivxAlgiVisionAllocMem Failed")
    if outcome[0] == "refused":
        _node_create_failed(folder, "Calling ialg.algInit failed with status = -1115")
    return after.created - 1


def release(folder: Path, number: int, pid: int) -> None:
    """Give a session's memory back. Only in the process that made it: a forked child's copy is none."""
    if os.getpid() == pid and (folder / core.FILE).exists():
        update_core(folder, lambda now: msgspec.structs.replace(now, sessions=_without(now.sessions, number)))


def _without(sessions: tuple[Held, ...], number: int) -> tuple[Held, ...]:
    return tuple(held for held in sessions if held.number != number)


def _hang_in_create(folder: Path, state: BoardState, network: TwinNetwork, level: int) -> None:
    bits = state.failing("hang_in_create")
    if bits is None or max(layer.quant.bits for layer in network.tensors() if not layer.quant.is_float) < bits:
        return
    if level >= 1:
        count = len(network.layers)
        reached = network.layers[: max(2, count // 2)]
        remote_log.append(folder, *(f"Alg Init for Layer # - {x.layer_id:4d} out of {count:4d}" for x in reached))
    hang(folder, "create")


def _set_globals(folder: Path, state: BoardState, subgraph: str, level: int) -> None:
    """Globals of the C7x: whoever creates a session sets them for all sessions, until the next create."""
    wanted = tracing.write_level(level)
    if wanted or state.failing("trace_leak") is None:
        update(folder, trace_write_level=wanted, trace_subgraph=subgraph)


def _plant_stale(watch: BoardWatch, network: TwinNetwork, subgraph: str, level: int) -> None:
    """Leave an earlier run's traces behind, once, as many as asked for: those of this network, then of others."""
    state = watch.current()
    count = state.failing("stale_traces")
    if count is None or watch.core().stale_planted:
        return
    folder = Path(state.trace_folder)
    planted = 0
    for round_number in range(int(count)):
        other = subgraph if round_number == 0 else f"old_{round_number}"
        for layer in network.tensors():
            if planted == int(count):
                break
            data = (_STALE * layer.quant.dtype.itemsize * max(1, _elements(layer.shape)))[:_MOST_STALE_BYTES]
            kind = tracing.kinds(layer, tracing.write_level(max(3, level)))[0]
            (folder / tracing.file_name(layer, other, kind)).write_bytes(data)
            planted += 1
    update_core(watch.folder, lambda now: msgspec.structs.replace(now, stale_planted=True))


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
