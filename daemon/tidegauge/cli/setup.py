"""`tidegauge setup`: from a compiled model and a camera to a running acceptance, in five questions at most."""

from __future__ import annotations

import grp
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from tidegauge.agent.config import AcceptanceConfig, AgentConfig, ShadowConfig, read
from tidegauge.cli.check import run_checks, summary
from tidegauge.cli.numbers import FiniteRange
from tidegauge.cli.profile import drafted, profile_options
from tidegauge.configuration import load_toml
from tidegauge.errors import TidegaugeError
from tidegauge.files import write_durably
from tidegauge.profile import Profile
from tidegauge.setup_board import draft, find
from tidegauge.setup_board.draft import Answers, Virtual
from tidegauge.tidl.profile_draft import to_toml

SYSTEM = Path("/etc/tidegauge")
UNIT = "tidegauge-agent.service"
GROUP = "tidegauge"
HOUR = 3600.0
VARIABLE = "TIDEGAUGE_VIRTUALBOARD"
#: What may come later, and the acceptance doesn't wait for: its unit starts the remote log, a broker may be down.
LATER = frozenset({"remote-log", "broker", "rights", "clock"})

_SAMPLES = click.IntRange(20, 1_000_000)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("setup")
@click.option("--artifacts", type=_FOLDER, help="What the TIDL compile wrote.")
@click.option("--camera", "camera", help="rtsp://…, /dev/video0, a GStreamer pipeline, folder:PATH …")
@click.option("--broker", help="HOST or HOST:PORT of the MQTT broker.")
@click.option("--device", help="Name of this board.")
@profile_options
@click.option("--profile", "profile", type=_FILE, help="A model profile that is there already, instead of a new one.")
@click.option("--state", help="Folder for what must survive a reboot.")
@click.option(
    "--samples", type=click.IntRange(20, 1_000_000), default=AcceptanceConfig().samples, help="Of the acceptance."
)
@click.option("--gap", type=FiniteRange(0.1, 86400), default=ShadowConfig().gap_mean, help="Seconds between samples.")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help=f"As root: {SYSTEM}/agent.toml.")
@click.option("--virtual", is_flag=True, help=f"Of the virtual board that {VARIABLE} names, for trials on a PC.")
@click.option("--no-start", is_flag=True, help="Write and check only.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: take what was found, and refuse where nothing was.")
def command(
    artifacts: Path | None,
    camera: str | None,
    broker: str | None,
    device: str | None,
    step: float | None,
    profile: Path | None,
    out: Path | None,
    yes: bool,
    force: bool,
    no_start: bool,
    **given: Any,
) -> None:
    """Write agent.toml and the model's profile, check everything, and start the acceptance.

    Asks for the model, the camera, the broker, the board's name, and which difference of the output does not matter;
    what an option tells is not asked. Exit code 2 where a check fails: then nothing is started.
    """
    target = out or _default_target()
    ask = _Questions(yes)
    about = {name: given.pop(name) for name in ("state", "samples", "gap", "virtual")}
    if profile is None:
        artifacts = artifacts or Path(ask("artifacts", "Compiled model (artifacts folder)", _artifacts_found(target)))
        step = step or _positive(ask("step", "Difference of the output that does not matter (its own unit)", ""))
    kind, source = draft.camera(camera or ask("camera", "Camera", _camera_found()))
    host, port = draft.broker(broker or ask("broker", "MQTT broker", _broker_found()))
    device = device or ask("device", "Name of this board", find.device_name(socket.gethostname()))
    places = _write_profile(target, artifacts, profile, {**given, "step": step}, force)
    runtime = load_toml(places, Profile).runtime
    answers = Answers(
        device=device,
        state=about["state"] or ("/var/lib/tidegauge" if target.parent == SYSTEM else "state"),
        profile=str(places),
        kind=kind,
        source=source if kind in ("rtsp", "v4l2", "gstreamer") else str(Path(source).resolve()),
        host=host,
        port=port,
        samples=about["samples"],
        gap=about["gap"],
        schema="schemas/agent.schema.json" if (target.parent / "schemas" / "agent.schema.json").is_file() else "",
        virtual=_virtual(runtime) if about["virtual"] else None,
    )
    _write_agent(target, answers, force)
    click.echo(f"{target}: written, {ask.asked} questions asked")
    results, _ = run_checks(target, quiet=False)
    click.echo(summary(results))
    failed = [result.id for result in results if result.status == "failed"]
    if first := [check for check in failed if check not in LATER]:
        raise TidegaugeError(
            f"nothing was started: {', '.join(first)} must be right first ({target} is written)",
            f"do what stands behind the arrow, then `tidegauge check --config {target}`",
        )
    if failed:
        click.echo(f"not right yet, and not needed for the acceptance: {', '.join(failed)}")
    _start(target, answers, no_start)


class _Questions:
    """Asks a person, with what was found as the answer to take; with `yes` takes it. Counts what it asked."""

    def __init__(self, yes: bool) -> None:
        self._yes, self.asked = yes, 0

    def __call__(self, option: str, words: str, found: str) -> str:
        if not self._yes:
            self.asked += 1
            try:
                return str(click.prompt(words, default=found or None))
            except click.Abort:
                if sys.stdin.isatty():
                    raise  # Ctrl-C
                raise TidegaugeError(f"nobody answers: {words}", f"give --{option}") from None
        if not found:
            raise TidegaugeError(f"nothing was found for: {words.lower()}", f"give --{option}")
        click.echo(f"{words}: {found}")
        return found


def _default_target() -> Path:
    return (SYSTEM if os.geteuid() == 0 and SYSTEM.is_dir() else Path.cwd()) / "agent.toml"


