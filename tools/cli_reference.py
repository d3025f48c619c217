"""Prints docs/cli.md from the commands themselves. `make docs`; a test compares the two."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from tidegauge.cli import COMMANDS, cli

HEAD = """\
# Commands

Generated from the commands themselves by `tools/cli_reference.py`; `--help` of a command says the same. Exit codes are
in [their own table](exit-codes.md). A command whose package is not installed says which extra brings it.
"""


def reference() -> str:
    context = click.Context(cli, info_name="tidegauge")
    lines = [HEAD, "| command | |", "|---|---|"]
    lines += [f"| [`{name}`](#tidegauge-{name}) | {COMMANDS[name]} |" for name in sorted(COMMANDS)]
    for name in sorted(COMMANDS):
        command = cli.get_command(context, name)
        assert command is not None, name
        lines += _command(command, context, name)
    return "\n".join(lines) + "\n"


def _command(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    """The section of a command, then those of the commands in it."""
    context = click.Context(command, parent=parent, info_name=name)
    yield f"\n## {context.command_path}\n"
    yield _paragraphs(command.help or "")
    yield f"    {context.command_path} {' '.join(command.collect_usage_pieces(context))}\n"
    rows = [row for parameter in command.get_params(context) if (row := _row(parameter, context))]
    if rows:
        yield from ("| option or argument | |", "|---|---|", *rows)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None, each
            yield from _command(found, context, each)


def _row(parameter: click.Parameter, context: click.Context) -> str:
    """Empty for a hidden option and for `--help`, which all have."""
    if isinstance(parameter, click.Argument):
        kind = parameter.type.get_metavar(parameter, context) or ""
        many = ", one or more" if parameter.nargs == -1 and parameter.required else ""
        many = ", any number" if parameter.nargs == -1 and not parameter.required else many
        said = f"argument{many}" + ("" if parameter.required or many else ", may be left out")
        shown = parameter.make_metavar(context)
        said += f": one of `{_cell(kind)}`" if kind not in shown else ""  # click shows choices in place of the name
        return f"| `{_cell(shown)}` | {said} |"
    record = parameter.get_help_record(context)
    if record is None or "--help" in parameter.opts:
        return ""
    names, said = record
    return f"| `{_cell(names)}` | {_cell(said)} |"


def _paragraphs(text: str) -> str:
    """Click's help as Markdown: a paragraph that starts with a backspace keeps its lines."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            parts.append("\n".join(f"    {line}" for line in paragraph.splitlines()[1:]))
        else:
            parts.append(_escaped(" ".join(paragraph.split())))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """In a table, and without this user's home."""
    return " ".join(text.replace(f"{Path.home()}/", "~/").split()).replace("|", "\\|")


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    print(reference(), end="")
