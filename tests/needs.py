"""What a test needs of the machine. Where it is missing the test is skipped with that reason, but never in CI: there it
is installed, and a skip would hide that nothing was tested.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import NoReturn

import pytest

_CI = os.environ.get("CI") == "true"


def missing(what: str) -> NoReturn:
    if _CI:
        pytest.fail(f"{what}; CI must not skip this test", pytrace=False)
    pytest.skip(what)


def program(name: str, package: str) -> str:
    """Path of a program, looked for where Debian puts servers too."""
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if path is None:
        missing(f"needs the program {name} (Debian package {package})")
    return path


def unless(there: bool, what: str) -> pytest.MarkDecorator:
    """Mark of tests that are skipped where something isn't there; in CI they run, and fail by what they miss."""
    return pytest.mark.skipif(not there and not _CI, reason=what)


def overlays() -> tuple[bool, str]:
    """Whether a namespace of mounts can be laid over this machine's folders, and what that needs."""
    what = "needs root, and overlays over this machine's folders"
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False, what
    tried = "mount -t tmpfs t /mnt && mkdir /mnt/u /mnt/w && "
    tried += "mount -t overlay o -o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /etc"
    return subprocess.run(["unshare", "-m", "sh", "-c", tried], capture_output=True, check=False).returncode == 0, what
