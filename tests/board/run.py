"""`make board-test`: install, boot, break, upgrade and remove Tidegauge in a Debian tree with real systemd.

Prints each figure beside its goal, writes them as JSON with `--json FILE`, and ends with 1 where a goal is missed. The
accelerator is the virtual board; nothing of this has run on a real one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console

from board import limits, outages, server
from board.releases import Releases
from board.tree import Tree, bundle, copied, wait_for
from tidegauge.demo.broker import free_port
from tidegauge.demo.settings import PHOTOS
from tidegauge.evaluation.figures import Figure, NotRun, Report, goal, markdown
from tidegauge.evaluation.small_board import SmallBoard
from tidegauge.log_kinds import AGENT_STARTED
from tidegauge.virtualboard.state import BoardState

PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13"}
#: For the test alone: a minute's watchdog would make it a long one.
QUICK = "[Unit]\nStartLimitBurst=100\n[Service]\nWatchdogSec=6\nRestartSec=1\n"
VIRTUAL = "[Service]\nEnvironment=TIDEGAUGE_VIRTUALBOARD=/srv/board/vb\nReadWritePaths=/srv/board\n"


class BoardTest(Releases):
    """The steps, in the order in which they are run; each adds its figures."""

    def __init__(self, tree: Tree, offline: Path) -> None:
        self.tree, self.offline = tree, offline
        self.figures: list[Figure] = []
        self.port = free_port()
        self.board = SmallBoard(tree.root / "srv" / "board")

    def figure(
        self,
        group: str,
        name: str,
        value: float,
        unit: str = "",
        goal_at: float | None = None,
        more: bool = False,
        note: str = "",
    ) -> None:
        found = Figure(group, name, value, unit, goal_at, ">=" if more else "<=", note)
        self.figures.append(found)
        print(f"  {name}: {value:.3g} {unit} {goal(found)} {note}".rstrip(), flush=True)

    def holds(self, group: str, name: str, truth: bool, note: str = "") -> None:
        self.figure(group, name, float(truth), "", 1.0, more=True, note=note)

    def active(self) -> bool:
        return self.tree.unit("ActiveState") == "active"

    def restarts(self) -> int:
        return int(self.tree.unit("NRestarts"))

    def page(self) -> str:
        """The metrics page, from outside of the tree; empty while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=2) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return ""

    def metric(self, start: str) -> float:
        """The sum of the samples whose line begins so; 0 where there is none."""
        lines = [line for line in self.page().splitlines() if line.startswith(start)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def runs_more(self, seconds: float, what: str) -> float:
        """Seconds until the device has run again."""
        began = time.monotonic()
        before = self.metric("tidegauge_inferences_total")
        # A new process counts from zero again.
        wait_for(lambda: self.page() and self.metric("tidegauge_inferences_total") not in (0.0, before), seconds, what)
        return time.monotonic() - began

    def command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.tree.run("/usr/local/bin/tidegauge", *arguments, check=check)

    # ---- the steps ----

    def configure(self) -> None:
        """A board of the smallest model, whose broker is not there."""
        self.board.folder.mkdir(parents=True)
        self.board.build()
        shutil.copytree(PHOTOS, self.board.folder / "photos")
        self.board.configure(
            camera={"source": "/srv/board/photos"},
            metrics={"host": "127.0.0.1", "port": self.port},
            link={"host": "127.0.0.1", "port": free_port()},
        )
        text = (self.board.folder / "agent.toml").read_text()
        text = text.replace('state = "state"', 'state = "/var/lib/tidegauge"').replace(
            'profile = "tiny.toml"', 'profile = "/srv/board/tiny.toml"'
        )
        text = text.replace(str(self.board.folder), "/srv/board")
        (self.tree.root / "etc/tidegauge/agent.toml").write_text(text)
        BoardState(trace_folder="/srv/board/vb/tmp").save(self.board.virtual_folder)
        units = self.tree.root / "etc/systemd/system"
        (units / "tidegauge-agent.service.d/90-test.conf").write_text(QUICK + VIRTUAL.removeprefix("[Service]\n"))
        links = units / "multi-user.target.wants"
        links.mkdir(exist_ok=True)
        (links / "tidegauge-agent.service").symlink_to("../tidegauge-agent.service")
        self.tree.run("chown", "-R", "tidegauge:tidegauge", "/srv/board", "/etc/tidegauge")

    def boot(self) -> None:
        group = "boot, broker off"
        began = time.monotonic()
        self.tree.boot()
        wait_for(self.active, 60, "active unit")
        self.figure(group, "unit active after the start of the boot", time.monotonic() - began, "s", 30)
        wait_for(self.page, 30, "metrics page")
        self.runs_more(60, "device run")
        self.figure(group, "first device runs seen from outside after", time.monotonic() - began, "s", 60)
        self.holds(group, "runs as its own user", self.tree.unit("User") == "tidegauge")
        said = self.tree.run("journalctl", "-q", "-x", "-u", "tidegauge-agent", f"MESSAGE_ID={AGENT_STARTED.id}").stdout
        self.holds(group, "the journal finds the start by its id, and explains it", AGENT_STARTED.subject in said)

    def killed(self) -> None:
        group = "kill -9"
        for worker in ("pipeline", "camera", "shadow"):
            before = self.restarts()
            self._kill(worker)
            seconds = self.runs_more(60, "device run")
            self.figure(group, f"{worker} worker: device runs again after", seconds, "s", 30)
            self.holds(group, f"{worker} worker: the agent itself is not restarted", self.restarts() == before)
        before = self.restarts()
        self.signal("KILL", int(self.tree.unit("MainPID")))
        began = time.monotonic()
        wait_for(lambda: self.restarts() == before + 1 and self.active(), 60, "restarted agent")
        self.runs_more(60, "device run")
        self.figure(group, "agent: device runs again after", time.monotonic() - began, "s", 30)

    def _kill(self, worker: str) -> None:
        """Kill a worker and wait for the next."""
        pid = self.worker(worker)
        self.signal("KILL", pid)
        wait_for(lambda: self.worker(worker) not in (0, pid), 60, f"new {worker} worker")

    def signal(self, name: str, pid: int) -> None:
        self.tree.run("sh", "-c", f"kill -{name} {pid}")  # the shell's own: a minimal tree has no other

    def worker(self, name: str) -> int:
        """Process id of a worker inside of the tree, 0 for none."""
        module = {"pipeline": "tidegauge.pipeline", "camera": "tidegauge.camera", "shadow": "tidegauge.shadow"}[name]
        listing = self.tree.run(
            "sh", "-c", "for p in /proc/[0-9]*; do echo ${p#/proc/} $(tr '\\0' ' ' <$p/cmdline 2>/dev/null); done"
        ).stdout
        found = [int(line.split()[0]) for line in listing.splitlines() if f"{module}.worker" in line]
        return found[0] if found else 0

    def blocked(self) -> None:
        group = "watchdog"
        before = self.restarts()
        began = time.monotonic()
        self.signal("STOP", int(self.tree.unit("MainPID")))
        wait_for(lambda: self.restarts() == before + 1 and self.active(), 90, "restart by the watchdog")
        self.figure(group, "blocked agent is running again after (watchdog of 6 s)", time.monotonic() - began, "s", 30)
        self.runs_more(60, "device run")

    def accelerator_hangs(self) -> None:
        group = "accelerator hangs"
        before = self.restarts()
        self.virtual("inject", "--fail", "hang_in_run")
        began = time.monotonic()
        hung = 'tidegauge_accelerator_restarts_total{model="tiny",reason="hung"}'
        wait_for(lambda: self.metric(hung) > 0, 60, "hang in the metrics")
        self.figure(group, "seen after", time.monotonic() - began, "s", 30)
        time_of_ladder = 20.0
        began = time.monotonic()
        while time.monotonic() - began < time_of_ladder and self.active():
            time.sleep(0.5)
        self.holds(group, f"in {time_of_ladder:g} s of it no restart of the unit", self.restarts() == before)
        self.holds(group, "metrics are still served", bool(self.page()))
        self.virtual("inject")
        self.virtual("reboot")
        began = time.monotonic()
        self.command("alarm", "clear", "--state", "/var/lib/tidegauge")
        self.runs_more(90, "device run after the cure")
        self.figure(
            group, "after the cure and `alarm clear` the device runs again within", time.monotonic() - began, "s", 90
        )

    def virtual(self, *arguments: str) -> None:
        self.tree.run(
            "env", "TIDEGAUGE_VIRTUALBOARD=/srv/board/vb", "/usr/local/bin/tidegauge", "virtualboard", *arguments
        )
        self.tree.run("chown", "-R", "tidegauge:tidegauge", "/srv/board/vb")

    def stopped(self) -> None:
        group = "systemctl stop"
        began = time.monotonic()
        self.tree.run("systemctl", "stop", "tidegauge-agent")
        self.figure(group, "stopped after", time.monotonic() - began, "s", 10)
        self.holds(
            group,
            "by itself, with exit code 0",
            self.tree.unit("Result") == "success" and self.tree.unit("ExecMainStatus") == "0",
            self.tree.unit("Result"),
        )
        listing = self.tree.run(
            "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c '[t]idegauge' || true"
        ).stdout
        self.holds(group, "no process left", listing.strip() == "0", listing.strip())

    def refused(self) -> None:
        group = "configuration that only a person can mend"
        path = self.tree.root / "etc/tidegauge/agent.toml"
        text = path.read_text()
        path.write_text(text.replace("[camera]", "[camara]"))
        self.tree.run("systemctl", "start", "tidegauge-agent", check=False)
        wait_for(lambda: self.tree.unit("ActiveState") == "failed", 30, "failed unit")
        time_failed = self.restarts()
        self.holds(
            group, "unit has failed, without tries", self.tree.unit("ExecMainStatus") == "2" and time_failed == 0
        )
        self.holds(group, "the journal names the key", "camara" in self.tree.journal())
        path.write_text(text)
        self.tree.run("systemctl", "reset-failed", "tidegauge-agent")
        self.tree.run("systemctl", "start", "tidegauge-agent")
        wait_for(self.active, 30, "active unit")

    def disk_full(self) -> None:
        group = "disk full"
        before = self.restarts()
        self.tree.run("systemctl", "stop", "tidegauge-agent")
        self.tree.run("mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "tmpfs", "/var/lib/tidegauge")
        self.tree.run("chown", "tidegauge:tidegauge", "/var/lib/tidegauge")
        self.tree.run("systemctl", "start", "tidegauge-agent")
        wait_for(self.page, 60, "metrics page")
        self.tree.run("sh", "-c", "cat /dev/zero >/var/lib/tidegauge/filler 2>/dev/null || true")
        self.runs_more(60, "device run on a full disk")
        self.holds(group, "goes on running the device", self.active())
        self.holds(group, "no restart of the unit", self.restarts() <= before, str(self.restarts()))
        self.tree.run("rm", "/var/lib/tidegauge/filler")
        self.tree.run("systemctl", "stop", "tidegauge-agent")
        self.tree.run("umount", "/var/lib/tidegauge")
        self.tree.run("systemctl", "start", "tidegauge-agent")
        wait_for(self.page, 60, "metrics page")

    def power_cut(self) -> None:
        group = "power cut while running"
        kept = json.loads(self.command("status", "--state", "/var/lib/tidegauge", "--json").stdout)
        self.tree.pull_plug()
        began = time.monotonic()
        self.tree.boot()
        wait_for(self.active, 60, "active unit")
        self.runs_more(60, "device run")
        self.figure(group, "device runs again after the start of the boot", time.monotonic() - began, "s", 60)
        now = json.loads(self.command("status", "--state", "/var/lib/tidegauge", "--json").stdout)
        self.holds(group, "same board, same artifacts", now["device"] == kept["device"])


#: Steps that are no method of `BoardTest`.
ELSEWHERE = limits.STEPS | outages.STEPS
STEPS = (
    "install",
    "configure",
    "boot",
    "killed",
    "blocked",
    "accelerator_hangs",
    "stopped",
    "refused",
    *limits.STEPS,
    "disk_full",
    "upgraded",
    "power_cut",
    *outages.STEPS,
    "removed",
)
#: Those of a test: the others take a minute and more each, and have the fault tests beside them.
QUICK_STEPS = tuple(step for step in STEPS if step not in ("outage", "cut_in_upload"))


def tools_missing() -> str:
    """What this machine lacks, empty for nothing."""
    if os.geteuid() != 0:
        return "root"
    programs = ("debootstrap", "systemd-nspawn", "nsenter", "script", "gcc", "mosquitto")
    return ", ".join(name for name in programs if shutil.which(name) is None)


def measure(suite: str, steps: tuple[str, ...] = STEPS) -> Report:
    """All steps on a fresh tree. A step that could not be done is a missed goal, with its reason."""
    with copied(suite) as tree, offline(suite) as folder:
        test = BoardTest(tree, folder)
        for step in steps:
            print(step.replace("_", " "), flush=True)
            try:
                if step in ELSEWHERE:
                    ELSEWHERE[step](test)
                else:
                    getattr(test, step)()
            except (TimeoutError, AssertionError, subprocess.TimeoutExpired, OSError) as error:
                test.holds(step, "done", False, str(error).replace("\n", " ")[:300])
                if step in ("install", "configure", "boot"):
                    break
        return Report(0, False, test.figures, [NotRun("board", "on a real AM62A", "no board was at hand")])


@contextmanager
def offline(suite: str) -> Iterator[Path]:
    folder = bundle(PYTHON_OF[suite])
    try:
        yield folder
    finally:
        shutil.rmtree(folder.parent)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", choices=sorted(PYTHON_OF), default="bookworm")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true", help="print the tables of the documentation")
    parser.add_argument("--step", action="append", choices=STEPS, help="only these after install, configure and boot")
    given = parser.parse_args()
    lacking = tools_missing()
    if lacking:
        print(
            f"board-test: this machine lacks {lacking}: tools/servers installs the programs on Debian", file=sys.stderr
        )
        return 2
    steps = STEPS if not given.step else (*STEPS[:3], *(step for step in STEPS[3:] if step in given.step))
    report = measure(given.suite, steps)
    if not given.step:
        guide = server.measure(given.suite)
        report.figures += guide.figures
        report.not_run += guide.not_run
    if given.json is not None:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if given.markdown:
        Console(soft_wrap=True).print(markdown(report), markup=False, highlight=False)
    print(f"board-test: {len(report.missed)} of {len(report.figures)} missed")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
