"""The spool on a real ext4 whose power is cut: the disk's image is copied at random instants of a workload, mounted,
and must hold what had been promised before. What the model of a disk (`crash_disk`) says of the spool's code is so
checked against a real one; and the same workload without its syncs does lose bundles, so that a loss would be seen.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from faults.loop_workload import HELD, LIMITS
from faults.small_board import wait_for
from needs import program
from tidegauge.bundles.manifest import blobs_of
from tidegauge.bundles.reader import read_blob, read_manifest
from tidegauge.spool.faults import SpoolFault
from tidegauge.spool.store import Spool

CUTS = 6
HERE = Path(__file__).parent


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-o", "loop", str(image), str(at)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no loop device can be mounted here: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    program("mkfs.ext4", "e2fsprogs")
    path = tmp_path / "disk.img"
    with path.open("wb") as file:
        file.truncate(48 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(path)], check=True)
    return path


class Workload:
    """The program, and the file, on another disk, in which it has said what it was promised."""

    def __init__(self, folder: Path, told: Path, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        command = [sys.executable, str(HERE / "loop_workload.py"), str(folder), str(told), *arguments]
        self._told = told
        self.process = subprocess.Popen(command, env=environment)

    @property
    def said(self) -> list[str]:
        return self._told.read_text().splitlines() if self._told.exists() else []

    def stand_still(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", 60, "a program that stands still")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def cut(workload: Workload, image: Path, copy: Path) -> tuple[set[str], set[str]]:
    """Copy the disk while the program stands still, wherever it was. Returns what it had been promised, and what else
    may be there: one commit, or one removal, may be done and not yet said.
    """
    workload.stand_still()
    said = workload.said
    subprocess.run(["cp", "--sparse=always", str(image), str(copy)], check=True)
    workload.process.send_signal(signal.SIGCONT)
    committed, leaving, gone = ({line[1:] for line in said if line[0] == mark} for mark in "+~-")
    following = f"bundle-{len(committed) + 1:06d}"
    return committed - leaving, (committed - gone) | {following}


def found(folder: Path) -> dict[str, bool]:
    """The bundles of a spool that starts on what is left, and whether each is whole."""
    spool = Spool(folder, LIMITS)
    assert spool.faults[SpoolFault.IO] == 0
    whole = {}
    for entry in spool.pending():
        manifest = read_manifest(entry.path)
        whole[entry.id] = all(len(read_blob(entry.path, blob, 1 << 20)) for blob in blobs_of(manifest).values())
    return whole


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_was_promised_is_on_a_real_ext4_after_a_cut(tmp_path: Path, image: Path) -> None:
    rng = Random()
    cuts = []
    with mounted(image, tmp_path / "disk") as disk:
        workload = Workload(disk / "spool", tmp_path / "told")
        try:
            wait_for(lambda: len(workload.said) > 4 * HELD, 60, "a workload under way")
            for number in range(CUTS):
                heard = len(workload.said)
                wait_for(lambda heard=heard: len(workload.said) > heard + 3, 60, "more of it")
                time.sleep(rng.random() * 0.05)  # any instant
                copy = tmp_path / f"cut-{number}.img"
                cuts.append((copy, *cut(workload, image, copy)))
        finally:
            workload.stop()
    for copy, promised, possible in cuts:
        assert promised
        with mounted(copy, tmp_path / "after") as disk:
            left = found(disk / "spool")
            assert promised <= set(left), sorted(promised - set(left))
            assert set(left) <= possible, sorted(set(left) - possible)
            assert all(left.values())
        copy.unlink()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_its_syncs_a_real_ext4_loses_bundles(tmp_path: Path, image: Path) -> None:
    with mounted(image, tmp_path / "disk") as disk:
        workload = Workload(disk / "spool", tmp_path / "told", "forget")
        try:
            wait_for(lambda: len(workload.said) > 4 * HELD, 60, "a workload under way")
            promised, _ = cut(workload, image, tmp_path / "cut.img")
        finally:
            workload.stop()
    assert promised
    with mounted(tmp_path / "cut.img", tmp_path / "after") as disk:
        left = found(disk / "spool")
    assert promised - set(left), "ext4 had not written them yet: this way of cutting would show a loss"
