"""`tidegauge check` over a virtual board: with each precondition broken in turn it names exactly that one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from needs import program
from tidegauge.demo.board import compile_demo
from tidegauge.demo.broker import free_port
from tidegauge.demo.settings import DEVICE, Places, agent_settings, write_toml
from tidegauge.virtualboard.core import CoreState, Held
from tidegauge.virtualboard.state import BoardState, update

RULES = f"""
topic readwrite tidegauge/v1/{DEVICE}/#
"""


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until a server is up: it says so by a file or a socket, and has not ended."""
    for _ in range(400):
        if condition():
            return
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"{process.args} ended with {process.returncode}")
    raise AssertionError(f"{process.args} did not come up")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Rig:
    """A compiled virtual board with remote log and broker, healthy; a test breaks one thing of it."""

    def __init__(self, folder: Path) -> None:
        self.places = Places(folder)
        for each in (self.places.logs, self.places.traces):
            each.mkdir(parents=True)
        compile_demo(self.places, seed=5)
        BoardState(trace_folder=str(self.places.traces)).save(self.places.virtual)
        self.environment = {**os.environ, "TIDEGAUGE_VIRTUALBOARD": str(self.places.virtual)}
        self.port = free_port()
        self.configuration = self.places.board / "agent.toml"
        self.broker: subprocess.Popen[bytes] | None = None
        self.server: subprocess.Popen[bytes] | None = None
        self.rules, self.broker_log = folder / "rules.acl", self.places.logs / "broker"
        self.configure()

    def configure(self, **changes: dict[str, Any]) -> None:
        settings = agent_settings(
            self.places,
            self.port,
            seed=5,
            remote_log=f"remote-log {self.places.virtual}",
            remote_log_file=self.places.virtual / "remote_log.txt",
        )
        for table, values in changes.items():
            settings[table] = {**settings.get(table, {}), **values}
        write_toml(self.configuration, settings)

    def start_remote_log(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tidegauge", "virtualboard", "remote-log", str(self.places.virtual)]
        with (self.places.logs / "remote_log").open("ab") as log:
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        pid_file = self.places.virtual / "remote_log.pid"
        until(lambda: pid_file.exists() and pid_file.read_text().strip() == str(process.pid), process)
        return process

    def start_broker(self) -> subprocess.Popen[bytes]:
        binary = program("mosquitto", "mosquitto")
        self.rules.write_text(RULES)
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", f"acl_file {self.rules}", "log_type all"]
        if os.geteuid() == 0:
            lines.append("user root")
        path = self.places.root / "mosquitto.conf"
        path.write_text("\n".join(lines) + "\n")
        with self.broker_log.open("wb") as log:
            process = subprocess.Popen([binary, "-c", str(path)], stdout=log, stderr=log)
        until(lambda: b"running" in self.broker_log.read_bytes(), process)
        return process

    def check(self, *arguments: str, **environment: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, the report of `--json`, stderr."""
        command = [sys.executable, "-m", "tidegauge", "check", "--config", str(self.configuration), "--json"]
        done = subprocess.run(
            [*command, *arguments],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout), done.stderr

    def named(self, **environment: str) -> dict[str, str]:
        """What failed: found and cure by id."""
        code, report, _ = self.check(**environment)
        failures = {c["id"]: f"{c['found']} → {c['cure']}" for c in report["checks"] if c["status"] == "failed"}
        assert code == (2 if failures else 0)
        assert report["passed"] is not bool(failures)
        assert all(c["cure"] for c in report["checks"] if c["status"] in ("failed", "warning")), "each has a cure"
        return failures


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("check"))
    rig.broker = rig.start_broker()
    try:
        rig.server = rig.start_remote_log()
        yield rig
    finally:
        for process in (rig.server, rig.broker):
            if process is not None:
                stop(process)


@pytest.fixture
def healthy(rig: Rig) -> Iterator[Rig]:
    """The board as it was: whatever a test moves aside comes back."""
    kept = rig.places.root / "kept"
    shutil.copytree(rig.places.board, kept)
    state = BoardState.load(rig.places.virtual)
    yield rig
    shutil.rmtree(rig.places.board)
    kept.rename(rig.places.board)
    (rig.places.virtual / "board.json").unlink(missing_ok=True)
    (rig.places.virtual / "core.json").unlink(missing_ok=True)
    state.save(rig.places.virtual)


def test_a_healthy_board_passes_and_says_what_it_found(healthy: Rig) -> None:
    code, report, _ = healthy.check()
    by_id = {check["id"]: check for check in report["checks"]}
    assert code == 0, [c for c in report["checks"] if c["status"] == "failed"]
    assert report["virtual"] is True
    assert by_id["carve-outs"]["status"] == "not_applicable"
    assert by_id["rights"]["status"] == "warning", "no collector answers here"
    told = {name: check["found"] for name, check in by_id.items()}
    assert "TIDLExecutionProvider available" in told["runtime"]
    assert "1 sub-graphs" in told["subgraphs"]
    assert "a capture writes" in told["trace-folder"]
    assert "172.0 MiB of 172.0 MiB free, a traced session takes" in told["shared-heap"]
    assert "a picture of 384×256" in told["camera"]
    assert [c["id"] for c in report["checks"] if c["status"] == "failed"] == []
    assert all(check["seconds"] >= 0 for check in report["checks"])
    assert not list(healthy.places.board.glob("state*/*")), "a check leaves nothing behind"


def artifacts(rig: Rig) -> Path:
    return rig.places.board / "artifacts"


def no_allowed_nodes(rig: Rig) -> None:
    (artifacts(rig) / "allowedNode.txt").unlink()


def other_release(rig: Rig) -> None:
    with (artifacts(rig) / "subgraph_0_tidl_io_1.bin").open("ab") as file:
        file.write(b"\0" * 4)


def other_firmware(rig: Rig) -> None:
    update(rig.places.virtual, firmware_version=0x20241120)


def stock_runtime(rig: Rig) -> None:
    # a module without TIDL's provider, as pip's onnxruntime is; still no TI board
    rig.configure(runtime={"module": "onnxruntime"})


def no_runtime(rig: Rig) -> None:
    rig.configure(runtime={"module": "tidegauge.no_such_runtime"})


def other_picture_size(rig: Rig) -> None:
    path = rig.places.board / "enhancer.toml"
    path.write_text(re.sub(r"width = \d+", "width = 100", path.read_text()))


def other_output(rig: Rig) -> None:
    path = rig.places.board / "enhancer.toml"
    path.write_text(path.read_text().replace('name = "enhanced"', 'name = "brightened"'))


def damaged_model(rig: Rig) -> None:
    path = rig.places.board / "model" / "enhancer.onnx"
    path.write_bytes(path.read_bytes()[:1000])


def broken_toml(rig: Rig) -> None:
    rig.configuration.write_text(rig.configuration.read_text().replace("device", "devise", 1))


def no_trace_folder(rig: Rig) -> None:
    nowhere = str(rig.places.root / "nowhere")
    rig.configure(capture={"trace_folder": nowhere})
    update(rig.places.virtual, trace_folder=nowhere)


def small_trace_folder(rig: Rig) -> None:
    rig.configure(capture={"room_mib": 1 << 30})


def another_boards_trace_folder(rig: Rig) -> None:
    rig.configure(capture={"trace_folder": str(rig.places.logs)})


def no_board(rig: Rig) -> None:
    # the network's version can't be compared either, which is not applicable rather than failed
    (rig.places.virtual / "board.json").write_text("{")


def killed_traced_sessions(rig: Rig) -> None:
    """What two traced sessions held: nobody gives it back before a reboot."""
    held = [Held(number, 2**22 + number, 1, 1 << 20, 66 << 20) for number in range(2)]
    CoreState(created=2, sessions=tuple(held)).save(rig.places.virtual)


def no_camera(rig: Rig) -> None:
    rig.configure(camera={"source": str(rig.places.root / "no-pictures")})


def empty_camera(rig: Rig) -> None:
    (rig.places.board / "pictures").mkdir()
    rig.configure(camera={"kind": "folder", "source": str(rig.places.board / "pictures")})


def state_is_a_file(rig: Rig) -> None:
    (rig.places.board / "state").write_text("")


def no_room_for_the_spool(rig: Rig) -> None:
    rig.configure(spool={"headroom_mib": 1 << 30})


def no_broker(rig: Rig) -> None:
    rig.configure(link={"port": free_port()})


def tls_to_a_plain_broker(rig: Rig) -> None:
    rig.configure(link={"tls": True})


def no_ca(rig: Rig) -> None:
    rig.configure(link={"ca": "nowhere.pem"})


@pytest.mark.parametrize(
    ("breaking", "named", "words"),
    [
        (broken_toml, "configuration", "`devise`"),
        (no_allowed_nodes, "artifacts", "allowedNode.txt"),
        pytest.param(other_release, "artifacts", "94620", marks=pytest.mark.slow),
        pytest.param(other_firmware, "network-version", "0x20241120 (release 10.1)", marks=pytest.mark.slow),
        pytest.param(stock_runtime, "runtime", "has no TIDLExecutionProvider", marks=pytest.mark.slow),
        pytest.param(no_runtime, "runtime", "tidegauge.no_such_runtime", marks=pytest.mark.slow),
        (other_picture_size, "model", "[1, 3, 128, 100]"),
        pytest.param(other_output, "model", "no output brightened", marks=pytest.mark.slow),
        pytest.param(damaged_model, "model", "enhancer.onnx", marks=pytest.mark.slow),
        pytest.param(no_trace_folder, "trace-folder", "is no folder", marks=pytest.mark.slow),
        pytest.param(small_trace_folder, "trace-folder", "capture.room_mib", marks=pytest.mark.slow),
        pytest.param(another_boards_trace_folder, "virtual-board", "dumps into", marks=pytest.mark.slow),
        pytest.param(no_board, "virtual-board", "board.json is damaged", marks=pytest.mark.slow),
        (killed_traced_sessions, "shared-heap", "40.0 MiB of 172.0 MiB free"),
        pytest.param(no_camera, "camera", "no-pictures", marks=pytest.mark.slow),
        pytest.param(empty_camera, "camera", "pictures", marks=pytest.mark.slow),
        pytest.param(state_is_a_file, "state-folder", "nothing can be written", marks=pytest.mark.slow),
        pytest.param(no_room_for_the_spool, "state-folder", "spool.headroom_mib", marks=pytest.mark.slow),
        (no_broker, "broker", "no connection to the broker"),
        pytest.param(tls_to_a_plain_broker, "broker", "no TLS", marks=pytest.mark.slow),
        pytest.param(no_ca, "broker", "link.ca", marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", "-"),
)
def test_one_broken_precondition_is_the_one_that_is_named(
    healthy: Rig, breaking: Callable[[Rig], None], named: str, words: str
) -> None:
    healthy.configure()
    breaking(healthy)
    failures = healthy.named()
    assert list(failures) == [named], failures
    assert words in failures[named]


@pytest.mark.slow
def test_no_virtual_board_in_the_environment(healthy: Rig) -> None:
    assert list(healthy.named(TIDEGAUGE_VIRTUALBOARD="")) == ["virtual-board"]


def test_no_remote_log_and_two_of_them(healthy: Rig) -> None:
    """The second is only a process whose command line looks the same: two cannot serve one board."""
    assert healthy.server is not None
    stop(healthy.server)
    try:
        assert list(healthy.named()) == ["remote-log"]
    finally:
        healthy.server = healthy.start_remote_log()
    words = ["remote-log", str(healthy.places.virtual)]
    double = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", *words])
    try:
        failures = healthy.named()
        assert list(failures) == ["remote-log"]
        assert str(double.pid) in failures["remote-log"]
    finally:
        stop(double)


def test_each_right_that_the_broker_refuses_is_named(healthy: Rig) -> None:
    kept = [f"topic write tidegauge/v1/{DEVICE}/{leaf}" for leaf in ("status", "result", "file/#")]
    healthy.rules.write_text("\n".join(kept) + "\n")
    broker = healthy.broker
    assert broker is not None
    seen = len(healthy.broker_log.read_bytes())
    broker.send_signal(signal.SIGHUP)
    until(lambda: b"Reloading config" in healthy.broker_log.read_bytes()[seen:], broker)
    try:
        failures = healthy.named()
    finally:
        healthy.rules.write_text(RULES)
        broker.send_signal(signal.SIGHUP)
    assert list(failures) == ["rights"]
    assert f"publish tidegauge/v1/{DEVICE}/alarm" in failures["rights"]
    assert "status" not in failures["rights"].partition("→")[0]


@pytest.mark.slow
def test_lines_for_a_person(healthy: Rig) -> None:
    command = [sys.executable, "-m", "tidegauge", "check", "--config", str(healthy.configuration)]
    done = subprocess.run(command, env=healthy.environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("configuration    ok ")
    assert re.fullmatch(r"\d+ ok, \d+ warning, 0 failed, \d+ not applicable", lines[-1])
    assert "\x1b" not in done.stdout, "no colours where nobody sees them"
