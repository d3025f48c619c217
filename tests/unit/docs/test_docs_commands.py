"""What a page's blocks of commands are, and that a reader's shell goes through them: `make docs-commands`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from unit.docs.generators import ROOT, tool

docs = tool("docs_commands")
PAGES: list[Path] = docs.pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_runs_or_says_why_not(page: Path) -> None:
    for block in docs.blocks(docs.name_of(page), page.read_text()):
        if block.language == "sh":
            shell = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
            assert shell.returncode == 0, f"{block.page}:{block.line}: {shell.stderr}"
            assert docs.commands(block.text), f"{block.page}:{block.line}: no command in it"
            if not block.skip:
                assert "…" not in block.text, f"{block.page}:{block.line}: … can't be typed"
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "python" and not block.text.startswith('"'):  # a line for a dict, to paste
            ast.parse(block.text)


def test_most_blocks_run() -> None:
    every = [b for page in PAGES for b in docs.blocks(docs.name_of(page), page.read_text()) if b.language == "sh"]
    assert len(every) > 20
    assert sum(not b.skip for b in every) > sum(bool(b.skip) for b in every)


def test_a_block_has_what_its_comment_says() -> None:
    text = "1. Do\n\n   <!-- commands: needs clone; exits 1; prints a b -->\n   ```sh\n   false \\\n     x\n   ```\n"
    (block,) = docs.blocks("p.md", text)
    assert (block.number, block.line, block.needs, block.exits, block.prints) == (1, 4, ("clone",), 1, ("a b",))
    assert block.text == "false \\\n  x" and docs.commands(block.text) == ["false x"]
    (skipped,) = docs.blocks("p.md", "<!-- commands: skip no board; needs one -->\n```sh\nreboot\n```\n")
    assert skipped.skip == "no board; needs one"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```\nls\n```\n", "needs a language"),
        ("```console\nls\n```\n", "needs a language"),
        ("<!-- commands: needs a miracle -->\n```sh\nls\n```\n", "no marker"),
        ("<!-- commands: skip -->\n```sh\nls\n```\n", "says nothing more"),
        ("<!-- commands: exits 1 -->\n```sh\nls\nls x\n```\n", "one command"),
        ("<!-- commands: prints x -->\n```text\nx\n```\n", "needs a language"),
        ("<!-- commands: prints x -->\nNot a block.\n", "before no block"),
        ("```sh\nls\n", "ends within"),
    ],
)
def test_what_can_not_be_classified_is_refused(text: str, told: str) -> None:
    with pytest.raises(docs.PageError, match=told):
        docs.blocks("p.md", text)


def read(folder: Path, text: str) -> list[tuple[str, str]]:
    """Outcome and reason of each block, by a reader without a machine of its own."""
    reader = docs.Reader(folder)
    rows = [reader.read(block) for block in docs.blocks("p.md", text)]
    return [(row.outcome, row.reason) for row in (*rows, *reader.leave())]


def test_folder_and_variables_stay_from_block_to_block(tmp_path: Path) -> None:
    first = "```sh\nmkdir 'a b'\ncd 'a b'\nexport WORD='c d'\n```\n"
    second = '<!-- commands: prints a b:c d -->\n```sh\necho "$PWD:$WORD"\n```\n'
    assert read(tmp_path, first + second) == [("ran", ""), ("ran", "")]


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("```sh\nfalse\ntrue\n```\n", "exit code 1, not 0"),
        ("```sh\nfalse | true\n```\n", "exit code 1, not 0"),
        ("```sh\necho $NOBODY_SET_THIS\n```\n", "unbound variable"),
        ("<!-- commands: exits 1 -->\n```sh\ntrue\n```\n", "exit code 0, not 1"),
        ("<!-- commands: prints sea -->\n```sh\necho land\n```\n", "did not print 'sea'"),
        ("<!-- commands: background ready -->\n```sh\necho no\n```\n", "before it printed 'ready'"),
    ],
)
def test_what_a_reader_would_stumble_over_fails(tmp_path: Path, block: str, told: str) -> None:
    ((outcome, reason),) = read(tmp_path, block)
    assert outcome == "failed" and told in reason


def test_what_stays_in_the_background_ends_by_ctrl_c(tmp_path: Path) -> None:
    server = 'python -c \'import signal; print("re" + "ady", flush=True); signal.sigwait([signal.SIGINT])\''
    assert read(tmp_path, f"<!-- commands: background ready -->\n```sh\n{server}\n```\n```sh\ntrue\n```\n") == [
        ("ran", ""),
        ("ran", ""),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["agent_config/broker/README.md", "docs/dashboards.md", "docs/board.md", "docs/inspect.md"]
)
def test_the_commands_of_a_page_run_in_order(tmp_path: Path, page: str) -> None:
    """The pages that take seconds; `make docs-commands` runs all."""
    if reason := docs.no_machine():
        pytest.skip(f"no machine of its own for a page: {reason}")
    told = tmp_path / "told.json"
    command = [sys.executable, str(ROOT / "tools" / "docs_commands.py"), page, "--json", str(told)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    blocks = json.loads(told.read_text())["blocks"]
    assert any(block["outcome"] == "ran" for block in blocks)
