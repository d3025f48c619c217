"""systemd's notification socket: READY, STATUS, WATCHDOG, STOPPING (sd_notify(3)). Without systemd it says nothing.

The watchdog is fed at a third of its period and only while the agent is healthy; more often would load PID 1.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

from tidegauge.clocks import Monotonic

log = logging.getLogger(__name__)


class Notifier:
    """`environment`: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID as systemd sets them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        ours = pid in ("", str(os.getpid()))
        #: Seconds between two pings, 0 for none.
        self.period = int(usec) / 3e6 if usec.isdecimal() and ours else 0.0
        self._pinged: float | None = None
        self._status = ""

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def progress(self, now: Monotonic, healthy: bool, status: str) -> None:
        """Feed the watchdog, if its time has come and all is well; tell a new status."""
        if status != self._status:
            self._status = status
            self._send(f"STATUS={status}")
        due = self._pinged is None or now - self._pinged >= self.period
        if self.period and healthy and due:
            self._pinged = now
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto(message.encode(), self._address)
        except OSError as error:
            log.warning("systemd can't be told %s: %s", message.partition("=")[0], error)
