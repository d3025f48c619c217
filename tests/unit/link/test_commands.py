"""Topics of file transfer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.link import commands
from tidegauge.link.commands import AbortCommand, BadTopic, ChunkCommand, FileTopic, FinCommand, InitCommand

ID = "ab" * 32
HASH = "cd" * 32


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (commands.init_topic("cam-1", ID), InitCommand()),
        (commands.chunk_topic("cam-1", ID, 262144, HASH), ChunkCommand(262144, HASH)),
        (commands.fin_topic("cam-1", ID, 7), FinCommand(7, ID)),
        (f"tidegauge/v1/cam-1/file/{ID}/abort", AbortCommand()),
    ],
)
def test_written_topics_are_read(text: str, command: commands.Command) -> None:
    assert commands.parse(text) == FileTopic("cam-1", ID, command)
    assert text.count("/") <= 7  # the most that some brokers allow


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"tidegauge/v1/cam-1/file/{ID}/init/",
        f"tidegauge/v1/cam-1/file/{ID}/init\n",
        f"tidegauge/v1/../file/{ID}/init",
        f"tidegauge/v1/cam-1/file/{ID.upper()}/init",
        f"tidegauge/v1/cam-1/file/{ID}/-1/{HASH}",
        f"tidegauge/v1/cam-1/file/{ID}/01/{HASH}",
        f"tidegauge/v1/cam-1/file/{ID}/٣/{HASH}",
        f"tidegauge/v1/cam-1/file/{ID}/0/{HASH[:-1]}",
        f"tidegauge/v1/cam-1/file/{ID}/fin/99999999999999/{HASH}",
        f"tidegauge/v1/cam-1/file/{ID}/fin/5",
        "tidegauge/v1/cam-1/file/../../etc/passwd/init",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadTopic):
        commands.parse(text)


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    with pytest.raises(BadTopic):
        commands.parse(text)
