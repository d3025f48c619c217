"""On a full disk the agent goes on in memory, and writes what it knows as soon as there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegauge.agent.disk import Disk
from tidegauge.agent.orphans import live, note
from tidegauge.agent.samples import Belongs, Journal, Sample
from tidegauge.agent.state import StateStore

BELONGS = Belongs("a" * 64, "b" * 64, {})
SAMPLE = Sample(0.25, None, (), "", False, {}, None)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few kilobytes."""
    if os.geteuid() != 0:
        pytest.skip("a small file system can be mounted by root only")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def test_state_survives_in_memory_and_is_written_when_there_is_room(small: Path) -> None:
    store = StateStore(small / "state")
    store.update(session=1)
    filler = fill(small)
    store.update(session=2)
    assert store.state.session == 2
    assert "No space left" in store.disk.problem
    assert StateStore(small / "state").state.session == 1  # whole, if old
    filler.unlink()
    store.save()
    assert store.disk.problem == ""
    assert StateStore(small / "state").state.session == 2


def test_acceptance_goes_on_and_its_journal_begins_when_there_is_room(small: Path) -> None:
    journal = Journal(small, Disk(small))
    filler = fill(small)
    journal.start(BELONGS)
    journal.add(SAMPLE)
    filler.unlink()
    journal.add(SAMPLE)
    assert Journal(small, Disk(small)).load(BELONGS) == [SAMPLE]


def test_worker_starts_without_its_record(small: Path) -> None:
    fill(small)
    note(small / "pipeline.pid", os.getpid())
    assert live(small) == []


def test_problem_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(tmp_path)

    def refuse() -> None:
        raise OSError(28, "No space left on device")

    assert [disk.attempt("this", refuse) for _ in range(3)] == [False] * 3
    assert disk.attempt("this", lambda: None)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
