"""What the agent costs a board, on this machine: each figure beside its goal (`tidegauge bench budget`).

The processes are the product's own, on the virtual board with the smallest model, so the workers' figures hold what the
runtime's own libraries take but no model to speak of. CPU time of imports is counted, not wall time: it doesn't depend
on what else the machine does. Modules are compiled ahead, as `systemd/install` compiles them on a board: a process that
has to compile what it imports keeps the memory of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tidegauge.evaluation import secured_board
from tidegauge.evaluation.figures import Figure, NotRun, Report
from tidegauge.evaluation.process_costs import Costs, children, costs
from tidegauge.evaluation.small_board import INFERENCES, MODEL, SmallBoard, metrics, wait_for
from tidegauge.link.certificate_process import MODULE

MB, MIB = 1e6, 1 << 20
DAY = 86400.0
#: Goals. Milliseconds, seconds, MB, percent of one core, MiB a day.
CLI_GOAL, WORKER_GOAL, RESIDENT_GOAL, CPU_GOAL, WRITTEN_GOAL = 150.0, 2.0, 60.0, 1.0, 20.0
START_GOAL = 30.0
#: Samples and golden rounds of a day at the defaults (`shadow.gap_mean`, `golden.interval`).
SAMPLES_A_DAY, ROUNDS_A_DAY = DAY / 60.0, DAY / 900.0
#: Of all phases, and of one more in which the agent's CPU time is looked at: what many cameras give.
FRAMES_A_SECOND, MORE_FRAMES = 10.0, 30.0
#: Seconds of each phase; how often an import is repeated, the best counts.
PHASE, QUICK_PHASE, REPEATS = 60.0, 15.0, 5
#: Seconds after the first device run until the agent knows how long one takes, and has written it down.
SETTLE = 20.0
START_SECONDS = 300.0
#: The package that signs: mapped into an agent that has signed, and into no other.
SIGNER = "nacl"
#: What is imported by the first use.
LATER = ("cryptography.x509", "nacl.signing")
WORKERS = ("camera", "pipeline", "shadow")
WORKER_MODULES = {
    "camera": "camera.worker",
    "pipeline": "pipeline.worker",
    "shadow": "shadow.worker",
    "trace": "pipeline.trace_worker",
}
OK = f'tidegauge_shadow_samples_total{{model="{MODEL}",result="ok"}}'
ROUNDS = f'tidegauge_known_answer_checks_total{{model="{MODEL}",result="ok",side="device"}}'

CONNECTED, CERTIFICATE = "tidegauge_mqtt_connected", 'tidegauge_certificate_expiry_timestamp_seconds{use="link"}'
CAPTURED = 'tidegauge_captures_total{result="captured"}'
ACCEPTED = f'tidegauge_acceptance_progress_ratio{{model="{MODEL}"}}'
ACCEPTANCE_SECONDS, CAPTURE_SECONDS = 600.0, 300.0

#: No other tables of the configuration.
ALIKE: Mapping[str, Any] = {}

Progress = Callable[[str], None]


class Seen(msgspec.Struct, frozen=True):
    """All processes of one agent at one moment, and what it had done by then."""

    at: float
    processes: dict[str, Costs]
    samples: float
    golden: float
    frames: float

    @property
    def written(self) -> int:
        return sum(each.written for each in self.processes.values())


def evaluate(quick: bool, progress: Progress) -> Report:
    """Raises TimeoutError where the agent doesn't start."""
    with tempfile.TemporaryDirectory(prefix="tidegauge-budget-") as folder, _compiled(Path(folder) / "code"):
        return _evaluate(Path(folder) / "board", quick, progress)


