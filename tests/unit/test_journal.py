"""The journal's native protocol, against a real datagram socket."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.journal import Journal, encode, is_stream
from unit.journal_peer import Peer, parsed

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,20}", fullmatch=True)
TEXTS = st.text(alphabet=st.characters(), max_size=60)
VALUES = st.one_of(TEXTS, st.binary(max_size=60), st.integers(), st.floats(allow_nan=False))


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    peer = Peer(tmp_path)
    yield peer
    peer.close()


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=6))
def test_what_is_sent_is_what_is_read(fields: dict[str, str | bytes | int | float]) -> None:
    """Also with line breaks, "=", NUL, lone surrogates and any bytes in the values."""
    read = parsed(encode(fields))
    assert list(read) == list(fields)
    for name, value in fields.items():
        if isinstance(value, bytes):
            assert read[name] == value
        else:
            assert read[name] == str(value).encode(errors="backslashreplace")


@pytest.mark.parametrize("name", ["", "lower", "_PID", "9TH", "A=B", "A\nB", "A B", "Ä", "A" * 65, "A\n"])
def test_a_name_that_the_journal_would_not_keep_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a journal field"):
        encode({name: "x"})


def test_an_entry_arrives_with_its_fields(peer: Peer) -> None:
    journal = Journal(peer.address)
    assert journal.send({"MESSAGE": "two\nlines", "PRIORITY": 4, "BLOB": b"\x00\n\xff"})
    assert peer.entries() == [{"MESSAGE": b"two\nlines", "PRIORITY": b"4", "BLOB": b"\x00\n\xff"}]
    assert peer.files == 0
    journal.close()


def test_an_entry_too_large_for_a_datagram_comes_as_a_sealed_file(peer: Peer) -> None:
    journal = Journal(peer.address)
    large = os.urandom(3 << 20)
    assert journal.send({"MESSAGE": "large", "BLOB": large})
    open_files = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert not [name for name in open_files if "journal-entry" in name], "the writer keeps none open"
    assert peer.entries() == [{"MESSAGE": b"large", "BLOB": large}]
    assert peer.files == 1
    assert journal.lost == 0
    journal.close()


def test_a_full_socket_costs_the_entry_and_no_time(peer: Peer) -> None:
    """Nobody reads: a writer that waited would stand here for ever."""
    journal = Journal(peer.address)
    sent = 0
    while journal.send({"MESSAGE": f"entry {sent}"}):
        sent += 1
    assert not journal.send({"MESSAGE": "one more"})
    assert journal.lost == 2
    assert peer.messages() == [f"entry {number}" for number in range(sent)]
    assert journal.send({"MESSAGE": "there is room again"})
    assert peer.messages() == ["there is room again"]
    journal.close()


def test_a_journal_that_is_away_costs_entries_until_it_is_back() -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = Peer(Path(folder))
        journal = Journal(first.address)
        first.close()
        assert not journal.send({"MESSAGE": "nobody listens"})
        Path(first.address).unlink()
        assert not journal.send({"MESSAGE": "no socket"})
        second = Peer(Path(folder))
        assert journal.send({"MESSAGE": "back"})
        assert (second.messages(), journal.lost) == (["back"], 2)
        second.close()
        journal.close()


def test_stderr_is_the_journals_when_device_and_inode_are(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    with path.open("wb") as file:
        fd, found = file.fileno(), path.stat()
        assert is_stream(fd, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
        for other in (
            f"{found.st_dev}:{found.st_ino + 1}",
            f"{found.st_dev + 1}:{found.st_ino}",
            "",
            "1",
            "a:b",
            "1:2:3",
        ):
            assert not is_stream(fd, {"JOURNAL_STREAM": other}), other
        assert not is_stream(fd, {})
    assert not is_stream(fd, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}), "a closed one"