def _artifacts_found(target: Path) -> str:
    found = find.artifacts([*(Path(place) for place in find.PLACES), target.parent])
    for folder in found[1:]:
        click.echo(f"also there: {folder}")
    return str(found[0]) if found else ""


def _camera_found() -> str:
    found = find.cameras()
    for camera in found:
        click.echo(f"found {camera.source}: {camera.name}")
    return found[0].source if found else ""


def _broker_found() -> str:
    found = find.broker()
    return f"{found[0]}:{found[1]}" if found else ""


def _positive(said: str) -> float:
    try:
        value = float(said)
    except ValueError as error:
        raise TidegaugeError(f"{said!r} is no number", "give a number above 0, such as 0.0078") from error
    if not 0 < value < float("inf"):
        raise TidegaugeError(f"{said} is not above 0", "give what the product does not mind")
    return value


def _virtual(runtime: str) -> Virtual:
    """The virtual board of the environment. Raises TidegaugeError where there is none."""
    from tidegauge.virtualboard.state import BoardState  # no board needs it

    folder = os.environ.get(VARIABLE, "")
    if not folder:
        raise TidegaugeError(f"--virtual, and {VARIABLE} names no virtual board", "see docs/virtualboard.md")
    module = "onnxruntime_tidl" if runtime == "onnx" else "tflite_runtime_tidl"
    place = Path(folder).resolve()
    return Virtual(
        f"tidegauge.virtualboard.{module}",
        BoardState.load(place).trace_folder,
        f"remote-log {place}",
        str(place / "remote_log.txt"),
    )


def _write_profile(
    target: Path, artifacts: Path | None, profile: Path | None, told: dict[str, Any], force: bool
) -> Path:
    """Where the profile is, a new one beside the configuration."""
    if profile is not None:
        return profile.resolve()
    assert artifacts is not None  # it was told or asked
    model = told.pop("model") or find.model_of(artifacts)
    made = drafted(artifacts, model, told.pop("param"), told)
    for warning in made.warnings:
        click.echo(f"warning: {warning}", err=True)
    place = target.parent.resolve() / "profiles" / f"{made.profile.name}.toml"
    _write(place, to_toml(made), force)
    if load_toml(place, Profile) != made.profile:
        raise TidegaugeError(f"{place} does not read back as it was written", "report this with the artifacts' names")
    return place


def _write_agent(target: Path, answers: Answers, force: bool) -> None:
    """Raises TidegaugeError where an answer can't be taken: then the file is what it was before, or not there."""
    before = target.read_bytes() if force and target.is_file() else None
    _write(target, draft.agent_toml(answers), force)
    try:
        loaded = read(target)
    except TidegaugeError:
        if before is None:
            target.unlink()
        else:
            write_durably(target, before)
        raise
    wanted = (answers.device, answers.kind, answers.host, answers.port, answers.samples)
    config: AgentConfig = loaded.config
    got = (config.device, config.camera.kind, config.link.host, config.link.port, config.acceptance.samples)
    if wanted != got:
        raise TidegaugeError(f"{target} does not read back as it was written", f"report this: {wanted} became {got}")


def _write(path: Path, text: str, force: bool) -> None:
    """Readable by the agent's own user where there is one: it may run as another than who sets it up."""
    if path.exists() and not force:
        raise TidegaugeError(f"{path} exists already", "replace it with --force, or name another file with --out")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, text.encode())
        path.chmod(0o640)
        if os.geteuid() == 0 and path.is_relative_to(SYSTEM):
            group = grp.getgrnam(GROUP).gr_gid
            for each in (path, path.parent):
                os.chown(each, -1, group)
    except KeyError:
        path.chmod(0o644)  # no such group: not installed by the script
    except OSError as error:
        raise TidegaugeError(f"{path} can't be written", error.strerror or "check the folder") from error


def _start(target: Path, answers: Answers, no_start: bool) -> None:
    """By the unit where it is installed for this file; else say how."""
    command = f"tidegauge agent run --config {shlex.quote(str(target))}"
    if answers.virtual is not None:
        command = f"{VARIABLE}={shlex.quote(os.environ[VARIABLE])} {command}"
    seconds = answers.samples * answers.gap
    if target == SYSTEM / "agent.toml" and _has_unit() and not no_start:
        started = subprocess.run(["systemctl", "enable", "--now", UNIT], check=False)
        if started.returncode:  # what systemctl has said stands above
            raise TidegaugeError(f"{UNIT} did not start ({target} is written)", f"journalctl -xeu {UNIT} says why")
        click.echo(f"{UNIT} is running; the acceptance has begun and ends about {_when(seconds)}")
    else:
        click.echo(f"start it with: {command}")
        click.echo(f"started now, the acceptance ends about {_when(seconds)}")
    click.echo(
        f"({answers.samples} samples, one every {answers.gap:g} s on average; longer where the CPU budget or the camera"
        f" allows fewer)\nhow far it is: tidegauge status --config {target}"
    )


def _has_unit() -> bool:
    if not Path("/run/systemd/system").is_dir() or shutil.which("systemctl") is None:
        return False
    return subprocess.run(["systemctl", "cat", UNIT], capture_output=True, check=False).returncode == 0


def _when(seconds: float) -> str:
    """The moment in local time, and how far away it is."""
    at = time.strftime("%A %H:%M", time.localtime(time.time() + seconds))
    return f"{at}, in {seconds / HOUR:.1f} hours" if seconds >= 2 * HOUR else f"{at}, in {seconds / 60:.0f} minutes"
