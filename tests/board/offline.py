"""Folders of wheels for a tree: what the offline install takes, and what stands in for TI's image and for a PC."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

from board.tree import REPOSITORY

#: TI's image brings these; here they are the stock ones of PyPI, so that the install has something real to keep.
IMAGE = ("numpy", "onnxruntime", "opencv-python-headless", "flatbuffers", "protobuf", "packaging")
#: For the tests.
TESTING = ("pytest", "pytest-timeout", "hypothesis", "iniconfig", "pluggy", "pygments", "sortedcontainers")
#: For the demo, beside the collector's lock: its broker, and what that stands on.
DEMO = (
    *("argon2-cffi", "argon2-cffi-bindings"),
    *(
        "tomli-w",
        "amqtt",
        "annotated-doc",
        "annotated-types",
        "dacite",
        "psutil",
        "pwdlib",
        "pydantic",
        "pydantic-core",
    ),
    *("shellingham", "six", "transitions", "typer", "typing-inspection", "websockets"),
)
#: The board's own, as its lock has them; a wheel of each is needed for each Python.
PYTHONS = ("3.11", "3.12", "3.13")
#: glibc of Debian 12, TI's SDK 10 and 11, Debian 13.
GLIBC = {"3.11": (2, 36), "3.12": (2, 39), "3.13": (2, 41)}

_spec = importlib.util.spec_from_file_location("wheels", REPOSITORY / "systemd" / "wheels.py")
assert _spec is not None and _spec.loader is not None
wheels = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(wheels)


def bundle(machine: str, pythons: str) -> Path:
    """The folder that `make board-bundle` makes, for this machine and these Pythons; `remove` takes it away."""
    out = Path(tempfile.mkdtemp(prefix="tidegauge-bundle-"))
    environment = {**os.environ, "MACHINE": machine, "PYTHONS": pythons, "OUT": str(out)}
    subprocess.run([REPOSITORY / "tools" / "board-bundle"], check=True, env=environment, timeout=600)
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    return folder


def sums(folder: Path) -> None:
    """Write SHA256SUMS for what lies in the folder."""
    with (folder / "SHA256SUMS").open("wb") as file:
        subprocess.run(["sh", "-c", "sha256sum -- *.whl"], cwd=folder, check=True, stdout=file, timeout=300)


def download(machine: str, python: str, names: tuple[str, ...], into: Path, lock: Path | None = None) -> None:
    """Wheels of these packages in the versions that this environment has, or of a whole lock file by its hashes."""
    # Each tag is a wish of its own: pip does not take a wheel for an older glibc by itself. Debian 12 has 2.36.
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in range(36, 16, -1)]
    command = ["python3", "-m", "pip", "--quiet", "--quiet", "download", "--no-deps", "--only-binary=:all:", *platforms]
    command += [f"--platform=manylinux2014_{machine}", "--implementation=cp", f"--python-version={python}"]
    command += ["-d", str(into)]
    if lock is not None:
        command += ["--require-hashes", "-r", str(lock)]
    command += [f"{name}=={version(name)}" for name in names]
    subprocess.run(command, check=True, timeout=900)


def unpack(folder: Path, site: Path, skip: tuple[str, ...] = ()) -> None:
    """All wheels of the folder into a site folder, but those of distributions in `skip`."""
    site.mkdir(parents=True, exist_ok=True)
    for wheel in sorted(folder.glob("*.whl")):
        if wheel.name.partition("-")[0].lower().replace("_", "-") not in skip:
            wheels.unpack(wheel, site)


def without_wheel(folder: Path, machine: str, python: str) -> list[str]:
    """Distributions of the folder that have no wheel which this Python could take on this machine."""
    major, minor = (int(part) for part in python.split("."))
    fits: dict[str, bool] = {}
    for wheel in folder.glob("*.whl"):
        name = wheel.name.partition("-")[0].lower()
        rated = wheels.rank(wheel.name, (major, minor), machine, GLIBC[python])
        fits[name] = fits.get(name, False) or rated is not None
    return sorted(name for name, fit in fits.items() if not fit)


def remove(folder: Path) -> None:
    shutil.rmtree(folder.parent)
