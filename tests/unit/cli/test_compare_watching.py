"""The progress bar of `tidegauge compare`: for a person only, with the name of the layer."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from tidegauge.cli.compare_output import watching


def test_a_person_sees_the_layers_name_go_by() -> None:
    text = StringIO()
    with watching(Console(file=text, force_terminal=True, width=120)) as progress:
        assert progress is not None
        progress(3, 20, "/curve3/Add_output_0")
        progress(20, 20, "enhanced")
    assert "enhanced" in text.getvalue() and "20/20" in text.getvalue()


def test_a_file_or_a_pipe_gets_none() -> None:
    text = StringIO()
    with watching(Console(file=text, force_terminal=False)) as progress:
        assert progress is None
    assert text.getvalue() == ""
