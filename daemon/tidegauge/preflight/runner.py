"""Runs the checks: each in a child with a deadline, some at a time, answered in their order.

A check that hangs, aborts or exits is a failed check with that reason; it can't block the others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import msgspec

from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, Result, failed, not_applicable
from tidegauge.preflight.registry import load

#: How many checks run at a time.
AT_A_TIME = min(4, os.cpu_count() or 1)
#: Seconds for a killed check to be gone; one in an uninterruptible call of a driver never is.
KILL_GRACE = 2.0
_TAIL_BYTES = 4096


class _Running:
    """The processes of the checks that are under way, so that they end with the command (Ctrl-C)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def add(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.add(process)
            if self._ended:
                _kill(process)

    def remove(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.discard(process)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for process in self._processes:
                if process.returncode is None:  # a reaped process's number may be another's
                    _kill(process)


def run_all(modules: Sequence[str], context: Context) -> Iterator[Result]:
    """The results in the order of `modules`, each as soon as those before it are known.

    Leaving early (Ctrl-C, `close()`) ends the checks that are under way.
    """
    running = _Running()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        try:
            yield from pool.map(lambda module: run_one(module, context, running), modules)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            running.end()


def run_one(module: str, context: Context, running: _Running | None = None) -> Result:
    """The result of the check in `module`; never raises for what the check does."""
    probe = load(module)
    started = time.monotonic()
    finding = _excused(probe, context) or _in_child(module, probe, context, running or _Running())
    seconds = round(time.monotonic() - started, 3)
    return Result(probe.id, probe.title, finding.status, finding.found, finding.cure, seconds)


def _excused(probe: Probe, context: Context) -> Finding | None:
    """Why a check need not be run."""
    if probe.place == "board" and context.virtual:
        return not_applicable("the virtual board has none")
    if probe.place == "virtual" and not context.virtual:
        return not_applicable("of the virtual board only")
    if probe.needs_settings and context.settings is None:
        return not_applicable("needs a configuration that can be read (--config agent.toml)")
    return None


def _in_child(module: str, probe: Probe, context: Context, running: _Running) -> Finding:
    seconds = probe.deadline(context)
    with tempfile.TemporaryFile() as noise:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegauge.preflight.child", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            start_new_session=True,
        )
        running.add(process)
        with process:
            try:
                answer, _ = process.communicate(msgspec.json.encode(context), timeout=seconds)
            except subprocess.TimeoutExpired:
                return _hung(process, seconds, _last_line(noise))
            finally:
                running.remove(process)
        return _answer(process.returncode, answer, _last_line(noise))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended in this very moment
        os.killpg(process.pid, signal.SIGKILL)


def _hung(process: subprocess.Popen[bytes], seconds: float, said: str) -> Finding:
    _kill(process)
    gone = True
    try:
        process.wait(KILL_GRACE)
    except subprocess.TimeoutExpired:
        gone = False
        process.returncode = -signal.SIGKILL  # nobody waits for it any more: it is left to init
    stuck = "" if gone else f" Process {process.pid} can't be killed: it is stuck in a driver, reboot the board."
    return failed(
        f"the check did not answer within {seconds:g} s{_quoted(said)}.{stuck}",
        "something below it hangs: a driver, a network file system, or the accelerator; see the kernel's log (dmesg)",
    )


def _answer(code: int, answer: bytes, said: str) -> Finding:
    if code == 0:
        try:
            return msgspec.json.decode(answer, type=Finding)
        except msgspec.DecodeError as error:
            said = said or str(error)
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return failed(
        f"the check's process {how} without an answer{_quoted(said)}",
        "a library that it loads or a file that it reads is damaged or missing: the last line names it",
    )


def _quoted(said: str) -> str:
    return f", its last line: {said}" if said else ""


def _last_line(noise: IO[bytes]) -> str:
    size = noise.seek(0, os.SEEK_END)
    noise.seek(max(0, size - _TAIL_BYTES))
    lines = noise.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:400] if lines else ""
