"""`make board-test-arm`: install offline, run the tests of the pure core and a round of the demo, on other Debians.

Debian 12 for aarch64 (Python 3.11) under qemu's user-mode emulation, and Debian 13 for this machine (Python 3.13).
Prints each figure beside its goal, writes them as JSON with `--json FILE`, and ends with 1 where a goal is missed. No
Debian has Python 3.12: its wheels are resolved and hashed, and nothing is run with it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console

from board import offline
from board.emulated import CPU, DEFINITIONS, EmulatedTree, emulated, foreign_tree
from board.tree import REPOSITORY, Tree, base_tree
from tidegauge.demo.settings import PHOTOS
from tidegauge.evaluation.figures import Figure, NotRun, Report, goal, markdown
from tidegauge.evaluation.small_board import SmallBoard
from tidegauge.virtualboard.state import BoardState

#: Suite, machine and Python of each tree.
TREES = {"bookworm-aarch64": ("bookworm", "aarch64", "3.11"), "trixie-x86_64": ("trixie", "x86_64", "3.13")}
#: The tests of the pure core. Left out are those that take seconds each here and therefore minutes under emulation, and
#: two that speak to a broker, which these trees do not have.
PURE = (
    *("losses", "detectors", "tidl", "link", "shadow", "spool/test_planner.py", "test_attribution.py"),
    *("test_sampler.py", "compare/test_compare_matching.py", "compare/test_compare_exact.py"),
    *("compare/test_compare_sums.py", "compare/test_compare_operators.py"),
)
LEFT_OUT = (
    *("keep_the_promise", "large_nonsense", "no_healthy_scene_has_a_symptom", "never_over_the_limits"),
    *("test_chunks_fit_what_the_broker_announces_in_connack", "test_no_packet_waits_for_nagles_algorithm"),
)
#: Nobody has started these in the tree, and the check must say so.
AWAY = {"remote-log", "broker"}
KEPT = ("numpy", "onnxruntime", "cv2")
PROGRAM = "/usr/local/bin/tidegauge"
PYTHON = "/opt/tidegauge/current/bin/python"
SITE = "usr/lib/python3/dist-packages"
#: The deadlines of the demo and of its agent are those of a PC; under emulation each is this many times as long.
PATIENCE = 8
DEADLINES = ("START_SECONDS", "ACCEPTANCE_SECONDS", "ALARM_SECONDS", "REPORT_SECONDS")
#: Under emulation a frame a second instead of ten, or camera and accelerator take both cores and the shadow worker,
#: which runs only where nobody else wants to (SCHED_IDLE), never comes to its turn; fewer of them make an acceptance.
SLOW_CLIP = "settings.FRAMES_PER_SECOND, settings.SCENE_FRAMES, settings.ACCEPTANCE_SAMPLES = 1.0, 2, 80"
ROUND = """
import sys
from tidegauge.demo import settings
{clip}
from tidegauge.demo import run
for name in {deadlines}:
    setattr(run, name, getattr(run, name) * {patience})
made = run.agent_settings
def patient(*given, **named):
    found = made(*given, **named)
    found["runtime"] |= {{"start_timeout": 60.0 * {patience}, "first_run_timeout": 60.0 * {patience}}}
    found["runtime"] |= {{"run_timeout": 20.0 * {patience}}}
    found["shadow"]["measure_timeout"] = 60.0 * {patience}
    found["camera"] |= {{"open_timeout": 10.0 * {patience}, "read_timeout": 5.0 * {patience}}}
    return found
