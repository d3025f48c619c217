"""What a comparison says: the types of its JSON, of the report, and of what the collector reads.

Every number that is undefined is None: a layer without a usable tensor has a status and a reason, never a made-up one.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidegauge.compare.exact_types import ExactComparison
from tidegauge.compare.raw_types import Frames, LayerSums, RangeUse
from tidegauge.compare.rungs import Rungs

SCHEMA = 1

#: Worse wins: input unusable (2, raised as an error) > coverage too low > culprit named > fine.
EXIT_FINE, EXIT_CULPRIT, EXIT_UNUSABLE, EXIT_COVERAGE = 0, 1, 2, 3

#: The kind of the finding that the recorded input itself is off by a factor from what the calibration saw. It is a
#: verdict like a culprit's: both sides were fed wrong, so no layer shows it.
INPUT_FACTOR = "input_factor"

Status = Literal[
    "ok",
    "missing",
    "truncated",
    "shape_mismatch",
    "non_finite",
    "constant",
    "all_zero",
    "below_resolution",
    "duplicate",
    "unmatched",
]

#: How a device tensor found its float twin. `input` / `original`: through an alias that TIDL adds; `lineage`, by what
#: it reads or is read by; `fingerprint`, by its neighbourhood in the graph; `renamed`, by a prefix that all names
#: changed; `weights`, by their scales; `value`, by the values themselves.
Matched = Literal[
    "name", "sanitised", "input", "original", "lineage", "fingerprint", "renamed", "weights", "value", "none"
]

#: Where the scale of a tensor comes from, best first; `float` needs none; `estimate` is a least-squares fit.
ScaleSource = Literal["svg", "proto", "io", "log", "estimate", "float", "none"]

CauseName = Literal[
    "gain",
    "offset",
    "saturation_low",
    "saturation_high",
    "coarse_step",
    "row_band",
    "column_band",
    "boundary_column",
    "row_shear",
    "rounding",
    "channels",
    "channel_permutation",
    "normalisation",
    "layout",
    "flip",
    "shift",
    "padding_value",
    "other_input",
    "stale_frame",
    "first_frame",
    "transpose_hw",
    "wrong_operator",
    "non_finite",
    "all_zero",
    "constant",
    "unknown",
]

Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class Metrics(msgspec.Struct, frozen=True):
    """Device tensor against a reference tensor, derived from one pass of raw sums over `count` elements.

    `sqnr_db`, `cosine`: None where either side carries less than one step of energy. `gain`, `offset`: least squares
    of device on reference. `mse` and `max_error` in the tensor's unit; `max_steps` and `bias_steps` in steps of
    1/scale. `excess`: mse in units of the healthy noise floor (1/12 step², plus weight rounding for a local error).
    """

    count: int
    sqnr_db: float | None
    cosine: float | None
    gain: float | None
    offset: float | None
    mse: float | None
    max_error: float | None
    max_steps: float | None
    bias_steps: float | None
    excess: float | None


class Profiles(msgspec.Struct, frozen=True):
    """Mean squared local error along each axis, in floor units, at most 64 bins an axis; for the report's drawings."""

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    channels: tuple[float, ...]


class Histogram(msgspec.Struct, frozen=True):
    """Counts of the device's values in equal bins from `low` to `high`, and of its local reference in the same bins."""

    low: float
    high: float
    device: tuple[int, ...]
    reference: tuple[int, ...]


class LayerResult(msgspec.Struct, frozen=True):
    """One traced tensor, in execution order.

    `tensor`: the float twin's name in the model. `operators`: ONNX operator types of its region, fused ones together.
    `dims`: (batch, dim1, dim2, channels, height, width). `value = (code - zero_point) / scale`. `cumulative`: against
    the float run; `local`: against the float region fed the device's own inputs. `weights`: which weights the local
    reference used ("float", "none", or the rounding that explains the device best). `low_share`, `high_share`: shares
    of codes at either end of the code range. `verdict`: "healthy", "inherits" (its error comes from before), "faulty",
    "recovers" (faulty, but without effect at the output), "undecided". `reason` says a status or verdict in words.
    `limit`: the excess above which a layer is wrong, where a baseline of healthy runs sets it; else the default
    holds. `codes_beyond`: shares of codes further from the computed value than half a code plus each of `oracle.TIERS`.
    `codes_unexplained`: the share of those that neither rounding nor healthy layers' arithmetic explains. `nodes`: the
    ONNX nodes of its region, fused ones too, by name (or by their output); `reads`: the float tensors at which it
    begins. `sums`: what its numbers are made of; `range_use`: how the live values use the calibrated range.
    `reference`: whether the float values that `cumulative` is against were computed or read from a folder.
    """

    name: str
    index: int
    data_id: int
    file: str
    tensor: str | None
    operators: tuple[str, ...]
    dims: tuple[int, ...]
    dtype: str | None
    scale: float | None
    zero_point: int | None
    scale_source: ScaleSource
    status: Status
    matched: Matched
    verdict: Literal["healthy", "inherits", "faulty", "recovers", "undecided"]
    reason: str
    cumulative: Metrics | None
    local: Metrics | None
    excess: float | None
    float_excess: float | None
    clipping_excess: float | None
    clipped_share: Share | None
    weights: str
    low_share: float | None
    high_share: float | None
    codes_off_by_one: Share | None
    codes_off_by_more: Share | None
    profiles: Profiles | None
    histogram: Histogram | None
    limit: float | None = None
    codes_beyond: tuple[Share, ...] | None = None
    codes_unexplained: Share | None = None
    nodes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    sums: LayerSums | None = None
    range_use: RangeUse | None = None
    reference: Literal["computed", "given"] = "computed"


