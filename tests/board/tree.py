"""A Debian tree with systemd, booted by systemd-nspawn: the nearest thing to a board's user space that a PC has.

Not enforced inside on a host with control groups of the first version: MemoryMax and TasksMax.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
CACHE = Path(os.environ.get("TIDEGAUGE_CACHE", Path.home() / ".cache" / "tidegauge"))
PACKAGES = "systemd,systemd-sysv,dbus,python3,udev"
#: What a board has from TI and the base install of Tidegauge therefore lacks; the virtual board stands on them.
STAND_IN = (
    *("onnxruntime", "onnx", "protobuf", "flatbuffers", "packaging", "ml_dtypes", "typing_extensions"),
    *("opencv-python-headless", "tomli-w"),
)
PLATFORMS = [f"--platform=manylinux_{glibc}_x86_64" for glibc in ("2_28", "2_27", "2_17")] + [
    "--platform=manylinux2014_x86_64"
]

#: How systemd-nspawn ends when what it runs reboots, with --keep-unit.
FORCE_RESTART = 133


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """What `condition` returned once it was true. Raises TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise TimeoutError(f"no {what} within {seconds:.0f} s")


def base_tree(suite: str, more: Collection[str] = ()) -> Path:
    """A minimal Debian of that suite with `more` packages, made once for each list and kept in the cache."""
    wanted = sorted({*PACKAGES.split(","), *more})
    mark = f"-{hashlib.sha256(' '.join(wanted).encode()).hexdigest()[:8]}" if more else ""
    tree = CACHE / f"tree-{suite}{mark}"
    if not tree.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            command = ["debootstrap", "--variant=minbase", f"--include={','.join(wanted)}", suite, f"{scratch}/tree"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=1800)
            Path(scratch, "tree").rename(tree)
    return tree


def bundle(python: str) -> Path:
    """The offline folder as `make board-bundle` makes it, for this machine, and what the virtual board needs."""
    out = Path(tempfile.mkdtemp(prefix="tidegauge-bundle-"))
    environment = {**os.environ, "MACHINE": "x86_64", "PYTHONS": python, "OUT": str(out)}
    subprocess.run([REPOSITORY / "tools" / "board-bundle"], check=True, env=environment, timeout=300)
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    wheels = folder / "wheels"
    command = ["python3", "-m", "pip", "--quiet", "--quiet", "download", "--no-deps", "--only-binary=:all:", *PLATFORMS]
    command += ["--implementation=cp", f"--python-version={python}", "-d", str(wheels)]
    command += [f"{name}=={version(name)}" for name in STAND_IN]
    subprocess.run(command, check=True, timeout=300)
    with (wheels / "SHA256SUMS").open("wb") as sums:
        subprocess.run(["sh", "-c", "sha256sum -- *.whl"], cwd=wheels, check=True, stdout=sums)
    return folder


class Tree:
    """A copy of a base tree, booted or not. `run` works on both."""

    #: Where True, booted with a loopback of its own: ports are free, and nothing else is reached.
    own_network = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self._process: subprocess.Popen[bytes] | None = None
        self._leader = 0

    @property
    def booted(self) -> bool:
        return self._leader != 0

    def inside(self, path: Path) -> str:
        """The path as the tree's own programs see it."""
        return "/" + str(path.relative_to(self.root))

    def run(self, *command: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        if self._leader:
            enter = ["nsenter", "-t", str(self._leader), "-m", "-p", "-u", "-i", "--root", "--wd"]
            enter += ["-n"] if self.own_network else []
        else:
            enter = self.unbooted()
        clean = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        done = subprocess.run([*enter, *command], capture_output=True, text=True, timeout=timeout, env=clean)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def unbooted(self) -> list[str]:
        """What a command is put behind while the tree is not booted."""
        return ["systemd-nspawn", "-q", "--register=no", "--keep-unit", "--pipe", "-D", str(self.root)]

    def unit(self, name: str, unit: str = "tidegauge-agent") -> str:
        """A property of a unit, as systemd tells it."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    def journal(self, unit: str = "tidegauge-agent") -> str:
        return self.run("journalctl", "--no-pager", "-q", "-o", "cat", "-u", unit).stdout

    def boot(self) -> float:
        """Seconds until systemd's bus answers."""
        began = time.monotonic()
        inside = ["systemd-nspawn", "-q", "--register=no", "--keep-unit", "--kill-signal=SIGRTMIN+4", "-b"]
        inside += [*(["--private-network"] if self.own_network else []), "-D"]
        console = (self.root / "console.log").open("wb")
        self._process = subprocess.Popen(
            ["script", "-qefc", " ".join([*inside, str(self.root)]), "/dev/null"],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
        )
        console.close()
        self._leader = wait_for(self._find_leader, 30, "booted tree")
        wait_for(
            lambda: self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"),
            60,
            "answer of systemd",
        )
        return time.monotonic() - began

    def _find_leader(self) -> int:
        """PID 1 of the tree, as this host numbers it: the child of systemd-nspawn whose root is the tree."""
        assert self._process is not None
        for name in Path("/proc").iterdir():
            if not name.name.isdecimal():
                continue
            try:
                status = dict(
                    line.split(":\t", 1) for line in (name / "status").read_text().splitlines() if ":\t" in line
                )
                root = (name / "root").readlink() if status["NSpid"].split()[-1] == "1" else None
            except (OSError, KeyError, ValueError):
                continue
            if len(status["NSpid"].split()) > 1 and root is not None and self._descends(int(name.name)):
                return int(name.name)
        return 0

    def _descends(self, pid: int) -> bool:
        assert self._process is not None
        while pid > 1:
            if pid == self._process.pid:
                return True
            try:
                pid = _parent(pid)
            except OSError:
                return False
        return False

    def power_off(self, seconds: float = 40) -> None:
        """Orderly, as `systemctl poweroff` does it."""
        if self._process is None:
            return
        if self._leader:
            os.kill(self._leader, signal.SIGRTMIN + 4)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.pull_plug()
            raise
        self._process, self._leader = None, 0

    def goes_down(self, seconds: float) -> bool:
        """Wait until the tree has gone down by itself; whether it did so to be booted again."""
        assert self._process is not None
        code = self._process.wait(seconds)
        self._process, self._leader = None, 0
        return code == FORCE_RESTART

    def pull_plug(self) -> None:
        """Everything at once, nothing closed. Returns when systemd-nspawn has let go of the tree: it can be booted."""
        if self._process is None:
            return
        keeper = _parent(self._leader) if self._leader else 0
        if self._leader:
            os.kill(self._leader, signal.SIGKILL)
        self._process.kill()
        self._process.wait(20)
        if keeper:
            wait_for(lambda: _has_ended(keeper), 60, "end of systemd-nspawn")
        self._process, self._leader = None, 0


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@contextmanager
def copied(suite: str) -> Iterator[Tree]:
    """A tree of its own for one test, powered off and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="tidegauge-tree-"))
    tree = Tree(folder / "tree")
    try:
        subprocess.run(["cp", "-a", str(base_tree(suite)), str(tree.root)], check=True)
        yield tree
    finally:
        tree.pull_plug()
        shutil.rmtree(folder)
