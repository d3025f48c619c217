"""The product without a monitor: frame, input tensor, device run, answer, in one loop. To measure the monitor against.

Started as `python -m tidegauge.evaluation.bare_loop`, with the session, the pre-processing and the way to the client
that the pipeline worker has; nothing is asked of it for each frame, and nothing is said.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tidegauge.pipeline.channel import Channel
from tidegauge.pipeline.layout import Region
from tidegauge.pipeline.messages import AttachFrames, Message, StartPipeline, Stop
from tidegauge.pipeline.preprocess import input_tensor
from tidegauge.pipeline.process import first_command, protocol_fault, run_worker
from tidegauge.pipeline.results import ResultServer
from tidegauge.pipeline.ring import Ring
from tidegauge.pipeline.sessions import device_session, timed_run
from tidegauge.pipeline.worker import warm_up
from tidegauge.tensors import TensorSpec


class Loop(Message):
    """Run so many frames, one after another, from the slots of the ring in turn."""

    frames: int


class LoopReady(Message):
    """The session is open and warm, the socket serves."""


class LoopDone(Message):
    """All of them are answered."""


BareCommand = StartPipeline | AttachFrames | Loop | Stop
BareEvent = LoopReady | LoopDone


def body(channel: Channel[BareCommand]) -> None:
    start: StartPipeline = first_command(channel, StartPipeline)
    profile = start.profile
    with device_session(profile, start.module, 0) as session:
        warm_up(profile, session)
        attached, fd = channel.receive()
        if not isinstance(attached, AttachFrames) or fd is None:
            raise protocol_fault("a loop needs a ring of frames")
        frames = Ring(attached.ring, fd)
        region = Region(TensorSpec("picture", (attached.height, attached.width, 3), "uint8"), 0)
        results = ResultServer(Path(start.results_socket))
        channel.send(LoopReady())
        try:
            while True:
                command, _ = channel.receive()
                if not isinstance(command, Loop):
                    return
                for number in range(command.frames):
                    captured = time.monotonic()
                    picture = frames.array(number % attached.ring.slots, region)
                    tensor = input_tensor(picture, profile.preprocess)
                    _, outputs = timed_run(session, {session.inputs[0].name: tensor})
                    results.publish(number, captured, list(zip(session.outputs, outputs, strict=True)))
                channel.send(LoopDone())
        finally:
            results.close()
            frames.close()


def main() -> int:
    return run_worker(BareCommand, body)


if __name__ == "__main__":
    sys.exit(main())