run.agent_settings = patient
from tidegauge.cli import main
sys.exit(main())
"""
STEPS = ("install", "command", "unit_tests", "demo")


class Elsewhere:
    """The steps on one tree; each adds its figures."""

    def __init__(self, name: str, tree: Tree, scratch: Path) -> None:
        self.suite, self.machine, self.python = TREES[name]
        self.tree, self.scratch = tree, scratch
        self.emulated = self.machine != os.uname().machine
        how = f"by qemu ({CPU})" if self.emulated else "native"
        self.group = f"Debian {'12' if self.suite == 'bookworm' else '13'}, {self.machine} {how}"
        self.figures: list[Figure] = []

    def figure(self, name: str, value: float, unit: str = "", at: float | None = None, more: bool = False) -> None:
        found = Figure(self.group, name, value, unit, at, ">=" if more else "<=")
        self.figures.append(found)
        print(f"  {name}: {value:.4g} {unit} {goal(found)}".rstrip(), flush=True)

    def holds(self, name: str, truth: bool, note: str = "") -> None:
        found = Figure(self.group, name, float(truth), "", 1.0, ">=", note)
        self.figures.append(found)
        print(f"  {name}: {truth:d} {goal(found)} {note}".rstrip(), flush=True)

    # ---- the steps ----

    def install(self) -> None:
        """By `install --offline`, beside packages of the image's own, which it must leave alone."""
        site = self.tree.root / SITE
        image, folder = self.scratch / "image", offline.bundle(self.machine, self.python)
        offline.download(self.machine, self.python, offline.IMAGE, image)
        offline.unpack(image, site)
        before = _state(site)
        # In the folder too, so that the install has to choose.
        for wheel in image.glob("*.whl"):
            shutil.copy(wheel, folder / "wheels")
        offline.sums(folder / "wheels")
        shutil.copytree(folder, self.tree.root / "root/bundle")
        offline.remove(folder)
        began = time.monotonic()
        said = self.tree.run("/root/bundle/install", "--offline", "/root/bundle/wheels", "--no-start", timeout=900)
        self.figure("offline install", time.monotonic() - began, "s", 600)
        kept = [name for name in KEPT if f"kept {name}" in said.stdout]
        self.holds("image's own packages kept, and said so", len(kept) == len(KEPT), ", ".join(kept))
        self.holds("image's own packages untouched", _state(site) == before)
        (release,) = (self.tree.root / "opt/tidegauge/releases").glob(f"*/lib/python{self.python}/site-packages")
        brought = [name for name in KEPT if (release / name).exists()]
        self.holds("no copy of them beside", not brought, ", ".join(brought))

    def command(self) -> None:
        code = "import platform, sys; print(platform.machine(), *sys.version_info[:2])"
        found = self.tree.run(PYTHON, "-c", code).stdout.split()
        wanted = [self.machine, *self.python.split(".")]
        self.holds("runs on the machine and the Python that it is named for", found == wanted, " ".join(found))
        said = self.tree.run(PROGRAM, "version", timeout=300).stdout.strip()
        self.holds("`tidegauge version` answers", bool(re.search(r"\d+\.\d+\.\d+", said)), said)
        self.bring_tools()  # the virtual board, in the accelerator's place, stands on them
        board = SmallBoard(self.tree.root / "srv/board")
        board.folder.mkdir(parents=True)
        board.build()
        shutil.copytree(PHOTOS, board.folder / "photos")
        board.configure(camera={"source": str(board.folder / "photos")})
        BoardState(trace_folder="/srv/board/vb/tmp").save(board.virtual_folder)
        path = board.folder / "agent.toml"
        path.write_text(path.read_text().replace(str(board.folder), "/srv/board"))
        environment = ["env", "TIDEGAUGE_VIRTUALBOARD=/srv/board/vb"]
        asked = [PROGRAM, "check", "--config", "/srv/board/agent.toml", "--json"]
        done = self.tree.run(*environment, *asked, check=False, timeout=600)
        checks = json.loads(done.stdout)["checks"]
        self.figure("`tidegauge check`: checks that gave an answer", len(checks), "", 10, more=True)
        failed = {each["id"]: each["found"] for each in checks if each["status"] == "failed"}
        self.holds("`tidegauge check`: names what is away, and nothing else", set(failed) == AWAY, _sentences(failed))
        self.holds("`tidegauge check`: its exit code says so", done.returncode == 2, str(done.returncode))

    def bring_tools(self) -> None:
        """What only a PC has: the collector's packages, the tests' and the demo's. Not part of what is installed."""
        folder = self.scratch / "pc"
        if folder.is_dir():
            return
        offline.download(self.machine, self.python, (), folder, REPOSITORY / "requirements/collector.lock")
        offline.download(self.machine, self.python, offline.TESTING + offline.DEMO, folder)
        own = tuple(name.lower() for name in offline.IMAGE)
        offline.unpack(folder, self.tree.root / SITE, skip=own)

    def unit_tests(self) -> None:
        self.bring_tools()
        work = self.tree.root / "srv/tidegauge"
        work.mkdir(parents=True)
        shutil.copytree(REPOSITORY / "tests", work / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / "pyproject.toml", work)
        samples = Path(os.environ.get("TIDEGAUGE_SAMPLES", REPOSITORY.parent / "shared" / "samples"))
        if samples.is_dir():  # else the tests that read them say so, and are missed
            shutil.copytree(samples, work / "samples")
        chosen = [f"tests/unit/{name}" for name in PURE]
        left = " and ".join(f"not {name}" for name in LEFT_OUT)
        # Times are no figures under emulation: no deadline for an example, and minutes for a test.
        options = [
            "-q",
            "-p",
            "no:cacheprovider",
            "--timeout=900",
            "--hypothesis-profile=ci",
            "-m",
            "not slow",
            "-k",
            left,
        ]
        here = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "--collect-only", *chosen],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=300,
        )
        counted = re.search(r"(\d+)(?:/\d+)? tests? collected", here.stdout)
        if counted is None:
            raise AssertionError(f"no test was collected here: {here.stdout[-300:]}")
        began = time.monotonic()
        start = 'cd /srv/tidegauge && TIDEGAUGE_SAMPLES=/srv/tidegauge/samples exec "$0" -m pytest "$@"'
        line = ["sh", "-c", start, PYTHON, *options, *chosen]
        done = self.tree.run(*line, check=False, timeout=1500)
        closing = done.stdout.strip().splitlines()[-1:]
        ended = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", " ".join(closing))}
        (self.scratch / "pytest.log").write_text(done.stdout + done.stderr)
        self.figure("unit tests of the pure core: passed", ended.get("passed", 0), "", int(counted[1]), more=True)
        self.holds("unit tests of the pure core: none failed", done.returncode == 0, _failures(done.stdout))
        self.figure("unit tests of the pure core: time", time.monotonic() - began, "s")

    def demo(self) -> None:
        self.bring_tools()
        clip = SLOW_CLIP if self.emulated else ""
        (self.tree.root / "srv/round.py").write_text(ROUND.format(clip=clip, deadlines=DEADLINES, patience=PATIENCE))
        began = time.monotonic()
        asked = [
            PYTHON,
            "/srv/round.py",
            "demo",
            "--once",
            "--seed",
            "1",
            "--json",
            "/srv/round.json",
            "--keep",
            "/srv/demo",
        ]
        done = self.tree.run(*asked, check=False, timeout=3600)
        # Under emulation a time says nothing of a board: the demo's own deadlines bound it.
        self.figure("one round of the demo: time", time.monotonic() - began, "s", None if self.emulated else 1200)
        file = self.tree.root / "srv/round.json"
        found = json.loads(file.read_text()) if file.is_file() else {}
        why = found.get("why") or " ".join((done.stdout + done.stderr).split())[-250:]
        if not found.get("right"):
            why += " | " + _last_words(self.tree.root / "srv/demo/logs/agent.log")
        self.holds("one round of the demo: the report names the injected layer", bool(found.get("right")), why)


