"""Wheels for a board are chosen, checked and unpacked without pip."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "systemd" / "wheels.py"
_spec = importlib.util.spec_from_file_location("wheels", SCRIPT)
assert _spec is not None and _spec.loader is not None
wheels = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(wheels)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("numpy-2.4.6-cp312-cp312-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl", 3),
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl", None),
        ("numpy-2.4.6-cp312-cp312-manylinux_2_27_x86_64.whl", None),
        ("cryptography-50.0.2-cp311-abi3-manylinux_2_28_aarch64.whl", 2),
        ("cryptography-50.0.2-cp313-abi3-manylinux_2_28_aarch64.whl", None),
        ("pynacl-1.6.2-cp38-abi3-manylinux_2_26_aarch64.manylinux_2_28_aarch64.whl", 2),
        ("click-8.5.1-py3-none-any.whl", 1),
        ("six-1.17.0-py2.py3-none-any.whl", 1),
        ("watchdog-7.1.0-py3-none-manylinux2014_aarch64.whl", 1),
        ("new-1.0-cp312-cp312-manylinux_2_99_aarch64.whl", None),
        ("musl-1.0-cp312-cp312-musllinux_1_2_aarch64.whl", None),
    ],
)
def test_wheel_fits_this_python_machine_and_library(name: str, rank: int | None) -> None:
    assert wheels.rank(name, (3, 12), "aarch64", (2, 39)) == rank


def folder_of(tmp_path: Path, *names: str, entry: str = "") -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in names:
        with zipfile.ZipFile(folder / name, "w") as archive:
            package = name.split("-")[0]
            archive.writestr(entry or f"{package}/__init__.py", f"# {name}\n")
            archive.writestr(f"{package}-1.0.data/purelib/{package}_extra.py", "")
            archive.writestr(f"{package}-1.0.data/scripts/{package}", "")
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in folder.glob("*.whl"))
    (folder / "SHA256SUMS").write_text(sums)
    return folder


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", str(SCRIPT), str(folder), *options], capture_output=True, text=True)


def test_wheels_are_unpacked_and_what_the_image_has_is_kept(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "json-1.0-py3-none-any.whl", "absent_thing-1.0-py3-none-any.whl")
    done = run(folder, "--into", str(tmp_path / "site"), "--keep", "json,absent_thing")
    assert done.returncode == 0, done.stderr
    assert "kept json: the image has its own" in done.stdout
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == ["absent_thing", "absent_thing_extra.py"]


def test_changed_wheel_is_refused_by_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "one-1.0-py3-none-any.whl")
    with (folder / "one-1.0-py3-none-any.whl").open("ab") as file:
        file.write(b"x")
    done = run(folder, "--into", str(tmp_path / "site"))
    assert done.returncode == 2
    assert "one-1.0-py3-none-any.whl is not what SHA256SUMS says" in done.stderr
    assert not (tmp_path / "site").exists()


def test_missing_and_uncounted_wheels_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "one-1.0-py3-none-any.whl", "two-1.0-py3-none-any.whl")
    (folder / "two-1.0-py3-none-any.whl").rename(folder / "three-1.0-py3-none-any.whl")
    assert "three-1.0-py3-none-any.whl is not in SHA256SUMS" in run(folder).stderr
    (folder / "three-1.0-py3-none-any.whl").unlink()
    assert "lacks two-1.0-py3-none-any.whl" in run(folder).stderr


def test_package_without_a_fitting_wheel_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "one-1.0-cp27-cp27m-manylinux1_i686.whl")
    done = run(folder, "--into", str(tmp_path / "site"))
    assert done.returncode == 2
    assert "no wheel of one fits Python" in done.stderr


def test_wheel_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "one-1.0-py3-none-any.whl", entry="../../outside.py")
    done = run(folder, "--into", str(tmp_path / "site"))
    assert done.returncode == 2
    assert "outside of its folder" in done.stderr
    assert not (tmp_path / "outside.py").exists()
