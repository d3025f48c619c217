"""The trace worker: one run of one recorded input tensor with TIDL's layer traces on, then it exits.

Started by the agent as `python -m tidegauge.pipeline.trace_worker`. A process of its own, since inference options are
global to a process (the `data_` object of TI's onnxrt_ep.cpp, SDK 11.1) and since a dump can hang for good. Which
traces it leaves, and where, is the runtime's matter; the agent copies them out while this process runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tidegauge.pipeline.channel import Channel
from tidegauge.pipeline.messages import SessionOpened, StartTrace, Stop, TraceCommand, TraceDone
from tidegauge.pipeline.process import (
    FailureKind,
    WorkerFault,
    first_command,
    output_digest,
    protocol_fault,
    read_tensors,
    run_worker,
)
from tidegauge.pipeline.sessions import device_session, proven_offload, timed_run
from tidegauge.runtimes.session import Array


def body(channel: Channel[TraceCommand]) -> None:
    start: StartTrace = first_command(channel, StartTrace)
    work = Path(start.work)
    if not work.is_dir() or not os.access(work, os.W_OK):
        # Found out now: a failure after the run costs a second dump of seconds, and the C7x is not free for less.
        raise WorkerFault(
            FailureKind.WORK_FOLDER, f"the capture's folder {work} can't be written", "make it a folder of the agent's"
        )
    with device_session(start.profile, start.module, start.debug_level) as session:
        tensors = read_tensors(Path(start.input_path), session.inputs)
        channel.send(SessionOpened())
        if withdrawn(channel):
            return
        seconds, outputs = timed_run(session, tensors)
        proven_offload(session)
        specs, benchmark = session.outputs, session.benchmark()
    # The session is closed: whatever the runtime writes on its way out lies there before the agent is told.
    write_outputs(work, outputs)
    channel.send(TraceDone(output_digest(outputs), seconds, specs, benchmark))


def withdrawn(channel: Channel[TraceCommand]) -> bool:
    """Whether `Stop` came while the session was opened: the dump, seconds of a blocked C7x, is not begun then.

    SIGTERM and an agent that has gone raise ChannelClosed.
    """
    try:
        message, _ = channel.receive(timeout=0)
    except TimeoutError:
        return False
    if isinstance(message, Stop):
        return True
    raise protocol_fault(f"{type(message).__name__} came after StartTrace")


def write_outputs(work: Path, outputs: list[Array]) -> None:
    """`<index>.bin` for each output: its bytes in C order. Raises WorkerFault when the folder can't take them."""
    for index, array in enumerate(outputs):
        path = work / f"{index}.bin"
        try:
            path.write_bytes(array.tobytes())
        except OSError as error:
            raise WorkerFault(
                FailureKind.WORK_FOLDER, f"{path} can't be written ({error.strerror})", "free room on that file system"
            ) from error


def main() -> int:
    return run_worker(TraceCommand, body)


if __name__ == "__main__":
    sys.exit(main())
