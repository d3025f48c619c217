"""A camera worker whose camera goes away after two pictures, started fast.

Started by the agent's own camera service like any worker. It hands its channel to a process that has imported the real
worker already, which forks for it and runs that: 0.4 s of imports for each would make 10,000 of them an hour.
"""

from __future__ import annotations

import os
import socket
import sys

FORKS = "TIDEGAUGE_TEST_FORKS"
CHANNEL = "TIDEGAUGE_CHANNEL_FD"


def main() -> None:
    channel = int(os.environ[CHANNEL])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as forks:
        forks.connect(os.environ[FORKS])
        socket.send_fds(forks, [b"camera"], [channel])
        os.close(channel)
        forks.recv(1)  # its end: whoever runs in this one's place has gone


def serve(path: str) -> None:
    """Fork for each that connects, until killed."""
    import signal

    import numpy as np

    from tidegauge.camera import worker
    from tidegauge.camera.config import CameraConfig
    from tidegauge.camera.faults import CameraFault
    from tidegauge.camera.source import Picture

    class Flapping:
        description, width, height = "a camera that goes away", 64, 48

        def __init__(self, _: CameraConfig) -> None:
            self._sequence = 0

        def read(self) -> Picture:
            self._sequence += 1
            if self._sequence > 2:
                raise CameraFault("read_failed", "the camera has gone away", "it is opened anew")
            return Picture(np.full((self.height, self.width, 3), self._sequence, np.uint8), self._sequence)

        def close(self) -> None:
            self._sequence = 0

    worker.open_source = Flapping  # type: ignore[assignment] # in the place of the cameras that this machine lacks
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(8)
        print("ready", flush=True)
        while True:
            forks, _ = listener.accept()
            _, fds, _, _ = socket.recv_fds(forks, 16, 1)
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                os.environ[CHANNEL] = str(fds[0])
                worker.main()
            os.close(fds[0])
            forks.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        main()
