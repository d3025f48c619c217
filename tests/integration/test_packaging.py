"""Wheel and sdist, built as for a release and installed where nothing of the checkout is in the way."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import tidegauge

ROOT = Path(__file__).parents[2]
PACKAGE = Path(tidegauge.__file__).parent
#: TI's image has these, built for TIDL: an installation must never bring others.
OF_THE_BOARD = ("onnxruntime", "tflite", "opencv", "ai-edge-litert")


def run(*command: str | Path, folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shipped() -> set[str]:
    """What the checkout's package folder holds, as a wheel names it."""
    listed = run("git", "ls-files", "daemon/tidegauge", folder=ROOT).splitlines()
    return {name.removeprefix("daemon/") for name in listed if (ROOT / name).exists()}


def test_the_version_is_the_same_wherever_it_is_told() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project.get("version", tidegauge.__version__)  # absent where it is read from the package
    assert version == tidegauge.__version__
    assert f"## {version}" in (ROOT / "docs" / "changelog.md").read_text()


@pytest.mark.slow
def test_wheel_and_sdist_install_and_run(tmp_path: Path) -> None:
    built, again, clean = tmp_path / "built", tmp_path / "again", tmp_path / "clean"
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", built, folder=ROOT)
    (sdist,) = built.glob("*.tar.gz")

    with tarfile.open(sdist) as archive:
        archive.extractall(again, filter="data")
    (unpacked,) = again.iterdir()
    for name in ("LICENSE", "README.md", "Makefile", "systemd/install", "agent_config/agent.toml"):
        assert (unpacked / name).is_file(), f"{name} is missing in the sdist"
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", again, folder=unpacked)
    (wheel,) = again.glob("*.whl")

    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(
            archive.read(next(name for name in names if name.endswith(".dist-info/METADATA")))
        )
    assert shipped() <= names
    assert {"tidegauge/py.typed", "tidegauge/tap/tidegauge_tap.h"} <= names
    assert set(metadata.get_all("Provides-Extra")) >= {"board", "pc", "collector", "demo"}
    base = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert not [line for line in base if line.startswith(OF_THE_BOARD)]
    assert not [line for line in metadata.get_all("Requires-Dist") if "extra == 'board'" in line.replace('"', "'")]

    run(sys.executable, "-m", "venv", clean, folder=tmp_path)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(clean)}))
    # What it depends on comes from here; editable installations of this environment are not taken along.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(clean / "bin" / "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, folder=tmp_path)
    assert tidegauge.__version__ in run(clean / "bin" / "tidegauge", "version", folder=tmp_path)
    where = run(clean / "bin" / "python", "-c", "import tidegauge; print(tidegauge.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(clean)
    assert "agent" in run(clean / "bin" / "tidegauge", "--help", folder=tmp_path)
    compiled = run(clean / "bin" / "tidegauge", "virtualboard", "--help", folder=tmp_path)
    assert "compile" in compiled
