"""What the C7x and the shared tables remember beyond any process: sessions, memory, a hang. Only a reboot clears it.

Source of the sizes: app_mem_map.h of AM62A, tidl_rt_ovx.c, SDK 11.1. How much of the C7x's heap a network needs is not
known; the virtual board takes the network's own bytes and its two largest tensors.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tidegauge.errors import TidegaugeError
from tidegauge.files import write_durably
from tidegauge.virtualboard.network import TwinNetwork

FILE = "core.json"
C7X_HEAP_BYTES = 112 << 20
SHARED_HEAP_BYTES = 172 << 20
#: A traced session takes this much more of the shared heap (TIVX_TIDL_TRACE_DATA_SIZE).
TRACE_OBJECT_BYTES = 64 << 20


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The memory of one session. `started`: the process's start in clock ticks since boot, for pids come again."""

    number: int
    pid: int
    started: int
    c7x_bytes: int
    shared_bytes: int


class CoreState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`core.json`. `hung`: where the C7x stopped answering, empty while it answers. `leaked_bytes`: of failed creates.
    `sessions`: those not closed; the memory of a dead process stays taken."""

    version: int = 1
    created: int = 0
    failed_creates: int = 0
    leaked_bytes: int = 0
    hung: str = ""
    stale_planted: bool = False
    sessions: tuple[Held, ...] = ()

    @classmethod
    def load(cls, folder: Path) -> CoreState:
        """The state, that of a board just booted where there is no file. Raises `TidegaugeError` if it is damaged."""
        path = folder / FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return cls()
        except (OSError, msgspec.MsgspecError) as error:
            raise TidegaugeError(
                f"{path} can't be read ({error})", "reboot with `tidegauge virtualboard reboot`"
            ) from error

    def save(self, folder: Path) -> None:
        write_durably(folder / FILE, msgspec.json.format(msgspec.json.encode(self), indent=2))

    @property
    def c7x_free(self) -> int:
        return C7X_HEAP_BYTES - self.leaked_bytes - sum(held.c7x_bytes for held in self.sessions)

    @property
    def shared_free(self) -> int:
        return SHARED_HEAP_BYTES - sum(held.shared_bytes for held in self.sessions)

    def orphans(self) -> tuple[Held, ...]:
        """Sessions whose process is gone: leaked until the next boot."""
        return tuple(held for held in self.sessions if process_start(held.pid) != held.started)


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone (a zombie is gone)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def own() -> tuple[int, int]:
    """This process's pid and start."""
    pid = os.getpid()
    started = process_start(pid)
    assert started is not None, "the calling process lives"
    return pid, started


def c7x_need(network: TwinNetwork) -> int:
    """Bytes of the C7x's heap that a session of this network takes."""
    sizes = sorted(_bytes(layer.shape, layer.quant.dtype.itemsize) for layer in network.tensors())
    return len(network.twin) + sum(sizes[-2:])


def shared_need(network: TwinNetwork, net_bytes: int, traced: bool) -> int:
    """Bytes of the shared heap: inputs and outputs, a copy of the network, and the trace object."""
    ends = {*network.inputs, *network.outputs}
    tensors = sum(_bytes(layer.shape, 4) for layer in network.layers if layer.name in ends and layer.shape)
    return tensors + net_bytes + (TRACE_OBJECT_BYTES if traced else 0)


def _bytes(shape: tuple[int, ...], itemsize: int) -> int:
    size = itemsize
    for extent in shape:
        size *= extent
    return size
