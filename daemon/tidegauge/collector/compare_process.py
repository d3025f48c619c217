"""Runs `tidegauge compare` on one bundle in a process of its own, with limits: a bundle is input from elsewhere."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidegauge.collector.config import ComparisonConfig

JSON, HTML, LOG = "comparison.json", "report.html", "compare.log"
#: The command, without its arguments.
COMPARE = (sys.executable, "-m", "tidegauge", "compare")
#: Runs a program that ends with its parent: a collector that is killed must not leave comparisons behind.
_TETHER = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
_JSON_LIMIT = 256 << 20
_LOG_TAIL = 2000


class ComparisonFailed(Exception):
    """The comparison gave no answer, and would give none if run again: its input is unusable or over a limit."""


class ComparisonCrashed(Exception):
    """The comparison ended without an answer for a reason that may not come again."""


class Interrupted(BaseException):
    """The collector is stopping. Not an Exception: nothing may record it as a comparison's end."""


class Outcome(msgspec.Struct, frozen=True):
    """The part of a comparison that is kept in the database. `coverage` in 0…1, `seconds` of the comparison."""

    exit_code: int
    sentence: str
    culprit: str
    culprit_cause: str
    coverage: float
    seconds: float


class NamedCulprit(msgspec.Struct, frozen=True):
    layer: str
    cause: str


class CoverageShare(msgspec.Struct, frozen=True):
    share: Annotated[float, Meta(ge=0, le=1)]


class _Answer(msgspec.Struct, frozen=True):
    """What the collector reads of `compare.types.Comparison`, without importing all that the comparison needs."""

    exit_code: Literal[0, 1, 3]
    sentence: str
    culprits: tuple[NamedCulprit, ...]
    coverage: CoverageShare
    seconds: float


class CompareProcess:
    """Starts comparisons and can stop them all."""

    def __init__(self, limits: ComparisonConfig, program: tuple[str, ...] = COMPARE) -> None:
        self._limits, self._program = limits, program
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def stop(self) -> None:
        """End running comparisons; `run` raises Interrupted in their threads."""
        with self._lock:
            self._stopping = True
            for process in self._running:
                _kill(process)

    def run(self, bundle: Path, tempdir: Path | None, output: Path, model: Path | None = None) -> Outcome:
        """Compare the bundle folder; JSON, HTML and the log go to the folder `output`. `model`: where it holds none.

        Raises ComparisonFailed, ComparisonCrashed, Interrupted.
        """
        arguments = [str(bundle)]
        arguments += ["--tempdir", str(tempdir)] if tempdir is not None else []
        arguments += ["--model", str(model)] if model is not None else []
        return self.execute(arguments, output)

    def execute(self, arguments: list[str], output: Path) -> Outcome:
        """Compare what `arguments` of `tidegauge compare` name; the rest as `run`."""
        command = [*self._program, *arguments, "--json", str(output / JSON), "--html", str(output / HTML)]
        code = self._wait(command, output / LOG)
        tail = _tail(output / LOG)
        if code in (0, 1, 3) and (output / JSON).is_file():  # Python's own exit code for a crash is 1 as well
            try:
                return _outcome(output / JSON)
            except msgspec.DecodeError as error:
                raise ComparisonCrashed(f"the comparison's JSON can't be read ({error}): {tail}") from error
        if code == 2:
            raise ComparisonFailed(f"the bundle can't be compared: {tail}")
        if code in (-signal.SIGXCPU, -signal.SIGXFSZ):
            raise ComparisonFailed(f"the comparison passed a limit ({signal.Signals(-code).name}): {tail}")
        raise ComparisonCrashed(f"the comparison ended with {_name(code)}: {tail}")

    def _wait(self, command: list[str], log: Path) -> int:
        with log.open("wb") as stream, self._lock:
            if self._stopping:
                raise Interrupted
            process = subprocess.Popen(
                [sys.executable, "-S", "-c", _TETHER, *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, "PYTHONWARNINGS": "default", "NO_COLOR": "1", "MALLOC_ARENA_MAX": "2"},
                start_new_session=True,
            )
            self._running.add(process)
        try:
            self._limit(process.pid)
            return process.wait(self._limits.seconds)
        except subprocess.TimeoutExpired as error:
            raise ComparisonFailed(f"the comparison took more than {self._limits.seconds} s and was stopped") from error
        finally:
            with self._lock:
                self._running.discard(process)
                _kill(process)
                process.wait()
                if self._stopping:
                    raise Interrupted

    def _limit(self, pid: int) -> None:
        """Set after the start, since a `preexec_fn` is unsafe beside threads; Python itself needs longer to come up."""
        limits = (
            (resource.RLIMIT_AS, self._limits.memory_bytes),
            (resource.RLIMIT_CPU, self._limits.cpu_seconds),
            (resource.RLIMIT_FSIZE, self._limits.file_bytes),
            (resource.RLIMIT_CORE, 0),
        )
        try:
            for kind, value in limits:
                resource.prlimit(pid, kind, (value, value))
        except ProcessLookupError:
            return  # it has ended already: its exit code says why


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _outcome(path: Path) -> Outcome:
    """Raises msgspec.DecodeError."""
    if path.stat().st_size > _JSON_LIMIT:
        raise ComparisonFailed(f"the comparison's JSON is larger than {_JSON_LIMIT} bytes")
    answer = msgspec.json.decode(path.read_bytes(), type=_Answer)
    first = answer.culprits[0] if answer.culprits else None
    return Outcome(
        exit_code=answer.exit_code,
        sentence=answer.sentence,
        culprit=first.layer if first else "",
        culprit_cause=first.cause if first else "",
        coverage=answer.coverage.share,
        seconds=answer.seconds,
    )


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("tidegauge: ") if lines else "it said nothing"


def _name(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
