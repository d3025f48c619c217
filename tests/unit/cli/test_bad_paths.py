"""A path that can't be used is one sentence and exit code 2; a fault of the program is a traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from needs import unless
from tidegauge.cli import CURES, main

NOBODY = 65534
needs_root = unless(os.geteuid() == 0, "only root can become another user")

Run = Callable[..., tuple[int, str]]

#: Each command that takes a path, with `@` where it stands.
COMMANDS = (
    ("lint", "@"),
    ("inspect", "@"),
    ("inspect", "here", "--artifacts", "@"),
    ("inspect", "here", "--same-as", "@"),
    ("compare", "@"),
    ("compare", "here", "--model", "@"),
    ("bundle", "show", "@"),
    ("bundle", "pack", "@", "new"),
    ("bundle", "unpack", "@", "new"),
    ("profile", "@"),
    ("profile", "here", "-o", "@"),
    ("status", "--config", "@"),
    ("status", "--state", "@"),
    ("alarm", "clear", "--state", "@"),
    ("rebaseline", "--state", "@"),
    ("baseline", "compare", "@", "file"),
    ("baseline", "show", "--state", "@"),
    ("keys", "new", "@"),
    ("keys", "show", "@"),
    ("agent", "reload", "--config", "@"),
    ("agent", "reload", "--state", "@"),
    ("collector", "verify", "--config", "@"),
    ("collector", "backup", "here", "--config", "@"),
    ("model", "list", "--config", "@"),
    ("demo", "--once", "--keep", "@"),
    ("virtualboard", "inject", "@"),
)
BAD = {
    "its parent is a file": "file/model.onnx",
    "its name is too long": "a" * 300 + ".onnx",
    "it is a link to itself": "loop",
    "its parent is a link to itself": "loop/model.onnx",
    "it gives an error of the disk": "/proc/self/mem",
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code and stderr of a command, run in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "here").mkdir()

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["tidegauge", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_path_that_can_not_be_used_is_one_sentence(run: Run, command: tuple[str, ...], bad: str) -> None:
    code, said = run(*(BAD[bad] if argument == "@" else argument for argument in command))
    assert code == 2
    own = [line for line in said.splitlines() if line.startswith(("tidegauge: ", "Error: "))]
    assert len(own) == 1, said
    assert "Traceback" not in said


@needs_root
def test_a_folder_that_may_not_be_entered_is_named_with_its_cure(run: Run, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    model = closed / "model.onnx"
    model.write_bytes(b"x")
    first = run("lint", str(model))  # as root, who imports what another user may not
    assert first[0] == 2 and "can't be read as ONNX" in first[1]
    closed.chmod(0)
    os.seteuid(NOBODY)
    try:
        code, said = run("lint", str(model))
    finally:
        os.seteuid(0)
    assert (code, said) == (2, f"tidegauge: {model}: Permission denied: {CURES[errno.EACCES]}\n")


def test_a_name_that_is_no_text_can_not_be_printed(run: Run, tmp_path: Path) -> None:
    config = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.toml")
    code, said = run("check", "--config", config)
    assert code == 2
    assert said.startswith("tidegauge: a file's name is no text") and said.endswith(": rename it\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "fault",
    [
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        PermissionError(errno.EACCES, "Permission denied"),
        OSError(errno.EBADF, "Bad file descriptor", "x"),
        RuntimeError("something else"),
        "é".encode,
    ],
    ids=["refused", "no_name", "no_path", "descriptor", "no_system", "encoding"],
)
def test_what_no_path_is_at_fault_for_stays_a_traceback(fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        if isinstance(fault, Exception):
            raise fault
        "é".encode("ascii")

    monkeypatch.setattr("tidegauge.cli.cli", fail)
    monkeypatch.setattr(sys, "argv", ["tidegauge", "lint", "x"])
    with pytest.raises((OSError, RuntimeError, UnicodeEncodeError)):
        main()


@pytest.mark.parametrize("service", [("agent", "run"), ("collector", "run")])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EROFS])
def test_a_service_with_such_a_path_is_one_to_restart(
    service: tuple[str, str], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be back after a while: code 2 would keep systemd from trying."""

    def fail(**_: object) -> None:
        raise OSError(number, os.strerror(number), "/var/lib/tidegauge/x")

    monkeypatch.setattr("tidegauge.cli.cli", fail)
    monkeypatch.setattr(sys, "argv", ["tidegauge", *service])
    with pytest.raises(OSError, match="/var/lib/tidegauge/x"):
        main()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_error_of_reading_or_writing_needs_no_name(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tidegauge.cli.cli", fail)
    monkeypatch.setattr("tidegauge.cli._leave_stdout", lambda: None)
    monkeypatch.setattr(sys, "argv", ["tidegauge", "lint", "x"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("tidegauge: the output, or a file that was being ") and said.endswith(f"{CURES[number]}\n")