class Effect(msgspec.Struct, frozen=True):
    """What one region's local error alone does to a network output.

    The network downstream is run in float twice, from the region's device value and from its local reference.
    `share`: energy of the difference over the energy of the output's whole error (may pass 1 where errors cancel);
    None where that error is not finite. `sqnr_db`: output with the corrected region against that difference.
    `mse_steps`: mean squared difference over 1/12 of the output's squared step. `moved`: share of output elements that
    move by more than `step`. `reaches`: whether the difference is more than the output's own rounding noise.
    """

    output: str
    share: float | None
    sqnr_db: float | None
    mse_steps: float | None
    moved: float | None
    step: float
    reaches: bool


class WhatIf(msgspec.Struct, frozen=True):
    """An output's error, measured or predicted: of the output that is furthest off.

    `error`: rms of the difference to the float run over rms of the float run; None where it is not finite. `sqnr_db`:
    −20 log10 of it; None also where there is no error at all.
    """

    output: str
    error: float | None
    sqnr_db: float | None


class Advice(msgspec.Struct, frozen=True):
    """One thing to change. `option` is a TIDL compile option ready to paste, or empty where it is a deed in words.

    `alternative`: instead of the lines before it. `what_if`: the output's error if this line does what it is for.
    """

    option: str
    value: str
    why: str
    alternative: bool = False
    what_if: WhatIf | None = None


class CureStep(msgspec.Struct, frozen=True):
    """One more layer changed: "exact", "wide" (16 bits), "params" (16-bit weights), "cpu" (taken off the accelerator),
    "range" (a wider code range); and the output's error from then on."""

    layer: str
    change: str
    after: WhatIf


class Cure(msgspec.Struct, frozen=True):
    """The smallest set of changes found, in the order of what they gain, as lines that are pasted together.

    `target_db`: the SQNR that every output shall reach; `reached` None without one (then every culprit is cured).
    `faithful`: whether the emulation that these figures come from gives the device's own error as it is.
    """

    target_db: float | None
    reached: bool | None
    before: WhatIf
    after: WhatIf
    steps: tuple[CureStep, ...]
    advice: tuple[Advice, ...]
    faithful: bool


class Picture(msgspec.Struct, frozen=True):
    """A PNG of one channel. `label` says of what; `low`, `high`: the values drawn darkest and brightest.

    A scatter is of all channels: float value to the right, device value upwards, both from `low` to `high`.
    """

    kind: Literal["device", "reference", "difference", "scatter"]
    label: str
    channel: int
    low: float
    high: float
    png: bytes


class Culprit(msgspec.Struct, frozen=True):
    """A region that is wrong by itself. `explained`: share of its local error energy that the cause accounts for.

    `detail`: the cause's numbers in words ("gain 1.50", "rows 38 to 52 of 96"). `what_if`: the output's error if this
    region were exact: its float local output instead of the device's, everything after it run again.
    """

    layer: str
    index: int
    rank: int
    cause: CauseName
    explained: Share | None
    detail: str
    excess: float | None
    effect: Effect | None
    sentence: str
    advice: tuple[Advice, ...]
    pictures: tuple[Picture, ...]
    what_if: WhatIf | None = None


class Unmatched(msgspec.Struct, frozen=True):
    """A tensor on one side without a partner, and why."""

    name: str
    side: Literal["device", "reference"]
    data_id: int | None
    reason: str


class Finding(msgspec.Struct, frozen=True):
    """Something a reader must know besides the culprits. `kind` is a word for filters and metrics."""

    kind: str
    severity: Literal["note", "warning"]
    sentence: str
    layer: str | None = None


class Coverage(msgspec.Struct, frozen=True):
    """`compared` of `traced` device tensors that should have a float twin were compared; `share` of them."""

    traced: int
    compared: int
    share: Share
    minimum: Share


class Subject(msgspec.Struct, frozen=True):
    """What was compared, for provenance. Hashes are SHA-256 hex by file name; `versions` by component."""

    source: str
    bundle_id: str | None
    device: str | None
    virtual: bool
    created: str | None
    model: str
    hashes: dict[str, str]
    versions: dict[str, str]
    options: dict[str, str]
    input: str


class OutputResult(msgspec.Struct, frozen=True):
    """A network output: device against the float run."""

    name: str
    metrics: Metrics
    non_finite: int


class Comparison(msgspec.Struct, frozen=True):
    """The whole answer. `sentence` is the verdict for a person; `exit_code` for a script.

    `cure`: what to change, all in one; None where nothing is wrong. `rungs`, `exact`: where other runs of the same
    input were given, at which rung the error enters, and host against device bit by bit. `threshold`: the excess above
    which a layer without a limit of its own is wrong. `frames`: where several frames were compared.
    """

    tool: str
    subject: Subject
    exit_code: Literal[0, 1, 2, 3]
    sentence: str
    coverage: Coverage
    layers: tuple[LayerResult, ...]
    culprits: tuple[Culprit, ...]
    recovered: tuple[Culprit, ...]
    outputs: tuple[OutputResult, ...]
    unmatched: tuple[Unmatched, ...]
    findings: tuple[Finding, ...]
    scale_sources: dict[str, int]
    tracing_changed_output: bool | None
    seconds: float
    rungs: Rungs | None = None
    exact: ExactComparison | None = None
    cure: Cure | None = None
    threshold: float = 10.0
    frames: Frames | None = None
    schema: Annotated[int, Meta(ge=1)] = SCHEMA


def to_json(comparison: Comparison) -> bytes:
    """The comparison as UTF-8 JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n"


def from_json(data: bytes) -> Comparison:
    """Read what `to_json` wrote. Raises `msgspec.ValidationError` for anything else."""
    return msgspec.json.decode(data, type=Comparison)
