"""Steps of the board test: an agent that can't stay up is given up by systemd, which may reboot the board then."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from board.tree import REPOSITORY, wait_for

if TYPE_CHECKING:
    from board.run import BoardTest

UNIT = "tidegauge-agent"
UNITS = REPOSITORY / "systemd"
DROP_INS = f"etc/systemd/system/{UNIT}.service.d"
#: In the place of the unit's five seconds between two starts; and how long nothing may happen after the last.
PAUSE, QUIET = 1, 8.0
#: Adds a line for each start. A boot of the tree is known by when its first process began.
COUNTED = f"""
[Service]
RestartSec={PAUSE}
ExecStartPre=/bin/sh -c 'cut -d" " -f22 /proc/1/stat >>/srv/board/starts'
"""


def start_limit(test: BoardTest) -> None:
    """The unit's own limit, which the other steps put off, with a state folder where the agent can't take its lock."""
    group = "starts that fail for ever"
    burst, interval = limits(UNITS / f"{UNIT}.service")
    with _own_limit(test), _locked_out(test):
        test.tree.run("systemctl", "start", UNIT, check=False)
        wait_for(lambda: test.tree.unit("ActiveState") == "failed", 180, "end of the starts")
        test.holds(group, f"{burst} starts (StartLimitBurst of the unit, in {interval})", _starts(test) == burst)
        code, result = test.tree.unit("ExecMainStatus"), test.tree.unit("Result")
        test.holds(group, "each had an exit code that is tried again", code not in ("0", "2"), f"{code}, {result}")
        said = test.tree.journal()
        test.holds(group, "the journal names the fault, and the limit", "agent.lock" in said and "too quickly" in said)
        time.sleep(QUIET)
        test.holds(group, f"no further one in {QUIET:g} s", _starts(test) == burst, str(_starts(test)))
        refused = test.tree.run("systemctl", "start", UNIT, check=False).returncode != 0
        result = test.tree.unit("Result")
        test.holds(group, "nor by hand, before `reset-failed`", refused and _starts(test) == burst, result)
    began = time.monotonic()
    test.tree.run("systemctl", "reset-failed", UNIT)
    test.tree.run("systemctl", "start", UNIT)
    test.runs_more(60, "device run after the cure")
    test.figure(group, "after the cure and `reset-failed` the device runs within", time.monotonic() - began, "s", 60)


def reboot_after_limit(test: BoardTest) -> None:
    """The drop-in for a product that wants the board rebooted then."""
    group = "starts that fail for ever, with reboot.conf"
    example = UNITS / f"{UNIT}.service.d" / "reboot.conf.example"
    burst, interval = limits(example)
    drop_in = test.tree.root / DROP_INS / "30-reboot.conf"
    try:
        with _own_limit(test), _locked_out(test):
            shutil.copy(example, drop_in)
            test.tree.run("systemctl", "daemon-reload")
            began = time.monotonic()
            test.tree.run("systemctl", "start", "--no-block", UNIT)
            rebooted = test.tree.goes_down(180)
            test.holds(group, f"{burst} starts (its StartLimitBurst, in {interval})", _starts(test) == burst)
            test.holds(group, "then the board reboots", rebooted)
            test.figure(group, "after the first start", time.monotonic() - began, "s", 120)
    finally:
        drop_in.unlink(missing_ok=True)
    test.tree.boot()
    wait_for(test.page, 60, "metrics page")
    test.runs_more(60, "device run after the reboot")


def limits(path: Path) -> tuple[int, str]:
    """StartLimitBurst and StartLimitIntervalSec of a file of the repository."""
    text = path.read_text()
    burst, interval = (re.findall(rf"(?m)^StartLimit{name}=(.+)$", text)[0] for name in ("Burst", "IntervalSec"))
    return int(burst), interval


@contextmanager
def _own_limit(test: BoardTest) -> Iterator[None]:
    """The test's own drop-in without its limit. The unit is stopped, and its earlier starts are forgotten."""
    quick = test.tree.root / DROP_INS / "90-test.conf"
    kept = quick.read_text()
    test.tree.run("systemctl", "stop", UNIT)
    (test.tree.root / "srv/board/starts").unlink(missing_ok=True)
    quick.write_text("".join(line for line in kept.splitlines(True) if not line.startswith("StartLimit")) + COUNTED)
    try:
        test.tree.run("systemctl", "daemon-reload")
        test.tree.run("systemctl", "reset-failed", UNIT, check=False)
        yield
    finally:
        quick.write_text(kept)
        if test.tree.booted:
            test.tree.run("systemctl", "daemon-reload")


@contextmanager
def _locked_out(test: BoardTest) -> Iterator[None]:
    """What a person would have to find: a folder where the agent's lock belongs."""
    lock = test.tree.root / "var/lib/tidegauge/agent.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    try:
        yield
    finally:
        lock.rmdir()


def _starts(test: BoardTest) -> int:
    """Starts since `_own_limit`, in the first boot of the tree since then."""
    lines = (test.tree.root / "srv/board/starts").read_text().splitlines()
    return lines.count(lines[0])


STEPS = {each.__name__: each for each in (start_limit, reboot_after_limit)}
