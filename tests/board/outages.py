"""Steps of the board test: changed settings, hours of outage, a wrong clock, power that is cut in the middle."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from board.tree import wait_for
from tidegauge.demo.broker import free_port
from tidegauge.virtualboard.state import BoardState

if TYPE_CHECKING:
    from board.run import BoardTest

STATE = "/var/lib/tidegauge"
SUCCESSFUL, TIME = (
    "tidegauge_config_last_reload_successful",
    "tidegauge_config_last_reload_success_timestamp_seconds",
)
YEAR = 365.25 * 86400.0
#: Some weeks into 1970.
IN_1970 = 0.2 * YEAR
REMOTE_LOG = """[Unit]
Description=The virtual board's remote-log server
[Service]
ExecStart=/usr/local/bin/tidegauge virtualboard remote-log /srv/board/vb
User=tidegauge
"""
#: As bytes a second, slow enough to be cut off in the middle.
SLOWLY = 8_000


def edit(test: BoardTest, **changes: dict[str, Any]) -> dict[str, Any]:
    """Change tables of agent.toml in place; what it held before."""
    path = test.tree.root / "etc/tidegauge/agent.toml"
    before = tomllib.loads(path.read_text())
    path.write_bytes(msgspec.toml.encode({**before, **{t: {**before.get(t, {}), **v} for t, v in changes.items()}}))
    return before


def restore(test: BoardTest, before: dict[str, Any]) -> None:
    (test.tree.root / "etc/tidegauge/agent.toml").write_bytes(msgspec.toml.encode(before))


def state(test: BoardTest) -> dict[str, Any]:
    """What the agent has written down, read from outside."""
    found: dict[str, Any] = json.loads((test.tree.root / "var/lib/tidegauge/state.json").read_text())
    return found


def reloaded(test: BoardTest) -> None:
    group = "systemctl reload"
    restarts = test.restarts()
    before = edit(test, camera={"seed": 7}, metrics={"host": "127.0.0.2"})
    test.tree.run("systemctl", "reload", "tidegauge-agent")
    wait_for(lambda: "taken at once: camera.seed" in test.tree.journal(), 60, "the change in the journal")
    wait_for(lambda: test.metric("tidegauge_config_restart_keys") == 1, 30, "the key that waits")
    test.runs_more(60, "device run with another camera")
    test.holds(group, "a change is taken, what needs a restart is named", "metrics.host" in test.tree.journal())
    text = (test.tree.root / "etc/tidegauge/agent.toml").read_text()
    (test.tree.root / "etc/tidegauge/agent.toml").write_text(text.replace("[camera]", "[camara]"))
    wait_for(lambda: test.page() and test.metric(SUCCESSFUL) == 0, 60, "refusal of a wrong file")
    test.runs_more(60, "device run")
    test.holds(group, "a wrong file is refused, and the agent runs on", test.active())
    restore(test, before)
    wait_for(lambda: test.metric(SUCCESSFUL) == 1, 60, "a right file")
    test.holds(group, "no restart of the unit", test.restarts() == restarts)


def outage(test: BoardTest) -> None:
    """Camera and accelerator gone at once. Pauses between tries are seconds here, so a minute has a day's tries."""
    group, seconds = "camera and accelerator gone", 60.0
    restarts = test.restarts()
    before = edit(test, camera={"kind": "rtsp", "source": f"rtsp://127.0.0.1:{free_port()}/gone", "open_timeout": 2.0})
    test.virtual("inject", "--fail", "create_fails")
    test.signal("KILL", test.worker("pipeline"))
    down = "tidegauge_accelerator_down"
    wait_for(lambda: test.metric('tidegauge_camera_problem{problem="down"}') == 1, 60, "a camera that is gone")
    wait_for(lambda: test.metric(down) == 1, 90, "an accelerator that is given up")
    began, silent = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        silent += not test.page()
        time.sleep(1.0)
    test.figure(group, f"restarts of the unit in {seconds:g} s", test.restarts() - restarts, "", 0)
    test.figure(group, "times that the metrics page was silent", silent, "", 1)
    test.virtual("inject")
    restore(test, before)
    began = time.monotonic()
    test.command("alarm", "clear", "--state", STATE)
    test.runs_more(90, "device run after both are back")
    test.figure(group, "device runs again after", time.monotonic() - began, "s", 90)


def clock(test: BoardTest) -> None:
    """A board without a clock battery: it starts in 1970, and jumps by half a century when the network is there."""
    group = "clock at 1970, then corrected"
    library = test.tree.root / "usr/lib/wall-clock.so"
    source = str(Path(__file__).with_name("clock.c"))
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), source, "-ldl"], check=True, timeout=60)
    now = test.tree.root / "srv/board/clock"
    now.write_bytes(struct.pack("q", int(IN_1970 - time.time())))
    drop_in = test.tree.root / "etc/systemd/system/tidegauge-agent.service.d/91-clock.conf"
    preload = "LD_PRELOAD=/usr/lib/wall-clock.so WALL_CLOCK_OFFSET=/srv/board/clock"
    drop_in.write_text(f"[Service]\nEnvironment={preload}\n")
    try:
        _from_1970(test, group, now)
    finally:
        drop_in.unlink()
        library.unlink()
        test.tree.run("systemctl", "daemon-reload")
        test.tree.run("systemctl", "restart", "tidegauge-agent")
        wait_for(test.page, 60, "metrics page")