def _evaluate(folder: Path, quick: bool, progress: Progress) -> Report:
    seconds = QUICK_PHASE if quick else PHASE
    figures = imports(progress)
    folder.mkdir()
    board = SmallBoard(folder)
    board.build()
    new = board.copy(folder / "secured")  # before anything is captured: captures of one cause have a limit
    progress(f"idle: frames at {FRAMES_A_SECOND:g} a second, no samples, {seconds:g} s")
    with _agent(board, {"gap_mean": 1e6, "gap_floor": 0.0}) as (pid, url, started):
        figures += started
        idle, still = _phase(pid, url, seconds)
    progress(f"idle: frames at {MORE_FRAMES:g} a second, {seconds:g} s")
    with _agent(board, {"gap_mean": 1e6, "gap_floor": 0.0}, MORE_FRAMES) as (pid, url, _):
        busier, later = _phase(pid, url, seconds)
    progress(f"sampling: {seconds:g} s")
    with _agent(board, {"gap_mean": 1.0, "gap_floor": 0.2, "cpu_share": 1.0}) as (pid, url, _):
        # Acceptance first: what is written in steady state is another matter.
        wait_for(lambda: metrics(url)[ACCEPTED] == 1, ACCEPTANCE_SECONDS, "reference")
        before, after = _phase(pid, url, seconds)
    progress("signing: a capture's bundle")
    with board.remote_log(), _agent(board, {"gap_mean": 1e6, "gap_floor": 0.0}) as (pid, url, _):
        figures += _signed(board, pid, url)
    figures += _figures(idle, still, before, after)
    progress("with a client certificate: idle, then a capture's bundle, signed and encrypted")
    secured, not_run = _secured(new)
    return Report(0, quick, [*figures, _at_more_frames(busier, later), *secured], not_run)


@contextmanager
def _compiled(folder: Path) -> Iterator[None]:
    """Every process started meanwhile finds its modules compiled in `folder`."""
    before = {name: os.environ.pop(name, None) for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")}
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    try:
        modules = [*LATER, "tidegauge.cli.agent", *(f"tidegauge.{module}" for module in WORKER_MODULES.values())]
        subprocess.run([sys.executable, "-c", f"import {', '.join(modules)}"], check=True, timeout=START_SECONDS)
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


# ---- imports ----


def imports(progress: Progress) -> list[Figure]:
    """CPU time until the command line can answer, and until a worker waits for its orders."""
    progress("imports")
    group = "start"
    cli = _import_seconds("tidegauge.cli")
    figures = [Figure(group, "command line: import", 1000 * cli, "ms", CLI_GOAL, "<=", "CPU time, best of 5")]
    for worker, module in WORKER_MODULES.items():
        seconds = _import_seconds(f"tidegauge.{module}")
        figures.append(Figure(group, f"{worker} worker: ready for its model", seconds, "s", WORKER_GOAL, "<="))
    return figures


def _import_seconds(module: str) -> float:
    """CPU seconds of a new interpreter that imports the module, its own start included."""
    code = f"import time, {module}; print(time.process_time())"
    runs = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=START_SECONDS)
        for _ in range(REPEATS)
    )
    return min(float(each.stdout) for each in runs)


# ---- a running agent ----


@contextmanager
def _agent(
    board: SmallBoard, shadow: Mapping[str, Any], frames: float = FRAMES_A_SECOND, more: Mapping[str, Any] = ALIKE
) -> Iterator[tuple[int, str, list[Figure]]]:
    config = board.configure(
        camera={"frames_per_second": frames},
        shadow=shadow,
        acceptance={"samples": 20},
        contexts={"samples": 16},
        golden={"interval": 20.0},
        **more,
    )
    began = time.monotonic()
    with board.agent(config) as agent:
        url = board.url(agent)
        up = time.monotonic() - began
        wait_for(lambda: metrics(url)[INFERENCES] > 0, START_SECONDS, "device run")
        first = time.monotonic() - began
        wait_for(lambda: len(_seen(agent.pid, url).processes) == 1 + len(WORKERS), START_SECONDS, "workers")
        time.sleep(SETTLE)  # the start's own work is none of the steady state's
        yield (
            agent.pid,
            url,
            [
                Figure("start", "agent: metrics are served after", up, "s", START_GOAL, "<=", "wall time"),
                Figure("start", "agent: first device run after", first, "s", note="wall time"),
            ],
        )


