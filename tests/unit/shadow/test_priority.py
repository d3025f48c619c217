from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegauge.shadow import worker


def folder_of(tmp_path: Path, *threads: int) -> Path:
    for thread in threads:
        (tmp_path / str(thread)).mkdir()
    return tmp_path


def test_what_the_system_refuses_is_said_once_and_the_rest_is_still_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    niced: list[int] = []

    def refuse(thread: int, policy: int, parameters: os.sched_param) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(worker.os, "sched_setscheduler", refuse)
    monkeypatch.setattr(worker.os, "setpriority", lambda which, thread, value: niced.append(thread))
    refused = worker.yield_to_everyone(folder_of(tmp_path, 4, 5))
    assert refused == ["SCHED_IDLE is not permitted for the shadow worker (Operation not permitted)"]
    assert sorted(niced) == [4, 5]


def test_a_thread_that_has_just_ended_is_no_refusal(tmp_path: Path) -> None:
    assert worker.yield_to_everyone(folder_of(tmp_path, 2**22 + 1)) == []