def _from_1970(test: BoardTest, group: str, now: Path) -> None:
    test.tree.run("systemctl", "daemon-reload")
    test.tree.run("systemctl", "restart", "tidegauge-agent")
    wait_for(test.page, 60, "metrics page")
    test.runs_more(60, "device run in 1970")
    test.figure(group, "the agent's year at the start", 1970 + test.metric(TIME) / YEAR, "", 1971)
    restarts, alarms = test.restarts(), test.metric("tidegauge_drift_alarms_total")
    bundles = test.metric("tidegauge_spool_bundles")
    with now.open("r+b") as file:  # in place: the running agent has it mapped
        file.write(struct.pack("q", 0))
    test.tree.run("systemctl", "reload", "tidegauge-agent")
    wait_for(lambda: test.metric(TIME) > 50 * YEAR, 60, "the true time")
    test.runs_more(60, "device run after the jump")
    test.tree.run("/usr/local/bin/tidegauge", "agent", "self-test", "--state", STATE)
    test.holds(group, "no restart of the unit", test.restarts() == restarts)
    test.holds(group, "no alarm", test.metric("tidegauge_drift_alarms_total") == alarms)
    test.holds(group, "no bundle given up for its age", test.metric("tidegauge_spool_bundles") >= bundles)


def cut_in_capture(test: BoardTest) -> None:
    group = "power cut in the middle of a capture"
    _start_remote_log(test)
    _trace_slowly(test, 0.5)
    captures = len(state(test).get("captures", []))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(test.tree.run, "/usr/local/bin/tidegauge", "agent", "capture", "--state", STATE, check=False)
        wait_for(lambda: state(test).get("capturing"), 90, "a capture under way")
        wait_for(lambda: list(test.tree.root.glob("srv/board/vb/tmp/*trace*")), 60, "a trace")
        test.tree.pull_plug()
    _trace_slowly(test, 0.0)
    _boot(test)
    seconds = test.runs_more(90, "device run after the cut")
    test.figure(group, "device runs again after the metrics page", seconds, "s", 60)
    now = state(test)
    known = not now.get("capturing") and "was cut off" in test.tree.journal()
    test.holds(group, "the capture is known to be cut off", known)
    test.holds(group, "its traces are gone", not list(test.tree.root.glob("srv/board/vb/tmp/*trace*")))
    test.holds(group, "it counts for the limits", len(now["captures"]) == captures + 1)
    _end_remote_log(test)


def cut_in_upload(test: BoardTest) -> None:
    from integration.collector_peer import Process, mosquitto  # needs pytest

    group = "power cut in the middle of an upload"
    with tempfile.TemporaryDirectory(prefix="tidegauge-board-") as scratch, mosquitto(Path(scratch)) as port:
        collector = Process(Path(scratch), port)
        collector.start()
        before = edit(test)
        try:
            test.tree.run("systemctl", "stop", "tidegauge-agent")
            link = {"port": port, "bytes_per_second": SLOWLY, "chunk_bytes": 4096, "backoff_first": 0.2}
            link |= {"backoff_most": 1.0, "connect_jitter": 0.0}
            edit(test, link=link, capture={"per_cause_hour": 5})
            _start_remote_log(test)
            test.tree.run("systemctl", "start", "tidegauge-agent")
            wait_for(test.page, 60, "metrics page")
            test.runs_more(60, "device run")
            test.command("agent", "capture", "--state", STATE)
            _held(collector, lambda row: 0 < row["blobs_held"] < row["blobs"], "half of a bundle at the collector")
            test.tree.pull_plug()
            began = time.monotonic()
            _boot(test)
            row = _held(collector, lambda row: row["blobs_held"] == row["blobs"], "the whole bundle")
            test.figure(group, "the whole bundle is at the collector after the cut", time.monotonic() - began, "s", 120)
            test.holds(group, "as one bundle", len(collector.get("api/v1/bundles")) == 1, row["bundle"])
            wait_for(lambda: test.page() and test.metric("tidegauge_spool_bundles") == 0, 60, "an empty spool")
            test.holds(group, "and off the board", True)
        finally:
            restore(test, before)
            _end_remote_log(test)
            collector.stop()


def _held(collector: Any, done: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    """The first bundle at the collector for which this holds."""

    def found() -> dict[str, Any] | None:
        return next((row for row in collector.get("api/v1/bundles") if done(row)), None)

    row: dict[str, Any] = wait_for(found, 180, what)
    return row


def _start_remote_log(test: BoardTest) -> None:
    unit = test.tree.root / "etc/systemd/system/virtual-remote-log.service"
    if not unit.exists():
        unit.write_text(REMOTE_LOG)
        test.tree.run("systemctl", "daemon-reload")
    test.tree.run("systemctl", "start", "virtual-remote-log")


def _end_remote_log(test: BoardTest) -> None:
    """The unit is this test's own: nothing that is uninstalled later."""
    test.tree.run("systemctl", "stop", "virtual-remote-log", check=False)
    (test.tree.root / "etc/systemd/system/virtual-remote-log.service").unlink(missing_ok=True)


def _trace_slowly(test: BoardTest, seconds: float) -> None:
    folder = test.tree.root / "srv/board/vb"
    found = BoardState.load(folder)
    owner = folder.stat()
    msgspec.structs.replace(found, trace_op_seconds=seconds).save(folder)
    for path in folder.glob("*.json"):
        shutil.chown(path, owner.st_uid, owner.st_gid)


def _boot(test: BoardTest) -> None:
    test.tree.boot()
    wait_for(test.active, 60, "active unit")
    wait_for(test.page, 60, "metrics page")


STEPS = {each.__name__: each for each in (reloaded, outage, clock, cut_in_capture, cut_in_upload)}
