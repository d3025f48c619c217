"""docs/schemas holds the schemas of what goes over the wire, as the code has them; real messages pass them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import jsonschema_rs
import msgspec
import pytest

from tidegauge.agent.control_messages import SetSampling
from tidegauge.compare.schema import document
from tidegauge.link.command_wire import CommandAnswer, Order, Signed
from tidegauge.link.wire import AlarmChange, FileResponse, Init, Result, Status, encode

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "schemas"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wire_schemas", ROOT / "tools" / "wire_schemas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schemas_are_current() -> None:
    for name, kind in generator().SCHEMAS.items():
        assert (FOLDER / name).read_bytes() == document(name, kind), "run `make docs`"


ORDER = Order("command-0001", "cam-07", 1.0, 2.0, 3, msgspec.Raw(msgspec.json.encode(SetSampling(5.0))))
MESSAGES: dict[str, msgspec.Struct] = {
    "wire-status": Status("online", 1, "0.1.0", False, "enhancer", "watching", 1.0, "loss", {"loss": 0.25}),
    "wire-alarm": AlarmChange("a-1", True, "loss", "accelerator", ("band",), "it is high", 1.0, "boot", 2.0),
    "wire-result": Result(1, 1.0, "enhancer", {"mean": 0.5}),
    "wire-init": Init("manifest.json", 100, "ab" * 32, {"kind": "manifest", "bundle": "b-000001"}),
    "wire-file-response": FileResponse("t", 0, acked=((0, 10),), wanted=("cd" * 32,), stored=True),
    "wire-signed": Signed(b"payload", "ef" * 32, bytes(64)),
    "wire-command": ORDER,
    "wire-command-action": SetSampling(5.0),
    "wire-command-answer": CommandAnswer(
        "command-0001", "ab" * 32, "done", sentence="so", status={"phase": "watching"}
    ),
}


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_message_passes_its_schema_and_a_wrong_one_does_not(name: str) -> None:
    schema = json.loads((FOLDER / f"{name}.schema.json").read_text())
    validator = jsonschema_rs.validator_for(schema)
    message = json.loads(encode(MESSAGES[name]))
    validator.validate(message)
    first = next(iter(message))
    assert not validator.is_valid({**message, first: {"no": "such"}})
