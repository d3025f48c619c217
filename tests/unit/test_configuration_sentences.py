"""A configuration that can't be used is told in one sentence, in TOML's words: file, key, what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegauge.agent.config import AgentConfig
from tidegauge.configuration import ConfigurationError, load_toml

START = 'device = "porch"\nstate = "state"\nprofile = "model.toml"\n'
CAMERA = '[camera]\nkind = "folder"\nsource = "pictures"\n'


def told(path: Path, kind: type = AgentConfig) -> str:
    with pytest.raises(ConfigurationError) as raised:
        load_toml(path, kind)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            START + CAMERA.replace("folder", "folderr"),
            "key `camera.kind` has a wrong value: 'folderr' is not known, did",
        ),
        (
            START + CAMERA.replace('"folder"', '"webcam"'),
            "'webcam' is not known, give one of folder, gstreamer, rtsp, synthetic, tap, v4l2, video",
        ),
        (START + "camera = 3\n", "key `camera` has a wrong value: Expected a table, got a whole number"),
        (
            START + CAMERA + "[link]\nport = 99999\n",
            "key `link.port` has a wrong value: Expected a whole number <= 65535",
        ),
        (
            START + CAMERA + '[shadow]\ngap_mean = "10"\n',
            "key `shadow.gap_mean` has a wrong value: Expected a number, got",
        ),
        (
            START + CAMERA + "[shadow]\ngap_mean = nan\n",
            "key `shadow.gap_mean` has a wrong value: nan is no finite number",
        ),
        (
            START + CAMERA + "[shadow]\ngap_mean = inf\n",
            "key `shadow.gap_mean` has a wrong value: inf is no finite number",
        ),
        (START.replace('"porch"', "[]"), "key `device` has a wrong value: Expected a string, got an array"),
        (START, "key `camera` is missing: add it"),
        ("device = \n", "is not valid TOML: Invalid value (at line 1, column 10)"),
    ],
)
def test_a_wrong_value_is_told_in_the_words_of_the_file(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    found = told(file)
    assert found.startswith(str(file))
    assert sentence in found


@pytest.mark.parametrize("case", ["loop", "too long", "below a file", "folder", "missing", "bytes"])
def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, case: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_bytes(b"\xff\xfe")
    path, words = {
        "loop": (tmp_path / "loop", "can't be read (Too many levels of symbolic links)"),
        "too long": (tmp_path / ("x" * 300), "can't be read (File name too long)"),
        "below a file": (tmp_path / "file" / "agent.toml", "can't be read (Not a directory)"),
        "folder": (tmp_path, "is a folder: give the path of the file in it"),
        "missing": (tmp_path / "none.toml", "does not exist"),
        "bytes": (tmp_path / "file", "is not UTF-8 text"),
    }[case]
    found = told(path)
    assert found.startswith(str(path))
    assert words in found
