"""What a comparison of two compiles (two SDK releases) or two boards says: the types of its JSON and of its report."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidegauge.compare.types import Matched

RELEASE_SCHEMA = 1

#: What may differ between a layer's two compiles. `number`: its data id.
Change = Literal["number", "name", "fusing", "kind", "shape", "type", "scale", "zero_point"]


class Difference(msgspec.Struct, frozen=True):
    """One tensor of both runs, the later one against the earlier. `excess`: mean squared difference over what rounding
    to both scales makes; above the threshold (10) the tensor `moved`. `begins`: it moved, by five times more than
    all that it reads.
    """

    exact: bool
    sqnr_db: float | None
    max_difference: float | None
    excess: float | None
    moved: bool
    begins: bool


class LayerPair(msgspec.Struct, frozen=True):
    """One layer before and after, in the later compile's order. Scales in codes a unit; None where nobody tells.

    `difference`: None without traces of both that can be compared, and `reason` says why.
    """

    before_id: int
    after_id: int
    subgraph: str
    before_name: str
    after_name: str
    matched: Matched
    kind: str
    changes: tuple[Change, ...]
    detail: str
    before_scale: float | None
    after_scale: float | None
    difference: Difference | None
    reason: str


class Alone(msgspec.Struct, frozen=True):
    """A layer of one side only, and why: fused into another layer, or added by the compiler."""

    side: Literal["before", "after"]
    data_id: int
    name: str
    kind: str
    reason: str


class OutputMove(msgspec.Struct, frozen=True):
    """A network output, later against earlier. `begins`: the layers where its difference begins."""

    name: str
    difference: Difference | None
    reason: str
    begins: tuple[str, ...]


class ProtoReuse(msgspec.Struct, frozen=True):
    """Whether the later release may read the earlier one's quantisation proto. `by`: the table that was compared.

    Only for equal networks: the proto is read by layer, so a layer that means another thing gets a wrong scale.
    """

    allowed: bool
    by: Literal["netLog", "svg", "none"]
    sentence: str
    differences: tuple[str, ...]


class Blamed(msgspec.Struct, frozen=True):
    """A layer that is wrong by itself against the float model. `since`: "before" both, only "after", or no more."""

    layer: str
    cause: str
    sentence: str
    since: Literal["before", "after", "cured"]


class ReleaseComparison(msgspec.Struct, frozen=True):
    """The whole answer. Exit code 1 where an output moved or a layer became wrong, 3 where too few layers could be
    matched; changes of number, name, fusing or scale alone are none.

    `coverage`: share of the later compile's layers that have a twin. `blamed`: with a model and an input only.
    """

    tool: str
    before: str
    after: str
    exit_code: Literal[0, 1, 2, 3]
    sentence: str
    coverage: float
    minimum: float
    layers: tuple[LayerPair, ...]
    alone: tuple[Alone, ...]
    outputs: tuple[OutputMove, ...]
    proto: ProtoReuse
    blamed: tuple[Blamed, ...]
    same_input: bool | None
    notes: tuple[str, ...]
    seconds: float
    schema: Annotated[int, Meta(ge=1)] = RELEASE_SCHEMA


def release_to_json(answer: ReleaseComparison) -> bytes:
    """The answer as UTF-8 JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=1) + b"\n"


def release_from_json(data: bytes) -> ReleaseComparison:
    """Read what `release_to_json` wrote. Raises `msgspec.ValidationError` for anything else."""
    return msgspec.json.decode(data, type=ReleaseComparison)
