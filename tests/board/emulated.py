"""Another machine's Debian on this one: qemu's user-mode emulation, registered with the kernel while it is needed.

The kernel's entry and its mount are this process's own: nothing that was registered before is used, changed or removed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from board.tree import CACHE, Tree

#: Debian's names of the machines, by the kernel's.
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
DEFINITIONS = Path("/usr/lib/binfmt.d")
#: Beside what a minimal Debian has: no systemd, since nothing is booted under emulation.
PACKAGES = "python3,adduser"
#: The cores of an AM62A, as qemu calls them. Its default has every extension that there is, SVE among them.
CPU = "cortex-a53"
#: One such core, as Linux tells it in /proc/cpuinfo (arch/arm64/kernel/cpuinfo.c; part 0xd03 of implementer 0x41 is
#: Arm's Cortex-A53). Up to qemu 7 a program reads this PC's own instead, finds no Arm core in it, and onnxruntime then
#: ends with SIGSEGV while it is imported.
CORE = """\
processor\t: {number}
BogoMIPS\t: 400.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd03
CPU revision\t: 4

"""
#: In the tree, laid over /proc/cpuinfo.
CPUINFO = "/etc/tidegauge-test-cpuinfo"


class EmulatedTree(Tree):
    """A tree of another machine, never booted: its programs see the board's kind of core, and not this PC's."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        cores = [CORE.format(number=number) for number in range(os.cpu_count() or 1)]
        (root / CPUINFO[1:]).write_text("".join(cores))

    def unbooted(self) -> list[str]:
        # Not as process 1: qemu ends a program by a signal that it sends itself, and process 1 would never get it.
        options = ["--as-pid2", f"--setenv=QEMU_CPU={CPU}"]
        return [*super().unbooted(), *options, "sh", "-c", f'mount --bind {CPUINFO} /proc/cpuinfo && exec "$0" "$@"']


def definition(machine: str, name: str) -> str:
    """The line that makes the kernel run that machine's programs by qemu: qemu-user-static's own, called `name`.

    Raises OSError where the package is not installed. Format: the kernel's admin-guide/binfmt-misc.
    """
    line = (DEFINITIONS / f"qemu-{machine}.conf").read_text().strip()
    _, known, rest = line.split(":", 2)
    if known != f"qemu-{machine}" or "F" not in line.rpartition(":")[2]:
        # Without F the interpreter would be looked for inside the tree, which hasn't got it.
        raise ValueError(f"{DEFINITIONS}/qemu-{machine}.conf does not open its interpreter ahead (flag F): {line}")
    return f":{name}:{rest}"


@contextmanager
def emulated(machine: str) -> Iterator[None]:
    """While inside, programs of `machine` run here. Nothing to do for this machine's own."""
    if machine == os.uname().machine:
        yield
        return
    name = f"tidegauge-{machine}-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="tidegauge-binfmt-") as folder:
        # The same file system wherever it is mounted; held by a mount of its own, so that no other can take it away.
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", folder], check=True, timeout=30)
        try:
            Path(folder, "register").write_text(definition(machine, name))
            try:
                yield
            finally:
                entry = Path(folder, name)
                if entry.exists():
                    entry.write_text("-1")
        finally:
            subprocess.run(["umount", folder], check=True, timeout=30)


def foreign_tree(suite: str, machine: str) -> Path:
    """A minimal Debian of that suite for another machine, made once and kept in the cache. Needs `emulated`."""
    tree = CACHE / f"tree-{suite}-{ARCHITECTURES[machine]}"
    if not tree.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            new = Path(scratch, "tree")
            command = ["debootstrap", "--foreign", f"--arch={ARCHITECTURES[machine]}", "--variant=minbase"]
            command += [f"--include={PACKAGES}", suite, str(new)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=900)
            # Packages are unpacked and set up by the tree's own programs: minutes under emulation.
            second = ["chroot", str(new), "/debootstrap/debootstrap", "--second-stage"]
            clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}
            subprocess.run(second, check=True, stdout=subprocess.DEVNULL, timeout=1800, env=clean)
            shutil.rmtree(new / "var/cache/apt/archives", ignore_errors=True)
            new.rename(tree)
    return tree