def _sentences(failed: dict[str, str]) -> str:
    """What was expected by its id alone, the rest as the check says it."""
    return "; ".join(name if name in AWAY else f"{name}: {found}" for name, found in failed.items())


def _state(site: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file of the image's own packages."""
    files = [path for name in KEPT for path in (site / name).rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.suffix != ".pyc"}


def _last_words(log: Path) -> str:
    """The names of the errors in a log and its last lines: a traceback of groups ends in a frame that says nothing."""
    if not log.is_file():
        return f"no {log.name}"
    lines = [line.strip(" |+-") for line in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return " / ".join([*errors[-4:], *[line for line in lines if line][-3:]])[-600:]


def _failures(output: str) -> str:
    """The first three, by name."""
    return ", ".join(re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)[:3])


@contextmanager
def laid(name: str) -> Iterator[tuple[Tree, Path]]:
    """A copy of the named tree, and a folder for what it is given; both removed at the end."""
    suite, machine, _ = TREES[name]
    with emulated(machine):
        base = base_tree(suite) if machine == os.uname().machine else foreign_tree(suite, machine)
        folder = Path(tempfile.mkdtemp(prefix="tidegauge-elsewhere-"))
        try:
            subprocess.run(["cp", "-a", str(base), str(folder / "tree")], check=True, timeout=300)
            tree = Tree if machine == os.uname().machine else EmulatedTree
            yield tree(folder / "tree"), folder
        finally:
            shutil.rmtree(folder)


def resolved() -> list[Figure]:
    """Whether the bundle for boards has a wheel of each package for each Python."""
    group = "wheels for boards, aarch64"
    folder = offline.bundle("aarch64", " ".join(offline.PYTHONS))
    found = []
    for python in offline.PYTHONS:
        lacking = offline.without_wheel(folder / "wheels", "aarch64", python)
        note = ", ".join(lacking)
        found.append(Figure(group, f"Python {python}: packages without a wheel", len(lacking), "", 0.0, "<=", note))
    count = len(list((folder / "wheels").glob("*.whl")))
    found.append(Figure(group, "wheels, with a hash each", count, "", 1.0))
    offline.remove(folder)
    for each in found:
        print(f"  {each.name}: {each.value:g} {goal(each)} {each.note}".rstrip(), flush=True)
    return found


def measure(names: list[str], steps: list[str]) -> Report:
    """A step that could not be done is a missed goal, with its reason."""
    print("wheels", flush=True)
    figures = resolved()
    for name in names:
        with laid(name) as (tree, scratch):
            test = Elsewhere(name, tree, scratch)
            for step in steps:
                print(f"{test.group}: {step.replace('_', ' ')}", flush=True)
                try:
                    getattr(test, step)()
                except (AssertionError, subprocess.SubprocessError, OSError, ValueError) as error:
                    test.holds(f"{step} done", False, str(error).replace("\n", " ")[-300:])
                    if step == "install":
                        break
            figures += test.figures
    never = [
        NotRun("Python 3.12", "anything at all", "no Debian has it; its wheels are resolved and hashed, no more"),
        NotRun("aarch64", "on a real machine", "emulated by qemu: times are no measure of a board"),
    ]
    return Report(0, False, figures, never)


def tools_missing() -> str:
    """What this machine lacks, empty for nothing."""
    if os.geteuid() != 0:
        return "root"
    lacking = [name for name in ("debootstrap", "systemd-nspawn") if shutil.which(name) is None]
    if not (DEFINITIONS / "qemu-aarch64.conf").is_file():
        lacking.append("qemu-user-static")
    return ", ".join(lacking)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", action="append", choices=sorted(TREES), help="only this one")
    parser.add_argument("--step", action="append", choices=STEPS, help="only these, after the install")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true", help="print the tables of the documentation")
    given = parser.parse_args()
    lacking = tools_missing()
    if lacking:
        print(f"board-test-arm: this machine lacks {lacking}: on Debian, apt-get install it as root", file=sys.stderr)
        return 2
    steps = ["install", *(step for step in STEPS[1:] if not given.step or step in given.step)]
    report = measure(given.tree or list(TREES), steps)
    if given.json is not None:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if given.markdown:
        Console(soft_wrap=True).print(markdown(report), markup=False, highlight=False)
    for row in report.not_run:
        print(f"not run: {row.group}: {row.name}: {row.reason}")
    print(f"board-test-arm: {len(report.missed)} of {len(report.figures)} missed")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
