"""Every `tidegauge …` and `make …` that a page tells a reader to type exists, with each of its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tidegauge.cli import cli

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
_FENCE = re.compile(r"^ *```[a-z]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_CONTINUED = re.compile(r"\s*\\\n\s*")
#: What a signature is made over begins with such words: no command.
_LABEL = re.compile(r" v\d$")
_SPAN = re.compile(r"(?<!`)`((?:tidegauge|make) [^`]+)`")


def commands(text: str) -> Iterator[list[str]]:
    """What stands in code and begins with either program, as words; without comments, and up to what a shell adds."""
    fenced = [
        line.strip().removeprefix("$ ")
        for block in _FENCE.findall(text)
        for line in _CONTINUED.sub(" ", block).splitlines()
    ]
    spans = [" ".join(span.split()) for span in _SPAN.findall(_FENCE.sub("", text))]
    for line in (*fenced, *spans):
        line = re.split(r"\s#|[|>&;\\]|…", line)[0].strip()
        if line.startswith(("tidegauge ", "make ")) and not _LABEL.search(line):
            yield shlex.split(line)


def unknown(words: list[str]) -> str:
    """What of a `tidegauge` command does not exist; empty where all does."""
    command: click.Command = cli
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest[0])
        if found is None:
            return f"`{' '.join(words)}`: there is no command {rest[0]}"
        command, rest = found, rest[1:]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    for word in rest:
        name = word.strip("[]").partition("=")[0]
        if name.startswith("--") and name not in known:
            return f"`{' '.join(words)}`: {command.name} has no option {name}"
    if isinstance(command, click.Group) or any(word.startswith(("[", "-h", "--help")) for word in rest):
        return ""
    if rest and rest[-1].startswith("--"):  # a sentence about that option
        rest = rest[:-1]
    try:
        context = click.Context(command)
        _, left, _ = command.make_parser(context).parse_args(list(rest))
    except click.UsageError as problem:
        return f"`{' '.join(words)}`: {problem.format_message()}"
    return f"`{' '.join(words)}`: {command.name} does not take {left}" if left else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_says_to_type_exists(page: Path) -> None:
    wrong = []
    for words in commands(page.read_text()):
        if words[0] == "tidegauge":
            wrong += [found] if (found := unknown(words)) else []
        else:
            wrong += [f"make {word}" for word in words[1:] if re.fullmatch(r"[a-z-]+", word) and word not in TARGETS]
    assert not wrong


def test_there_is_something_to_find() -> None:
    assert sum(len(list(commands(page.read_text()))) for page in PAGES) > 60
    assert "no command frobnicate" in unknown(["tidegauge", "frobnicate"])
    assert "no option --frobnicate" in unknown(["tidegauge", "agent", "run", "--frobnicate"])
    assert "does not take a value" in unknown(["tidegauge", "compare", "--past-input=3", "traces"])
    assert "does not take ['x']" in unknown(["tidegauge", "agent", "run", "--config", "agent.toml", "x"])
