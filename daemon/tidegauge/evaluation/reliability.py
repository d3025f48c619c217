"""Every failure mode of a board against a real agent: what it saw, what it did about it, and what came of it."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tidegauge.errors import TidegaugeError
from tidegauge.evaluation import control
from tidegauge.evaluation.answers import Answers
from tidegauge.evaluation.figures import NotRun
from tidegauge.evaluation.reliability_agent import Template, configured
from tidegauge.evaluation.reliability_modes import ENDINGS, GOLDEN, RUN, TRACED, Mode, Pace, named
from tidegauge.evaluation.reliability_trial import Row, Trial, last_line
from tidegauge.evaluation.small_board import SmallBoard, wait_for
from tidegauge.virtualboard import freezer
from tidegauge.virtualboard.options import CompileOptions

__all__ = ["COLUMNS", "Table", "cells", "evaluate", "markdown", "named"]

ACCEPTANCE_SECONDS = 120.0
#: Pictures of the camera's folder, over and over: each has one right answer.
ANSWERS_SEEN = 30


class Table(msgspec.Struct):
    """`pace`: of this machine, by which goals are set; `seconds`: what the whole evaluation took."""

    rows: list[Row]
    not_run: list[NotRun]
    pace: Pace
    seconds: float

    @property
    def missed(self) -> list[Row]:
        return [row for row in self.rows if row.missed]

    def encoded(self) -> bytes:
        """As JSON, with what each row has missed."""
        rows = [{**msgspec.to_builtins(row), "missed": row.missed} for row in self.rows]
        table = {"rows": rows, "not_run": self.not_run, "pace": self.pace, "seconds": self.seconds}
        return msgspec.json.format(msgspec.json.encode(table))


def evaluate(
    modes: tuple[Mode, ...],
    jobs: int,
    progress: Callable[[str], None],
    keep: Path | None = None,
    each: Callable[[Table], None] = lambda _: None,
) -> Table:
    """Run the modes, `jobs` at a time, each with its own board, in a folder that is left where `keep` names it.

    `each` gets the table after every row: it takes minutes, and what was measured is not lost where it is cut off.
    Raises TidegaugeError where no healthy agent runs.
    """
    begun = time.monotonic()
    able = [mode for mode in modes if "unkillable" not in mode.failures or not freezer.why_not()]
    left = [NotRun("reliability", mode.name, freezer.why_not()) for mode in modes if mode not in able]
    with tempfile.TemporaryDirectory(prefix="tg-", ignore_cleanup_errors=True) as temporary:
        folder = keep or Path(temporary)
        progress("acceptance of a healthy board")
        template = prepare(folder / "template")
        found: dict[str, Row] = {}
        lock = threading.Lock()

        def table() -> Table:
            rows = [found[mode.name] for mode in able if mode.name in found]
            return Table(rows, left, template.pace, round(time.monotonic() - begun, 1))

        def one(mode: Mode) -> None:
            row = Trial(mode, template, folder / mode.name).run()
            progress(f"{mode.name}: {'MISSED ' + '; '.join(row.missed) if row.missed else 'as documented'}")
            with lock:
                found[mode.name] = row
                each(table())

        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(one, able):
                pass
        return table()


def prepare(folder: Path) -> Template:
    """A board whose agent has accepted its reference and holds a bundle, and the digests of its right answers."""
    folder.mkdir(parents=True)
    board = SmallBoard(folder)
    # One tensor of 16 bits: the hang in create takes only networks that have one.
    board.build(options=CompileOptions(calibration_frames=4, output_feature_16bit_names_list=("logits",)))
    answers = Answers()
    begun = time.monotonic()
    with (
        board.remote_log(),
        board.agent(configured(board, Pace(ACCEPTANCE_SECONDS), {})) as agent,
        answers.listening(board.state / "results.socket"),
    ):
        try:
            board.url(agent)
            wait_for(lambda: answers.count, ACCEPTANCE_SECONDS, "answer")
            pace = Pace.measured(time.monotonic() - begun)
            wait_for(lambda: control.status(board.state).reference, ACCEPTANCE_SECONDS, "accepted reference")
            reply = control.ask(board.state, "CaptureNow", 120.0)
            wait_for(lambda: answers.count >= ANSWERS_SEEN, 60.0, "answers")
            # Slow is slower than the first runs: an agent that doesn't know those yet would learn the fault.
            wait_for(lambda: _knows_latency(board), 60.0, "time of a device run")
        except TimeoutError as error:
            raise TidegaugeError(
                f"a healthy agent does not run here: {error}", f"its log ends with: {last_line(board.log())}"
            ) from error
    if not reply.ok:
        raise TidegaugeError(f"a healthy agent takes no capture: {reply.sentence}", reply.cure)
    return Template(board, frozenset(answer.digest for answer in answers.since(0.0)), pace)


def _knows_latency(board: SmallBoard) -> bool:
    return json.loads((board.state / "state.json").read_bytes()).get("latency") is not None


COLUMNS = (
    "failure",
    "what the agent saw",
    "alarm",
    "detected (goal), s",
    "recovered or escalated, s",
    "ending",
    "back after cure, s",
    "wrong answers as right: before / after the alarm",
    "lost",
    "goals",
)


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table, in the order of `COLUMNS`."""
    mode = row.mode
    return (
        f"`{mode.name}`: {mode.does}",
        row.saw or "–",
        ", ".join(f"`{name}`" for name in row.alarms) or "none",
        "–" if row.detected is None else f"{row.detected:.1f} (≤ {row.within:.0f})",
        _seconds(row.end),
        mode.ends if row.ended else f"NOT {mode.ends}",
        _seconds(row.back),
        f"{row.before} / {row.after}",
        "; ".join(row.lost) or "none",
        f"MISSED: {'; '.join(row.missed)}" if row.missed else "met",
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def markdown(table: Table) -> str:
    """The table of the documentation, with the endings in words below it."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells(row))} |" for row in table.rows]
    lines += ["", *(f"{each.name}: {each.reason}" for each in table.not_run)]
    used = {row.mode.ends for row in table.rows}
    lines += [f"* *{name}*: {words}" for name, words in ENDINGS.items() if name in used]
    met = len(table.rows) - len(table.missed)
    lines += ["", f"{met} of {len(table.rows)} modes met all goals."]
    lines += [
        f"Deadlines: start of a worker {table.pace.start:.0f} s, run {RUN * table.pace.factor:.1f} s, traced run "
        f"{TRACED:g} s; golden interval {GOLDEN:g} s. The machine was {table.pace.factor:.1f} times slower than two "
        "idle cores, by which the goals of the times to detect are longer."
    ]
    return "\n".join(lines) + "\n"
