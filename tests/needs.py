"""What a test needs of the machine. Where it is missing the test is skipped with that reason, but never in CI: there it
is installed, and a skip would hide that nothing was tested.
"""

from __future__ import annotations

import os
import shutil
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
