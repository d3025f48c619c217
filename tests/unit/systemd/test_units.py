"""The units say what exit codes and notifications mean, and are walled in as far as the accelerator's stack allows."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from needs import unless
from tidegauge.collector.serve import WebServerEnded
from tidegauge.exitcodes import ExitCode

UNITS = Path(__file__).parents[3] / "systemd"
NAMES = ("tidegauge-agent.service", "tidegauge-collector.service", "tidegauge-remote-log.service")

needs_systemd = unless(shutil.which("systemd-analyze") is not None, "systemd-analyze is not installed")


def read(path: Path) -> dict[str, dict[str, list[str]]]:
    """Sections, keys, and all values of a key in order."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(section, {}).setdefault(key, []).append(value)
    return found


def test_agent_is_not_restarted_where_only_a_person_can_help() -> None:
    service = read(UNITS / "tidegauge-agent.service")["Service"]
    assert service["RestartPreventExitStatus"] == [str(ExitCode.UNUSABLE.value)]
    assert service["Restart"] == ["on-failure"]
    assert service["Type"] == ["notify"]
    assert service["WatchdogSec"] == ["60"]


def test_collector_is_restarted_after_a_fault_of_its_own() -> None:
    service = read(UNITS / "tidegauge-collector.service")["Service"]
    assert service["Restart"] == ["on-failure"]
    assert str(int(WebServerEnded().exit_code)) not in ["0", *service["RestartPreventExitStatus"]]


SECONDS = {"h": 3600, "min": 60, "s": 1, "": 1}
#: What systemd takes for a key that a unit leaves out (systemd-system.conf(5)).
DEFAULTS = {"TimeoutStartSec": "90", "TimeoutStopSec": "90"}


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)(h|min|s|)", text)
    assert found is not None, text
    return int(found[1]) * SECONDS[found[2]]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("tidegauge-agent.service", ()),
        ("tidegauge-agent.service", ("tidegauge-agent.service.d/reboot.conf.example",)),
        ("tidegauge-collector.service", ()),
    ],
)
def test_starts_that_fail_for_ever_come_to_an_end(name: str, changed: tuple[str, ...]) -> None:
    """The slowest of them too: each takes all the time that it may. Else the limit would never be reached."""
    found = read(UNITS / name)
    for each in changed:
        found["Unit"] |= read(UNITS / each)["Unit"]
    service = DEFAULTS | {key: values[-1] for key, values in found["Service"].items()}
    slowest = sum(seconds(service[key]) for key in ("TimeoutStartSec", "TimeoutStopSec", "RestartSec"))
    (burst,), (interval,) = found["Unit"]["StartLimitBurst"], found["Unit"]["StartLimitIntervalSec"]
    assert int(burst) * slowest < seconds(interval)


def test_reboot_is_off_unless_asked_for() -> None:
    assert "StartLimitAction" not in (UNITS / "tidegauge-agent.service").read_text()
    examples = {path.name for path in (UNITS / "tidegauge-agent.service.d").iterdir() if path.suffix == ".example"}
    assert "reboot.conf.example" in examples


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_units_hold_no_unknown_key(name: str, tmp_path: Path) -> None:
    text = re.sub(r"(?m)^(Exec\w+=).*$", r"\1/bin/true", (UNITS / name).read_text())
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True
    )
    own = [line for line in done.stderr.splitlines() if "tidegauge" in line]
    assert not own


@needs_systemd
@pytest.mark.parametrize(("name", "most"), [(NAMES[0], 2.5), (NAMES[1], 2.0), (NAMES[2], 2.5)])
def test_exposure_stays_low(name: str, most: float, tmp_path: Path) -> None:
    """The agent's with the accelerator's drop-in, as it is installed."""
    shutil.copytree(UNITS, tmp_path / "units")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", f"--threshold={most * 10:.0f}", "--no-pager", name],
        capture_output=True,
        text=True,
        cwd=tmp_path / "units",
    )
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_rules_and_accounts_name_the_same_group() -> None:
    assert 'GROUP="tidegauge"' in (UNITS / "udev.rules").read_text()
    assert "u tidegauge -" in (UNITS / "sysusers.conf").read_text()
    for name in (NAMES[0], NAMES[2]):
        assert read(UNITS / name)["Service"]["User"] == ["tidegauge"]


def test_agent_is_bounded_and_walled_in_by_name() -> None:
    """Bounds of memory and tasks are no part of the exposure's score."""
    service = read(UNITS / NAMES[0])["Service"]
    assert (service["ProtectSystem"], service["ProtectHome"], service["NoNewPrivileges"]) == (
        ["strict"],
        ["yes"],
        ["yes"],
    )
    assert service["MemoryMax"] == ["1536M"]
    assert service["TasksMax"] == ["256"]
    assert service["SystemCallFilter"][0] == "@system-service"
    credentials = (UNITS / "tidegauge-agent.service.d" / "credentials.conf.example").read_text()
    assert "LoadCredential=" in credentials


@pytest.mark.parametrize("name", NAMES)
def test_each_unit_is_walled_in(name: str) -> None:
    """One wall less may leave the score below its bound."""
    service = read(UNITS / name)["Service"]
    walls = (
        "ProtectSystem",
        "ProtectHome",
        "NoNewPrivileges",
        "PrivateMounts",
        "RestrictNamespaces",
        "LockPersonality",
    )
    assert [service.get(wall) for wall in walls] == [["strict"], ["yes"], ["yes"], ["yes"], ["yes"], ["yes"]]
    assert service["SystemCallFilter"][0] == "@system-service"
    assert int(service["TasksMax"][0]) > 0


def test_every_node_that_a_unit_may_open_is_its_group_s() -> None:
    """What a unit is allowed and no rule gives to its group, it could not open; `video` has the rest in every image."""
    rules = (UNITS / "udev.rules").read_text()
    given = dict(re.findall(r'(?m)^SUBSYSTEM=="(\w+)".*GROUP="(\w+)", MODE="0660"$', rules))
    stack = {"/dev/mem", "char-rpmsg", "char-rpmsg_ctrl", "char-dma_heap"}
    allowed = {
        "agent": read(UNITS / "tidegauge-agent.service.d" / "10-accelerator.conf")["Service"],
        "remote log": read(UNITS / NAMES[2])["Service"],
    }
    nodes = {who: {value.removesuffix(" rw") for value in each["DeviceAllow"]} for who, each in allowed.items()}
    assert nodes["remote log"] == stack
    assert nodes["agent"] == stack | {"char-video4linux", "char-media", "char-drm"}
    assert {name.removeprefix("char-").removeprefix("/dev/") for name in stack} == {
        subsystem for subsystem, group in given.items() if group == "tidegauge"
    }
    assert given["media"] == "video"
    assert allowed["agent"]["SupplementaryGroups"] == ["video"]
    assert "m tidegauge video" in (UNITS / "sysusers.conf").read_text().splitlines()
    for each in allowed.values():
        assert each["AmbientCapabilities"] == each["CapabilityBoundingSet"] == ["CAP_SYS_RAWIO"]


def test_secrets_folder_can_not_be_listed_by_others() -> None:
    lines = [line.split() for line in (UNITS / "tmpfiles.conf").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if line] == [["d", "/etc/tidegauge", "0751", "root", "tidegauge"]]
    for name in NAMES[:2]:
        service = read(UNITS / name)["Service"]
        assert (service["StateDirectoryMode"], service["UMask"]) == (["0750"], ["0027"])
