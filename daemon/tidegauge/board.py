"""What agent and preflight ask of the board: processes, mapped libraries, free space, versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from tidegauge import __version__

PROC = Path("/proc")
#: A process that maps one of these holds, or may open, a TIDL session.
TIDL_LIBRARIES = ("libvx_tidl_rt.so", "libtivision_apps.so")


def _processes(proc: Path) -> Iterator[Path]:
    for entry in proc.iterdir():
        if entry.name.isdigit():
            yield entry


def processes_matching(text: str, proc: Path = PROC) -> list[int]:
    """Pids of live processes whose command line contains `text`, other than this one."""
    found = []
    for entry in _processes(proc):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue  # it has ended in the meantime
        if text in command and state != "Z" and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return sorted(found)


def tidl_holders(ours: set[int], proc: Path = PROC) -> list[tuple[int, str]]:
    """Other processes that map TI's TIDL runtime: pid and unit (or command)."""
    found = []
    for entry in _processes(proc):
        pid = int(entry.name)
        if pid in ours or pid == os.getpid():
            continue
        try:
            maps = (entry / "maps").read_text(errors="replace")
            if not any(library in maps for library in TIDL_LIBRARIES):
                continue
            unit = (entry / "cgroup").read_text().strip().rpartition("/")[2]
            found.append((pid, unit or (entry / "comm").read_text().strip()))
        except OSError:
            continue  # it has ended, or isn't ours to look into
    return sorted(found)


def free_bytes(folder: Path) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def in_memory(folder: Path, proc: Path = PROC) -> bool:
    """Whether what is written in `folder` stays in RAM (tmpfs or ramfs), swap aside. Raises OSError."""
    device = folder.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        fields = line.split()  # proc(5): id, parent, major:minor, …, "-", type
        if fields[2] == name:
            return fields[fields.index("-") + 1] in ("tmpfs", "ramfs")
    return False


def temperature(thermal: Path = Path("/sys/class/thermal")) -> float | None:
    """The hottest thermal zone in °C; None where the board has none that can be read."""
    found = []
    for path in thermal.glob("thermal_zone*/temp"):
        try:
            found.append(int(path.read_text()) / 1000)
        except (OSError, ValueError):
            continue  # a zone that is switched off says so by an error
    return max(found, default=None)


def load_per_core() -> float:
    """Processes ready to run, averaged over a minute, for each core."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def own_pid() -> int:
    return os.getpid()


def versions() -> dict[str, str]:
    """What can be read of the board without touching the accelerator."""
    found = {
        "tidegauge": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    sdk = os.environ.get("EDGEAI_SDK_VERSION")
    if sdk:
        found["edgeai_sdk"] = sdk
    try:
        for line in Path("/etc/os-release").read_text().splitlines():
            key, _, value = line.partition("=")
            if key == "PRETTY_NAME":
                found["os"] = value.strip('"')
    except OSError:
        found["os"] = "unknown: /etc/os-release can't be read"
    return found
