"""What an operator sees of a mistake in collector.toml."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tidegauge.collector.config import CollectorConfig, load
from tidegauge.errors import TidegaugeError

EXAMPLE = Path(__file__).parents[3] / "agent_config" / "collector.toml"


def write(folder: Path, text: str) -> Path:
    path = folder / "collector.toml"
    path.write_text(text)
    return path


def test_example_is_valid_and_shows_the_defaults(tmp_path: Path) -> None:
    example = load(EXAMPLE)
    bare = load(write(tmp_path, f'data = "{example.data}"\n[link]\n'))
    assert example == bare


def test_example_names_every_key(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    for section in (
        "http",
        "access",
        "uploads",
        "commands",
        "limits",
        "comparison",
        "database",
        "blobs",
        "ingest",
        "workers",
        "retention",
    ):
        (field,) = (item for item in msgspec.structs.fields(CollectorConfig) if item.name == section)
        for key in msgspec.structs.fields(field.type):
            assert re.search(rf"^{key.name} = ", text, re.MULTILINE), f"{section}.{key.name}"


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = load(write(tmp_path, 'data = "d"\ncompile_library = "c"\n[link]\nca = "ca.pem"\n'))
    assert config.data_folder == tmp_path / "d" and config.library_folder == tmp_path / "c"
    assert config.link.ca == str(tmp_path / "ca.pem") and config.link.key == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('data = "d"\n[link]\n[htp]\n', r"unknown key `htp`.*did you mean `http`"),
        ('data = "d"\n[link]\n[comparison]\nmemory_byte = 1\n', r"`comparison\.memory_byte`.*`memory_bytes`"),
        ('data = "d"\n[link]\n[http]\nport = 70000\n', r"`http\.port` has a wrong value"),
        ('data = "d"\n[link]\n[http]\nbase = "tide"\n', r"`http\.base` has a wrong value"),
        ('data = "d"\n[link]\n[http]\ncertificate = "c"\n', r"one of `http\.certificate` and `http\.key`"),
        ('data = "d"\n[link]\n[access]\nproxies = ["proxy"]\n', r"'proxy' in `access\.proxies`.*no address"),
        ('data = "d"\n[link]\n[commands]\nkey = "k"\n[trust]\nkeep_commands = false\n', r"no answer would be heard"),
        ("[link]\n", r"key `data` is missing"),
        ('data = "d"\n', r"key `link` is missing"),
        ("data = \n", r"not valid TOML"),
        ('data = "d"\n[link]\n[database]\nurl = "postgresql://x/y"\n', r"`database\.url` without `blobs\.bucket`"),
        ('data = "d"\n[link]\n[blobs]\nbucket = "b"\n', r"`blobs\.bucket` without `database\.url`"),
        ('data = "d"\n[link]\n[database]\nurl = "mysql://x/y"\n', r"`database\.url` has a wrong value"),
        ('data = "d"\n[link]\n[ingest]\ngroup = "g"\n', r"`ingest\.group`.*keeps its database to itself"),
        ('data = "d"\nroles = ["ingest"]\n[link]\n', r"leaves a role out"),
        ('data = "d"\n[link]\n[workers]\ndead_after = 6\n', r"at least twice `workers\.heartbeat`"),
    ],
)
def test_mistakes_name_file_key_and_cure(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TidegaugeError) as caught:
        load(path)
    assert str(path) in str(caught.value) and re.search(expected, str(caught.value))


def test_a_replica_for_pages_only_has_no_role(tmp_path: Path) -> None:
    path = tmp_path / "collector.toml"
    path.write_text('data = "d"\nroles = []\n[link]\n[database]\nurl = "postgresql://x/y"\n[blobs]\nbucket = "b"\n')
    assert load(path).roles == ()
