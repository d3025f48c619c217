"""`tidegauge demo`."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console

from tidegauge.demo.run import Options, Outcome, run
from tidegauge.demo.show import Show
from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.failures import parse
from tidegauge.virtualboard.faults import ALL_KINDS


@click.command("demo")
@click.option("--seed", type=int, default=1, show_default=True, help="Draws clip, layer and fault.")
@click.option("--layer", help="Inject into this layer (`tidegauge virtualboard layers` lists them).")
@click.option("--fault", type=click.Choice([*ALL_KINDS, "none"]), help="Inject this fault; `none`: no alarm may come.")
@click.option("--from-start", is_flag=True, help="The fault is there before acceptance, which then fails.")
@click.option(
    "--story",
    type=click.Choice(["low-light", "sdk-upgrade"]),
    help="Instead: from a problem to the cured network, step by step; leaves reports and pictures in a folder.",
)
@click.option("--fail", "failures", multiple=True, metavar="NAME[:AMOUNT]", help="Instead of a fault: the board fails.")
@click.option("--after", type=click.FloatRange(min=0), help="Seconds of healthy runs before it; 0: from the start.")
@click.option("--once", is_flag=True, help="End after the report: exit 0 when the culprit is the injected layer.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result to this file.")
@click.option("--keep", type=click.Path(path_type=Path), help="Work in this new folder and leave it.")
def command(
    seed: int,
    layer: str | None,
    fault: str | None,
    from_start: bool,
    story: str | None,
    failures: tuple[str, ...],
    after: float | None,
    once: bool,
    json_file: Path | None,
    keep: Path | None,
) -> None:
    """The main job, end to end, on a virtual board (nothing here touches a real one)."""
    if from_start and fault == "none":
        raise TidegaugeError("--from-start needs a fault, --fault none has none", "leave one of them out")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise TidegaugeError(f"the folder {keep} is not empty", "name a new folder for --keep")
    failing = tuple(parse(text) for text in failures)
    if failing and (layer is not None or fault is not None or from_start or story is not None):
        raise TidegaugeError("--fail takes the place of a fault", "leave --layer, --fault, --from-start, --story out")
    if after is not None and not failing:
        raise TidegaugeError("--after says when --fail comes, and there is none", "add --fail NAME")
    if story is not None:
        if layer is not None or fault is not None or from_start:
            raise TidegaugeError("a story brings its own fault", "leave --layer, --fault and --from-start out")
        sys.exit(0 if _tell(story, keep or Path(f"story-{story}"), json_file) else 1)
    with tempfile.TemporaryDirectory(prefix="tidegauge-demo-", ignore_cleanup_errors=True) as temporary:
        folder = (keep or Path(temporary)).resolve()
        options = Options(seed, fault, layer, from_start, folder, failing, 5.0 if after is None else after)
        outcome = asyncio.run(_demo(options, once, json_file))
    if once:
        sys.exit(0 if outcome.right else 1)


def _tell(story: str, folder: Path, json_file: Path | None) -> bool:
    """Whether what the report said did cure the network."""
    from tidegauge.demo import story_low_light, story_sdk_upgrade  # compiles and compares: heavy

    if folder.exists() and any(folder.iterdir()):
        raise TidegaugeError(f"the folder {folder} is not empty", "remove it, or name a new one with --keep")
    tell = {"low-light": story_low_light.tell, "sdk-upgrade": story_sdk_upgrade.tell}[story]
    told = tell(folder.resolve(), Console(highlight=False))
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(told)) + b"\n")
    return told.right


async def _demo(options: Options, once: bool, json_file: Path | None) -> Outcome:
    console = Console(highlight=False)
    stopping = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    finished = False

    def on_signal() -> None:
        if finished:
            stopping.set()
        else:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)

    async def after(outcome: Outcome) -> None:
        nonlocal finished
        finished = True
        _print(console, outcome)
        if json_file is not None:
            json_file.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)) + b"\n")
        if not once:
            console.print("\nEverything keeps running; Ctrl-C ends it.")
            await stopping.wait()

    try:
        return await run(options, Show(console), after)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _print(console: Console, outcome: Outcome) -> None:
    mark = "[bold green]right[/]" if outcome.right else "[bold red]wrong[/]"
    console.print()
    if outcome.failures:
        console.print(f"  failed          {', '.join(outcome.failures)}")
        console.print(f"  alarms          {', '.join(outcome.alarms) or 'none'}")
        console.print(f"  ended           {outcome.why}")
        return
    console.print(f"  injected layer  {outcome.injected_layer or 'none'}  ({outcome.injected_fault or 'no fault'})")
    console.print(f"  named layer     {outcome.named_layer or 'none'}  ({outcome.named_cause or 'no cause'})")
    console.print(f"                  {mark}: {outcome.why}")
    console.print()
    for name, value in (("report", outcome.report), ("collector", outcome.page), ("metrics", outcome.metrics)):
        if value:
            console.print(f"  {name:<15} {value}", soft_wrap=True)
