"""What a bit-exact comparison of two runs says: the types of its JSON and of the report."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

EXACT_SCHEMA = 1

#: `size`: the two files differ in length. `missing`: only the host has it; `unexpected`: only the device.
#: `not_dumped`: one side did not dump this kind, but the tensor is compared in another.
ExactStatus = Literal[
    "exact", "off_by_one", "larger", "size", "truncated", "missing", "unexpected", "duplicate", "not_dumped"
]

DIFFERS = ("off_by_one", "larger")

#: Where a difference comes from: `origin` computes it from equal inputs, `inherits` reads it, `undecided` where an
#: input's trace is missing or the table does not tell the inputs; `none` where there is no difference.
Origin = Literal["none", "origin", "inherits", "undecided"]


class Spread(msgspec.Struct, frozen=True):
    """How differing elements lie along one axis: `touched` of `size` places hold some, from `first` to `last`."""

    touched: int
    size: int
    first: int
    last: int


class ExactTensor(msgspec.Struct, frozen=True):
    """One traced tensor on both sides, in execution order.

    `kind`: "y" codes, "float" float32. `dims`: (batch, dim1, dim2, channels, height, width). Counts are of elements;
    a unit is one code, for floats the distance to the next float32. `largest`: the largest difference in units.
    `sign_guessed`: no table tells whether the codes are signed; the reading with the smaller difference was taken.
    `inputs`: data ids that the layer reads; None where no netLog tells.
    """

    subgraph: str
    data_id: int
    kind: str
    name: str
    layer_kind: str
    dims: tuple[int, ...]
    dtype: str | None
    sign_guessed: bool
    status: ExactStatus
    reason: str
    host_file: str
    device_file: str
    host_xxh3: str
    device_xxh3: str
    count: int
    off_by_one: int
    off_by_more: int
    largest: int
    origin: Origin
    inputs: tuple[int, ...] | None
    rows: Spread | None
    columns: Spread | None
    channels: Spread | None


class ExactCounts(msgspec.Struct, frozen=True):
    """Tensors by class; `compared` of `total` are on both sides with usable files; `share` of them."""

    exact: int
    off_by_one: int
    larger: int
    missing: int
    unexpected: int
    unusable: int
    compared: int
    total: int
    share: float
    minimum: float


class ExactComparison(msgspec.Struct, frozen=True):
    """The whole answer. `first`: index in `tensors` of the first divergence. `order`: where the order and the edges
    come from: "netLog", "layer_info" (order only) or "data id" (no table at all). `notes`: what a reader must know.
    """

    tool: str
    host: str
    device: str
    exit_code: Literal[0, 1, 2, 3]
    sentence: str
    order: Literal["netLog", "layer_info", "data id"]
    counts: ExactCounts
    first: int | None
    tensors: tuple[ExactTensor, ...]
    notes: tuple[str, ...]
    seconds: float
    schema: Annotated[int, Meta(ge=1)] = EXACT_SCHEMA


def exact_to_json(answer: ExactComparison) -> bytes:
    """The answer as UTF-8 JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=1) + b"\n"


def exact_from_json(data: bytes) -> ExactComparison:
    """Read what `exact_to_json` wrote. Raises `msgspec.ValidationError` for anything else."""
    return msgspec.json.decode(data, type=ExactComparison)
