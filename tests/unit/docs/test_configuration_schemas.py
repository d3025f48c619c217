"""The published JSON Schemas are those of the code, and take and refuse what the loader takes and refuses."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from tidegauge.agent.config import AgentConfig
from tidegauge.collector.config import CollectorConfig
from tidegauge.configuration import ConfigurationError, load_toml
from tidegauge.profile import Profile

ROOT = Path(__file__).resolve().parents[3]
SCHEMAS = ROOT / "agent_config" / "schemas"
EXAMPLES: dict[str, tuple[str, type[msgspec.Struct]]] = {
    "agent": ("agent.toml", AgentConfig),
    "collector": ("collector.toml", CollectorConfig),
    "profile": ("profiles/enhancer.toml", Profile),
}


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("schemas", ROOT / "tools" / "configuration_schemas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schemas_are_current() -> None:
    made = generator()
    assert {path.name for path in SCHEMAS.iterdir()} == set(made.SCHEMAS)
    for name in made.SCHEMAS:
        assert (SCHEMAS / name).read_bytes() == made.schema(name), "run `make docs`"


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_names_its_schema_and_passes_it(name: str) -> None:
    path = ROOT / "agent_config" / EXAMPLES[name][0]
    first = path.read_text().partition("\n")[0]
    assert first.startswith("#:schema ")
    schema = json.loads((path.parent / first.removeprefix("#:schema ")).read_text())
    assert schema["title"] == name
    jsonschema_rs.meta.validate(schema)
    jsonschema_rs.Draft7Validator(schema).validate(tomllib.loads(path.read_text()))


def structs(kind: Any) -> list[Any]:
    found = [kind]
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found += structs(field.type)
    return found


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_unknown_key_of_any_table_is_refused_with_the_nearest(name: str, tmp_path: Path) -> None:
    """By the loader of all three files; by the schema too."""
    example, kind = EXAMPLES[name]
    schema = jsonschema_rs.Draft7Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))
    good = tomllib.loads((ROOT / "agent_config" / example).read_text())
    file = tmp_path / "wrong.toml"
    tables = [("", kind)] + [
        (field.encode_name, field.type)
        for field in msgspec.structs.fields(kind)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
    ]
    assert len(structs(kind)) == len(tables), "tables in tables: extend this test"
    for table, struct in tables:
        key = max((field.encode_name for field in msgspec.structs.fields(struct)), key=len)
        typo = f"{key}x"
        wrong = json.loads(json.dumps(good))
        (wrong.setdefault(table, {}) if table else wrong)[typo] = 1
        assert not schema.is_valid(wrong), (table, typo)
        file.write_bytes(msgspec.toml.encode(wrong))
        with pytest.raises(ConfigurationError) as refused:
            load_toml(file, kind)
        assert f"unknown key `{f'{table}.{typo}'.lstrip('.')}`" in str(refused.value)
        assert f"did you mean `{key}`?" in str(refused.value)


def test_a_key_of_another_table_is_sent_there(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    text = (ROOT / "agent_config" / "agent.toml").read_text()
    for wrong, told in (("gap_mean = 3.0", "`gap_mean` of shadow"), ("veto_fil = 'x'", "`capture.veto_file`")):
        file.write_text(f"{wrong}\n{text}")
        with pytest.raises(ConfigurationError, match="did you mean") as refused:
            load_toml(file, AgentConfig)
        assert told in str(refused.value)
