"""A board as it is recommended: TLS with a certificate of its own, and pictures that only their recipient can read.

The certificates are made by the repository's own script, the broker is a real mosquitto.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegauge.bundles import sealing
from tidegauge.demo.broker import free_port, mosquitto
from tidegauge.evaluation.small_board import SmallBoard, ended, wait_for
from tidegauge.virtualboard.state import BoardState

SCRIPT = Path(__file__).parents[3] / "agent_config" / "broker" / "certificates"
#: Traces lie in clear until they are encrypted: an agent that encrypts wants them in memory.
IN_MEMORY = Path("/dev/shm")
BROKER_SECONDS = 20.0


def missing() -> str:
    """What this machine lacks for it, in words; empty for nothing."""
    if mosquitto() is None:
        return "mosquitto is not installed"
    if shutil.which("openssl") is None:
        return "openssl is not installed"
    return "" if SCRIPT.is_file() else f"{SCRIPT} is not there: it is in the repository only"


@contextmanager
def secured(board: SmallBoard, folder: Path) -> Iterator[Mapping[str, Mapping[str, Any]]]:
    """Settings of an agent for `board`, and a broker that wants its certificate. Traces are in memory from now on.

    `folder`: a new one, for certificates and keys.
    """
    device = str(board.settings()["device"])
    folder.mkdir()
    for action in (("init",), ("server", "127.0.0.1"), ("client", device)):
        subprocess.run([SCRIPT, folder, *action], check=True)
    recipient = sealing.create(folder / "pictures.key")
    with tempfile.TemporaryDirectory(prefix="tidegauge-traces-", dir=IN_MEMORY) as traces, _broker(folder) as port:
        board.traces = Path(traces)
        BoardState(trace_folder=traces).save(board.virtual_folder)
        pair = {"cert": str(folder / f"{device}.pem"), "key": str(folder / f"{device}.key")}
        yield {
            "link": {"port": port, "ca": str(folder / "ca.pem"), **pair},
            "privacy": {"encrypt_to": recipient},
        }


@contextmanager
def _broker(folder: Path) -> Iterator[int]:
    program, port = mosquitto(), free_port()
    assert program is not None
    settings = [
        f"listener {port} 127.0.0.1",
        *(f"{key} {folder / name}" for key, name in (("cafile", "ca.pem"), ("crlfile", "crl.pem"))),
        *(f"{key} {folder / name}" for key, name in (("certfile", "server.pem"), ("keyfile", "server.key"))),
        *("require_certificate true", "use_identity_as_username true", "allow_anonymous true"),
    ]
    if os.geteuid() == 0:
        settings.insert(0, "user root")  # else it drops to a user that can't read a private folder
    (folder / "mosquitto.conf").write_text("\n".join(settings) + "\n")
    with (folder / "mosquitto.log").open("wb") as log:
        process = subprocess.Popen([program, "-c", str(folder / "mosquitto.conf")], stdout=log, stderr=log)
    with ended(process):
        wait_for(lambda: _listens(port), BROKER_SECONDS, "broker")
        yield port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