def _signed(board: SmallBoard, pid: int, url: str, agent: str = "agent") -> list[Figure]:
    """Memory of the agent once it has signed, which loads what checks a collector's signed answers too.

    Raises TimeoutError where no capture ends, RuntimeError where it is refused or the library is not loaded.
    """
    before = costs(pid).resident
    asked = board.tidegauge("agent", "capture")
    if asked.returncode:
        raise RuntimeError(f"no capture, so no signature: {asked.stdout}{asked.stderr}")
    wait_for(lambda: metrics(url)[CAPTURED] == 1, CAPTURE_SECONDS, "capture")
    runs = metrics(url)[INFERENCES]
    wait_for(lambda: metrics(url)[INFERENCES] > runs, CAPTURE_SECONDS, "device run after the capture")
    time.sleep(SETTLE)
    if not loaded(pid, SIGNER):
        raise RuntimeError("the agent has captured, and has not loaded the library that signs")
    after = costs(pid)
    beyond = (after.resident - before) / MB
    name, note = (
        f"{agent}, after its first signature",
        f"{beyond:.1f} more than before: a capture with its signed bundle",
    )
    return [
        Figure("memory", f"{name}: resident", after.resident / MB, "MB", RESIDENT_GOAL, "<=", note),
        Figure("memory", f"{name}: peak", after.peak / MB, "MB"),
    ]


def _secured(board: SmallBoard) -> tuple[list[Figure], list[NotRun]]:
    """Memory of an agent with a certificate of its own, whose bundles are encrypted, and of what reads the certificate.

    `board`: one that has captured nothing yet. Raises TimeoutError where it doesn't connect.
    """
    name, missing = "agent with a client certificate", secured_board.missing()
    if missing:
        return [], [NotRun("memory", name, missing)]
    with secured_board.secured(board, board.folder / "certificates") as settings, board.remote_log():
        shadow = {"gap_mean": 1e6, "gap_floor": 0.0}
        with _agent(board, shadow, more=settings) as (pid, url, _):
            wait_for(lambda: metrics(url)[CONNECTED] == 1, START_SECONDS, "connection")
            wait_for(lambda: metrics(url).get(CERTIFICATE, 0) > time.time(), START_SECONDS, "end of the certificate")
            resident = costs(pid).resident / MB
            figures = [Figure("memory", f"{name}, idle: resident", resident, "MB", RESIDENT_GOAL, "<=")]
            figures += _signed(board, pid, url, name)
        return [*figures, _reader(Path(settings["link"]["cert"]))], []


def _reader(certificate: Path) -> Figure:
    """The process that reads a certificate, once for each."""
    code = f"from {MODULE} import main; main('read'); print('', time.process_time(), open('/proc/self/status').read())"
    command = [sys.executable, "-c", f"import time; {code}"]
    with certificate.open("rb") as pem:
        done = subprocess.run(command, stdin=pem, capture_output=True, text=True, check=True, timeout=START_SECONDS)
    said = re.search(r" (?P<cpu>\S+) Name:.*VmHWM:\s+(?P<peak>\d+) kB", done.stdout, re.DOTALL)
    if said is None:
        raise RuntimeError(f"the process that reads a certificate told no costs: {done.stdout}{done.stderr}")
    note = f"once for each certificate: {float(said['cpu']):.2g} s of CPU time"
    return Figure("memory", "process that reads the certificate: peak", int(said["peak"]) * 1024 / MB, "MB", note=note)


def loaded(pid: int, library: str) -> bool:
    """Whether a file of this Python package is mapped into the process."""
    return f"/{library}/" in Path(f"/proc/{pid}/maps").read_text()


def _phase(pid: int, url: str, seconds: float) -> tuple[Seen, Seen]:
    first = _seen(pid, url)
    time.sleep(seconds)
    return first, _seen(pid, url)


