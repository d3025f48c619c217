"""What all workers that hold a runtime session share: signals, the death of the parent, failures, exit codes.

A process that holds a TIDL session must leave by closing it: killed, it leaks shared heap and may keep a semaphore of
the whole board (TI's tivx_platform_hlos.c, SDK 11.1). So SIGTERM interrupts nothing: it only stops the messages, what
runs is finished, and the session is closed on the way out. A run that hangs in the C7x is the supervisor's matter.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import xxhash

from tidegauge.errors import TidegaugeError
from tidegauge.pipeline.channel import BadMessage, Channel, ChannelClosed
from tidegauge.pipeline.messages import Failed, Stop
from tidegauge.profile import Profile
from tidegauge.runtimes.session import Array
from tidegauge.tensors import TensorSpec

#: prctl(2), linux/prctl.h
PR_SET_PDEATHSIG = 1


class Exit(IntEnum):
    """How a worker leaves. A negative code (a signal) or any other is a crash."""

    CLEAN = 0
    FAILED = 1


class FailureKind(StrEnum):
    """Causes of `Failed`, for a metric's label."""

    OPEN_FAILED = "open_failed"
    NOT_OFFLOADED = "not_offloaded"
    DEVICE_ERROR = "device_error"
    PROFILE_MISMATCH = "profile_mismatch"
    INPUT_FILE = "input_file"
    WORK_FOLDER = "work_folder"
    RESULTS_SOCKET = "results_socket"
    SHARED_MEMORY = "shared_memory"
    PROTOCOL = "protocol"
    OTHER = "other"


class WorkerFault(TidegaugeError):
    """The worker can't go on; `kind` goes into `Failed`."""

    def __init__(self, kind: FailureKind, problem: str, cure: str = "") -> None:
        super().__init__(problem, cure)
        self.kind = kind


@contextmanager
def failing_as(kind: FailureKind) -> Iterator[None]:
    """Give the errors of other modules, raised in this block, their kind."""
    try:
        yield
    except WorkerFault:
        raise
    except TidegaugeError as error:
        raise WorkerFault(kind, error.problem, error.cure) from error


def run_worker(accepts: Any, body: Callable[[Channel[Any]], None]) -> int:
    """Run a worker's `body` on the agent's channel; returns the exit code.

    `body` returns on `Stop` and lets ChannelClosed pass (the agent has gone, or SIGTERM came); it must close its
    session on every way out. A TidegaugeError is sent to the agent as `Failed`. Anything else is a bug and leaves a
    traceback in the worker's log.
    """
    try:
        channel: Channel[Any] = Channel.from_environment(accepts)
    except TidegaugeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    prepare_signals(channel)
    try:
        body(channel)
    except ChannelClosed:
        return Exit.CLEAN
    except BadMessage as error:
        problem = f"the agent's message is not understood ({error})"
        return _report(channel, WorkerFault(FailureKind.PROTOCOL, problem, "restart the agent"))
    except TidegaugeError as error:
        return _report(channel, error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return Exit.CLEAN


def prepare_signals(channel: Channel[Any]) -> None:
    """SIGTERM leaves in order; SIGINT is the agent's (a terminal sends it to the whole group); no life without agent.

    The kernel sends PDEATHSIG when the *thread* that started this process ends, so the agent starts workers from its
    main thread. An agent that died before this call is noticed by the closed channel.
    """

    def leave(_signal: int, _frame: FrameType | None) -> None:
        channel.leave()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def _report(channel: Channel[Any], error: TidegaugeError) -> int:
    kind = error.kind if isinstance(error, WorkerFault) else FailureKind.OTHER
    print(f"{kind}: {error}", file=sys.stderr)
    try:
        channel.send(Failed(kind=kind.value, problem=error.problem, cure=error.cure))
    except ChannelClosed:
        print("the agent has gone before it could be told", file=sys.stderr)
    return Exit.FAILED


def first_command(channel: Channel[Any], kind: type[Any]) -> Any:
    """The start message, or ChannelClosed on a `Stop` that came first. Raises WorkerFault for any other message."""
    message, fd = channel.receive()
    if fd is not None:
        os.close(fd)
    if isinstance(message, kind):
        return message
    if isinstance(message, Stop):
        raise ChannelClosed
    raise protocol_fault(f"{type(message).__name__} came before {kind.__name__}")


def protocol_fault(problem: str) -> WorkerFault:
    """The agent did not keep to the messages' order or sizes."""
    return WorkerFault(FailureKind.PROTOCOL, problem, "report this fault of the agent")


def check_output_name(profile: Profile, outputs: tuple[TensorSpec, ...]) -> None:
    """Raise WorkerFault unless the profile's output is one of the model's."""
    names = [spec.name for spec in outputs]
    if profile.output.name not in names:
        raise WorkerFault(
            FailureKind.PROFILE_MISMATCH,
            f"profile {profile.name}: the model has no output {profile.output.name}",
            f"set [output] name to one of: {', '.join(names)}",
        )


def output_digest(arrays: list[Array]) -> str:
    """xxh3-128 (hex) of the tensors' bytes, one after another, in C order."""
    digest = xxhash.xxh3_128()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return str(digest.hexdigest())


def read_tensors(path: Path, specs: tuple[TensorSpec, ...]) -> dict[str, Array]:
    """The input tensors in a raw file: each input's bytes in C order, one input after another.

    Raises WorkerFault unless the file has exactly the size that `specs` ask for.
    """
    wanted = sum(spec.nbytes for spec in specs)
    cure = "record the input tensor again with the model that is deployed now"
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != wanted:
                shapes = ", ".join(f"{spec.name} {list(spec.shape)} {spec.dtype}" for spec in specs)
                problem = f"{path} has {size} bytes, but the model's input ({shapes}) has {wanted}"
                raise WorkerFault(FailureKind.INPUT_FILE, problem, cure)
            data = file.read(wanted + 1)
    except OSError as error:
        raise WorkerFault(FailureKind.INPUT_FILE, f"{path} can't be read ({error.strerror})", cure) from error
    if len(data) != wanted:
        raise WorkerFault(FailureKind.INPUT_FILE, f"{path} changed its size while it was read", cure)
    return split_tensors(data, specs)


def split_tensors(data: bytes, specs: tuple[TensorSpec, ...]) -> dict[str, Array]:
    """Views of the tensors that lie one after another in `data`."""
    tensors: dict[str, Array] = {}
    offset = 0
    for spec in specs:
        count = spec.nbytes // np.dtype(spec.dtype).itemsize
        tensors[spec.name] = np.frombuffer(data, spec.dtype, count, offset).reshape(spec.shape)
        offset += spec.nbytes
    return tensors
