"""Files on their way in: whatever the order of their chunks, the hash that is told is that of the bytes on the disk."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.collector.partial import FolderPartials

CHUNK = 5_000  # more than what hashlib hashes without letting other threads run
PIECES = st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=40)


@given(story=PIECES, in_order=st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_a_file_is_whole_exactly_where_its_bytes_have_its_hash(story: list[tuple[int, bool]], in_order: int) -> None:
    """`story`: which chunk is written, and whether with other bytes than it should have; then the rest, some before in
    order. A chunk written once more heals what was wrong.
    """
    right = [hashlib.sha256(bytes([number])).digest() * (CHUNK // 32) for number in range(12)]
    name = hashlib.sha256(b"".join(right)).hexdigest()
    size = len(right[0])
    with tempfile.TemporaryDirectory() as folder:
        partials = FolderPartials(Path(folder))
        wrong: set[int] = set()
        order = [(number, False) for number in range(in_order)] + story
        order += [(number, False) for number in range(12) if number not in {each for each, _ in order}]
        for number, damaged in order:
            data = bytes(size) if damaged else right[number]
            (wrong.add if damaged else wrong.discard)(number)
            partials.write("cam-1", name, number * size, data)
        with partials.whole("cam-1", name, 12 * size) as path:
            assert (path is not None) == (not wrong)
            if path is not None:
                assert path.read_bytes() == b"".join(right)
        for number in wrong:
            partials.write("cam-1", name, number * size, right[number])
        with partials.whole("cam-1", name, 12 * size) as path:
            assert path is not None, "a second check trusts nothing but the file"
