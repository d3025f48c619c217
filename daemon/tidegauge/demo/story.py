"""A story: a problem from TI's forum, told with the real commands from the symptom to the cured network.

Each step is a `tidegauge` command, printed as it is run, so that it can be repeated in the folder that the story
leaves.
"""

from __future__ import annotations

import ast
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tidegauge.compare.report import words
from tidegauge.compare.types import Comparison, from_json
from tidegauge.demo.processes import tidegauge
from tidegauge.errors import TidegaugeError

COMMAND_SECONDS = 300.0


class Measure(msgspec.Struct, frozen=True):
    """One figure of the product before and after, with what it must be. `lower`: whether lower is better."""

    name: str
    before: float
    after: float
    goal: float
    unit: str = ""
    lower: bool = False

    @property
    def cured(self) -> bool:
        """It was wrong before, and is right now."""
        if self.lower:
            return self.before > self.goal >= self.after
        return self.before < self.goal <= self.after


class Told(msgspec.Struct):
    """How a story ended. `right`: every figure was wrong before and is right after. `pasted`: the options it took."""

    story: str
    folder: str
    measures: list[Measure] = []
    pasted: dict[str, str] = {}
    culprits: list[str] = []
    reports: list[str] = []
    pictures: list[str] = []
    seconds: float = 0.0
    virtual: bool = True

    @property
    def right(self) -> bool:
        return bool(self.measures) and all(measure.cured for measure in self.measures)


class Teller:
    """Runs and prints the steps of one story in `folder`, which is new. Names of files are relative to it."""

    def __init__(self, story: str, folder: Path, console: Console) -> None:
        self.folder, self.console = folder, console
        self.told = Told(story, str(folder))
        self._begun = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)

    def chapter(self, title: str, text: str) -> None:
        self.console.print()
        self.console.print(Panel(Text(text), title=Text(title, style="bold"), title_align="left", border_style="cyan"))

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style=style))

    def run(self, *arguments: str, may_exit: Sequence[int] = (0,), shown: Sequence[str] = ()) -> str:
        """Run `tidegauge …` in the folder; returns what it printed. `shown`: the arguments as printed, where they are
        too many. Raises `TidegaugeError` for another exit code than `may_exit`."""
        line = "tidegauge " + shlex.join(shown or arguments)
        self.console.print(Text(f"$ {line}", style="bold green"), soft_wrap=True)
        begun = time.monotonic()
        with self.console.status("running"):
            try:
                done = subprocess.run(
                    tidegauge(*arguments), cwd=self.folder, capture_output=True, text=True, timeout=COMMAND_SECONDS
                )
            except subprocess.TimeoutExpired as error:
                raise TidegaugeError(
                    f"`{line}` took over {COMMAND_SECONDS:.0f} s", "try again on an idle PC"
                ) from error
        with (self.folder / "commands.log").open("a") as log:
            log.write(f"$ {line}\n{done.stdout}{done.stderr}exit code {done.returncode}\n\n")
        if done.returncode not in may_exit:
            last = (done.stderr or done.stdout).strip().splitlines()
            raise TidegaugeError(
                f"`{line}` ended with code {done.returncode}: {last[-1] if last else 'it printed nothing'}",
                f"its whole output is in {self.folder / 'commands.log'}",
            )
        self.say(f"  {time.monotonic() - begun:.1f} s, exit code {done.returncode}", "dim")
        return done.stdout

    def compare(self, name: str, *arguments: str) -> Comparison:
        """`tidegauge compare …`, with its report and JSON under `name`; prints the verdict."""
        self.run("compare", *arguments, "--html", f"{name}.html", "--json", f"{name}.json", may_exit=(0, 1))
        self.told.reports.append(f"{name}.html")
        answer = from_json((self.folder / f"{name}.json").read_bytes())
        self.say(f"  {answer.sentence}", "red" if answer.exit_code else "")
        if answer.rungs is not None:
            self.say(f"  {answer.rungs.sentence}", "red" if answer.rungs.enters else "")
        for finding in answer.findings:
            if finding.severity == "warning":
                self.say(f"  {finding.sentence}", "yellow")
        return answer

    def paste(self, answer: Comparison) -> dict[str, str]:
        """The text of the report's advice, put into a dictionary of compile options as an engineer would.

        Raises `TidegaugeError` where the report has nothing to paste.
        """
        if answer.cure is None or not answer.cure.advice:
            raise TidegaugeError("the report has no option to paste", "this is a defect of Tidegauge: please report it")
        text = words.paste(answer.cure.advice)
        (self.folder / "pasted-options.txt").write_text(text + "\n")
        self.say("The report's text, to paste into the compile options:")
        self.console.print(Syntax(text, "python", word_wrap=True, background_color="default"))
        self.say(f"  {words.prediction(answer.cure)}")
        options: dict[str, str] = ast.literal_eval("{" + text + "\n}")
        self.told.pasted = options
        return options

    def picture(self, name: str, png: bytes) -> None:
        (self.folder / name).write_bytes(png)
        self.told.pictures.append(name)

    def end(self, measures: Sequence[Measure]) -> Told:
        """Print the figures beside their goals, write `story.json`."""
        told = self.told
        told.measures, told.seconds = list(measures), round(time.monotonic() - self._begun, 1)
        table = Table(title="Before and after", title_justify="left", box=None, pad_edge=False)
        for column in ("", "before", "after", "goal", ""):
            table.add_column(column, justify="left" if not column else "right")
        for each in measures:
            sign = "≤" if each.lower else "≥"
            mark = "[green]cured[/]" if each.cured else "[bold red]not cured[/]"
            unit = f" {each.unit}" if each.unit else ""
            table.add_row(
                each.name, f"{each.before:.3g}{unit}", f"{each.after:.3g}{unit}", f"{sign} {each.goal:.3g}{unit}", mark
            )
        self.console.print()
        self.console.print(table)
        (self.folder / "story.json").write_bytes(msgspec.json.format(msgspec.json.encode(told)) + b"\n")
        self.say(f"{told.seconds:.0f} s in all. VIRTUAL: all of it ran on the emulated board.")
        self.say(f"Reports and pictures: {', '.join([*told.reports, *told.pictures])} in {self.folder}")
        return told


def options_arguments(options: Mapping[str, str]) -> list[str]:
    """Compile options as arguments of `tidegauge virtualboard compile`."""
    return [part for key, value in options.items() for part in ("--option", f"{key}={value}")]