def _seen(pid: int, url: str) -> Seen:
    page = metrics(url)
    found = {"agent": costs(pid)}
    for child, command in children(pid).items():
        for worker in WORKERS:
            if f"tidegauge.{worker}.worker" in command:
                found[worker] = costs(child)
    return Seen(time.monotonic(), found, page[OK], page[ROUNDS], page[INFERENCES])


# ---- the figures ----


def _figures(idle: Seen, still: Seen, before: Seen, after: Seen) -> list[Figure]:
    figures: list[Figure] = []
    resident = still.processes["agent"].resident / MB
    figures.append(Figure("memory", "agent, idle: resident", resident, "MB", RESIDENT_GOAL, "<="))
    for name, process in after.processes.items():
        goal = RESIDENT_GOAL if name == "agent" else None
        figures += [
            Figure("memory", f"{name}: resident", process.resident / MB, "MB", goal, "<="),
            Figure("memory", f"{name}: peak", process.peak / MB, "MB"),
        ]
    for words, one, other in (("idle", idle, still), ("sampling", before, after)):
        seconds = other.at - one.at
        note = "" if words == "idle" else f"{(other.samples - one.samples) / seconds:.2g} samples a second"
        for name, process in other.processes.items():
            share = 100 * (process.cpu - one.processes[name].cpu) / seconds
            goal = CPU_GOAL if name == "agent" and words == "idle" else None
            figures.append(Figure("CPU, share of one core", f"{name}, {words}", share, "%", goal, "<=", note))
        agent, earlier = other.processes["agent"], one.processes["agent"]
        woken = (agent.wakeups - earlier.wakeups) / seconds
        figures.append(Figure("wake-ups and threads", f"agent, {words}: wake-ups a second", woken, "/s", note=note))
    figures.append(_agent_at_defaults(idle, still, before, after))
    figures += [
        Figure("wake-ups and threads", f"{name}: threads", process.threads, "")
        for name, process in after.processes.items()
    ]
    return figures + _written(idle, still, before, after)


def _at_more_frames(one: Seen, other: Seen) -> Figure:
    name = f"agent, idle, at {MORE_FRAMES:g} frames a second"
    rate = (other.frames - one.frames) / (other.at - one.at)
    return Figure("CPU, share of one core", name, 100 * _cpu(one, other), "%", note=f"{rate:.1f} device runs a second")


def _agent_at_defaults(idle: Seen, still: Seen, before: Seen, after: Seen) -> Figure:
    """CPU of the agent at a sample a minute: idle's, and what each sample has cost beyond it."""
    rest = _cpu(idle, still)
    extra = _cpu(before, after) - rest
    samples = max(1.0, after.samples - before.samples) / (after.at - before.at)
    share = 100 * (rest + max(0.0, extra) / samples * SAMPLES_A_DAY / DAY)
    note = "idle, and the cost of a sample at one a minute"
    return Figure("CPU, share of one core", "agent, at the default gap", share, "%", CPU_GOAL, "<=", note)


def _cpu(one: Seen, other: Seen) -> float:
    return (other.processes["agent"].cpu - one.processes["agent"].cpu) / (other.at - one.at)


def _written(idle: Seen, still: Seen, before: Seen, after: Seen) -> list[Figure]:
    """Bytes that reached the block layer; a journal of the file system itself is not in them."""
    group = "bytes written, all processes"
    rest = (still.written - idle.written) / (still.at - idle.at)
    samples = max(1.0, after.samples - before.samples)
    beyond = max(0.0, after.written - before.written - rest * (after.at - before.at))
    # Golden rounds are in both phases, at one in 20 s; a day at the defaults has fewer.
    day = rest * DAY + beyond / samples * SAMPLES_A_DAY
    return [
        Figure(group, "idle, a day of it", rest * DAY / MIB, "MiB"),
        Figure(group, "a sample", beyond / samples / 1024, "KiB", note=f"{samples:.0f} samples"),
        Figure(group, "a day at a sample a minute", day / MIB, "MiB", WRITTEN_GOAL, "<="),
    ]
