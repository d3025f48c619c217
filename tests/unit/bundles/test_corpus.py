"""What fuzzing has found is read again; bombs stay within their memory; and the fuzzer itself finds a planted fault."""

from __future__ import annotations

import pytest

from fuzzing import bombs
from fuzzing.engine import fuzz, read
from fuzzing.run import corpus
from fuzzing.targets import Target, targets

TARGETS = targets()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_corpus_is_read_or_refused_by_name(name: str) -> None:
    inputs = [path.read_bytes() for path in corpus(name)]
    for data in [*TARGETS[name].seeds, *inputs]:
        assert read(TARGETS[name], data) == "", data[:80]


def test_every_folder_of_the_corpus_has_its_reader() -> None:
    assert {path.name for path in corpus("")} <= set(TARGETS)
    assert len([path for name in TARGETS for path in corpus(name)]) >= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [  # `make fuzz` measures all of them
        "zstd frame of 1 GiB that doesn't",
        "zip whose members are one and the same",
        "manifest nested a million deep",
        "manifest of as many names as are read",
    ],
)
def test_a_bomb_is_refused_within_fifty_mebibytes(name: str) -> None:
    """The limit is the kernel's, on the address space of a process of its own."""
    assert bombs.cost(name, limit=int(bombs.MOST_MIB))["said"]


def test_the_fuzzer_finds_a_planted_fault_and_keeps_what_led_to_it() -> None:
    def fragile(data: bytes) -> None:
        if len(data) > 8 and data[:2] == b"ab" and b'"' in data:
            raise IndexError("planted")
        raise ValueError("not of this format")

    found = fuzz(Target(fragile, (ValueError,), (b"ab----------",)), 30.0, 1, [], failures=1)
    assert list(found.failures.values()) == ["IndexError: planted"]
    assert read(Target(fragile, (ValueError,), ()), next(iter(found.failures)))


def test_an_error_without_a_word_is_a_finding() -> None:
    def mute(data: bytes) -> None:
        raise ValueError

    assert "without a word" in read(Target(mute, (ValueError,), ()), b"")
