"""`tidegauge device` to a running agent over a real broker: each command, its answer, its entry in the audit log."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from pathlib import Path

import pytest

from faults.small_board import SmallBoard, metrics, wait_for
from integration.link_peer import Mosquitto
from tidegauge.bundles.manifest import blobs_of
from tidegauge.bundles.reader import read_blob, read_manifest
from tidegauge.bundles.signature import check
from tidegauge.demo.settings import write_toml

DEVICE = "small"
PASSWORD = "canary-in-the-coal-mine"


@pytest.fixture
def board(tmp_path: Path) -> SmallBoard:
    return SmallBoard(tmp_path / "board", virtual=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_over_the_broker(tmp_path: Path, board: SmallBoard) -> None:
    (tmp_path / "broker").mkdir()
    broker = Mosquitto(tmp_path / "broker")
    broker.start()
    person = tmp_path / "operator"
    made = board.tidegauge_plain("keys", "new", str(person / "operator.key"))
    assert made.returncode == 0, made.stderr
    public = made.stdout.strip()
    link = {"host": "127.0.0.1", "port": broker.port, "backoff_first": 0.2, "backoff_most": 1.0, "connect_jitter": 0.0}
    write_toml(person / "operator.toml", {"link": link})
    password = board.folder / "password"
    password.write_text(f"{PASSWORD}\n")
    password.chmod(0o600)
    login = {"username": DEVICE, "password_file": str(password)}
    config = board.configure(
        shadow={"gap_mean": 0.1, "gap_floor": 0.02},
        acceptance={"samples": 20, "max_loss": 0.5},
        link={**link, **login},
        commands={"operators": [public]},
    )

    def device(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = board.tidegauge_plain("device", *arguments, "--config", str(person / "operator.toml"), "--timeout", "60")
        assert done.returncode == code, f"{arguments}: {done.stdout} {done.stderr}"
        return done

    try:
        with board.remote_log(), board.agent(config) as agent:
            url = board.url(agent)
            wait_for(lambda: board.status().reference, 120, "accepted reference")
            listed = json.loads(device("list", "--json").stdout)
            assert listed[DEVICE]["state"] == "online"
            assert "accepted" in device("status", DEVICE).stdout

            assert "every 7 s" in device("set-sampling", DEVICE, "7", "--floor", "1").stdout
            assert board.status().shadow.gap == 7
            assert "the log level is now debug" in device("log-level", DEVICE, "debug").stdout
            assert "taken at once: shadow.gap_" in device("reload", DEVICE).stdout
            assert board.status().shadow.gap < 7, "reading agent.toml takes its gap again"

            tested = device("self-test", DEVICE)
            assert "bit for bit" in tested.stdout
            assert "golden tensors checked" in tested.stderr
            captured = device("capture", DEVICE, "--json")
            assert json.loads(captured.stdout)["state"] == "done"
            assert "tracing" in captured.stderr
            (folder,) = (board.state / "spool" / "bundles").iterdir()
            bundle = read_manifest(folder).bundle_id
            assert "before all others" in device("pull", DEVICE, bundle).stdout
            assert "there is no bundle" in device("pull", DEVICE, "no-such-bundle", code=4).stderr

            assert "no alarm was latched" in device("alarm-clear", DEVICE).stdout
            answer = json.loads(device("rebaseline", DEVICE, "--json").stdout)
            assert answer["status"]["acceptance"]["state"] == "running"

            refused = device_with_another_key(board, person)
            assert refused.returncode == 4
            assert "unknown_key" in refused.stderr
            wait_for(lambda: metrics(url)['tidegauge_commands_total{result="forged"}'] >= 1, 30, "a counted forgery")
            assert metrics(url)['tidegauge_commands_total{result="done"}'] >= 8

            key = board.tidegauge("keys", "device").stdout.strip()
            assert check((folder / "manifest.json").read_bytes(), read_manifest(folder)) == key
            page, status = urllib.request.urlopen(url, timeout=30).read(), board.tidegauge("status", "--json").stdout
            seen = {"metrics": page, "status": status.encode(), "processes": processes(), **files(board.folder, folder)}
            for secret in (PASSWORD, body(board.state / "device.key"), body(person / "operator.key")):
                assert [name for name, data in seen.items() if secret.encode() in data] == [], secret[:8]
            assert any(key.encode() in data for data in seen.values()), "what is public is found by this search"

        gone = device("alarm-clear", DEVICE, "--timeout", "3", code=5)
        assert "is not connected (stopped)" in gone.stderr
    finally:
        broker.kill()
    audit = [json.loads(line) for line in (board.state / "audit.log").read_text().splitlines()]
    done = [entry["command"] for entry in audit if entry["done"]]
    assert done == [
        "SetSampling",
        "SetLogLevel",
        "Reload",
        "SelfTest",
        "CaptureNow",
        "Pull",
        "ClearAlarms",
        "Rebaseline",
    ]
    assert all("over the broker" in entry["who"] for entry in audit)
    assert "Traceback" not in board.log()


def body(key: Path) -> str:
    """The secret of a PEM file."""
    return key.read_text().splitlines()[1]


def processes() -> bytes:
    """Command lines and environments of everything that runs."""
    found = []
    for path in (*Path("/proc").glob("[0-9]*/cmdline"), *Path("/proc").glob("[0-9]*/environ")):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return b"\n".join(found)


def files(root: Path, bundle: Path) -> dict[str, bytes]:
    """All that the board has written, but its secrets themselves; the blobs of a bundle also as they were."""
    own = {"device.key", "password"}
    found = {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name not in own}
    for blob in blobs_of(read_manifest(bundle)).values():
        found[blob.sha256] = read_blob(bundle, blob, 1 << 28)
    return found


def device_with_another_key(board: SmallBoard, person: Path) -> subprocess.CompletedProcess[str]:
    made = board.tidegauge_plain("keys", "new", str(person / "other.key"))
    assert made.returncode == 0
    text = (person / "operator.toml").read_text()
    (person / "other.toml").write_text(f'key = "other.key"\n{text}')
    return board.tidegauge_plain("device", "alarm-clear", DEVICE, "--config", str(person / "other.toml"))
