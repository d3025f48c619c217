"""What the demo prints: one line a phase with its time, a spinner or a bar while it waits."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

WIDTH = 11
INDENT = 10 + WIDTH + 1


class Show:
    """`seconds`: how long each phase took."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._begun = time.monotonic()
        self.seconds: dict[str, float] = {}

    def say(self, phase: str, text: str) -> None:
        elapsed = time.monotonic() - self._begun
        room = max(self.console.width - INDENT, 40)
        lines = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]
        line = Text.assemble((f"{elapsed:6.1f} s  ", "dim"), (f"{phase:<{WIDTH}} ", "bold cyan"))
        line.append(("\n" + " " * INDENT).join(lines))
        self.console.print(line, soft_wrap=True)

    @contextmanager
    def step(self, phase: str, text: str) -> Iterator[None]:
        """Something that takes an unknown time."""
        begun = time.monotonic()
        with self.console.status(f"{phase}: {text}"):
            yield
        self._note(phase, begun)

    @contextmanager
    def progress(self, phase: str, text: str) -> Iterator[Callable[[float], None]]:
        """Something whose progress in 0…1 is known."""
        begun = time.monotonic()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(f"{phase}: {text}", total=1.0)
            yield lambda share: bar.update(task, completed=share)
        self._note(phase, begun)

    def _note(self, phase: str, begun: float) -> None:
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + time.monotonic() - begun, 1)
