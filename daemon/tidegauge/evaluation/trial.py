"""A compiled network on the virtual board, faults drawn at random, and what the comparison says of each run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from tidegauge.compare import Comparison, compare, open_source
from tidegauge.evaluation.networks import NETWORKS, picture
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import INSIDE, Fault, Kind, eligible
from tidegauge.virtualboard.network import TwinLayer, TwinNetwork, load_artifacts
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.tracing import content, file_name, kinds

Array = NDArray[Any]
Bits = Literal["8 bit", "mixed", "16 bit"]
BITS: tuple[Bits, ...] = ("8 bit", "mixed", "16 bit")

#: The detectable size, fixed before any case was drawn: this share of the layer's codes changed, or so many by two.
CHANGED, CHANGED_BY_TWO = 1e-3, 16
#: Fault shapes that a cause is named for. Of all others the layer alone is judged.
CAUSES: dict[Kind, frozenset[str]] = {
    "gain": frozenset({"gain"}),
    "offset": frozenset({"offset"}),
    "band": frozenset({"row_band"}),
    "zero": frozenset({"all_zero"}),
    # Where every value passes the bound, all are at the top.
    "saturate": frozenset({"saturation_high", "constant"}),
    "channel_swap": frozenset({"channel_permutation"}),
    "nan": frozenset({"non_finite"}),
    "boundary_column": frozenset({"column_band"}),
    "one_channel": frozenset({"channels"}),
}
AT_OUTPUT: tuple[Kind, ...] = (*CAUSES, "shear", "rounding", "tiny")
_FRAMES = 4
#: Pictures that neither the calibration nor another evaluation uses.
_FIRST_PICTURE = 1000


@dataclass
class Bench:
    """A compiled network and a folder for its traces."""

    model: Path
    artifacts: Path
    traces: Path
    network: TwinNetwork
    shape: tuple[int, ...]

    def run(self, value: Array, faults: Sequence[Fault] = ()) -> dict[str, Array]:
        names = [layer.name for layer in self.network.tensors()]
        return Twin(self.network, tuple(faults)).run({"input": value}, names)

    def judge(self, value: Array, tensors: Mapping[str, Array]) -> Comparison:
        """Write the traces as a board does, and compare them with the model as `tidegauge compare` does."""
        for layer in self.network.tensors():
            (kind,) = kinds(layer, 1)
            (self.traces / file_name(layer, "subgraph_0", kind)).write_bytes(content(layer, tensors[layer.name], kind))
        source = self.traces / "input.npy"
        np.save(source, value)
        with open_source(self.traces, model=self.model, tempdir=self.artifacts, inputs=[str(source)]) as opened:
            return compare(opened)


def build(root: Path, network: str, bits: Bits) -> Bench:
    """Compile one of `NETWORKS` for the virtual board."""
    root.mkdir(parents=True, exist_ok=True)
    model = NETWORKS[network](root / "net.onnx")
    dims = onnx.load(model).graph.input[0].type.tensor_type.shape.dim
    shape = tuple(d.dim_value for d in dims)
    frames = [{"input": picture(shape, seed)} for seed in range(_FRAMES)]
    options = CompileOptions(calibration_frames=_FRAMES, tensor_bits=16 if bits == "16 bit" else 8)
    artifacts = root / "artifacts"
    compile_model(model, artifacts, frames, options)
    if bits == "mixed":
        wide = [
            t.name for t in load_artifacts(artifacts).tensors() if t.kind.endswith(("ConvolutionLayer", "EltWiseLayer"))
        ]
        chosen = CompileOptions(
            calibration_frames=_FRAMES,
            output_feature_16bit_names_list=tuple(wide[1::4]),
            params_16bit_names_list=tuple(wide[2::4]),
        )
        artifacts = root / "mixed"
        compile_model(model, artifacts, frames, chosen)
    traces = root / "traces"
    traces.mkdir()
    return Bench(model, artifacts, traces, load_artifacts(artifacts), shape)


@dataclass(frozen=True)
class Outcome:
    """One faulty run. `changed`: share of the faulty layer's codes that the fault changes (of two: the smaller)."""

    what: str
    detectable: bool
    changed: float
    hit: bool
    both: bool
    cause: bool | None


def draw(random: np.random.Generator, bench: Bench, inside: bool) -> Fault | None:
    """A fault of a random kind on a random layer, its size log-uniform from one code to gross."""
    able = eligible(bench.network)
    choices = sorted(INSIDE) if inside else AT_OUTPUT
    possible = [kind for kind in choices if able[kind]]
    if not possible:
        return None
    kind = possible[int(random.integers(len(possible)))]
    layer = bench.network.layer(able[kind][int(random.integers(len(able[kind])))])
    return Fault(layer.name, kind, _amount(random, kind, layer))


def _amount(random: np.random.Generator, kind: Kind, layer: TwinLayer) -> float | None:
    """The amount in the kind's own unit (see `Fault`)."""
    code = 1 / 255 if layer.quant.is_float else 1 / (1 << layer.quant.bits)
    size = math.exp(random.uniform(math.log(code), math.log(0.7)))
    sign = -1.0 if random.random() < 0.5 else 1.0
    if kind in ("gain", "weights"):
        return 1.0 + sign * size
    if kind == "bias":
        return 1.0 + sign * 4 * size
    if kind in ("offset", "band", "boundary_column"):
        return sign * size
    if kind in ("saturate", "accumulator"):
        return 1.0 - size
    if kind == "rounding":
        return math.exp(random.uniform(math.log(1e-4), 0.0))
    if kind == "tiny":
        return float(round(math.exp(random.uniform(0.0, math.log(max(2, math.prod(layer.shape) // 4))))))
    if kind == "one_channel":
        return float(random.integers(layer.shape[-3]))
    if kind == "channel_swap":
        return float(random.integers(1, layer.shape[-3]))
    if kind in ("shear", "requantise"):
        return float(random.integers(1, 4))
    return None


def change(layer: TwinLayer, healthy: Array, faulty: Array) -> tuple[float, int]:
    """The share of codes that differ, and how many by two or more; a code of a float layer is 1/255 of its range."""
    distance = np.abs(faulty.astype(np.float64) - healthy.astype(np.float64))
    if layer.quant.is_float:
        distance = distance * 255 / max(layer.high - layer.low, 1e-9)
    with np.errstate(invalid="ignore"):
        off = ~(distance < 0.5)
        two = ~(distance < 1.5)
    return float(off.mean()), int(two.sum())


def try_faults(bench: Bench, faults: Sequence[Fault], value: Array) -> Outcome | None:
    """None where a fault changes nothing at all. With two, each one's own size decides, run alone."""
    healthy = bench.run(value)
    sizes = []
    for fault in faults:
        alone = bench.run(value, [fault])
        layer = bench.network.layer(fault.layer)
        sizes.append(change(layer, healthy[layer.name], alone[layer.name]))
    if not all(share > 0 for share, _ in sizes):
        return None
    answer = bench.judge(value, bench.run(value, faults))
    named = (*answer.culprits, *answer.recovered)
    first = named[0] if named else None
    wanted = {fault.layer for fault in faults}
    hit = first is not None and first.layer in wanted
    causes = CAUSES.get(faults[0].kind) if len(faults) == 1 else None
    return Outcome(
        what=" + ".join(f"{f.layer}:{f.kind}:{f.strength:.4g}" for f in faults),
        detectable=all(share >= CHANGED or two >= CHANGED_BY_TWO for share, two in sizes),
        changed=min(share for share, _ in sizes),
        hit=hit,
        both={c.layer for c in named} == wanted,
        cause=None if causes is None else bool(hit and first is not None and first.cause in causes),
    )


def value_of(bench: Bench, number: int) -> Array:
    """An input tensor that no calibration saw."""
    return picture(bench.shape, _FIRST_PICTURE + number)


def false_culprits(bench: Bench, inputs: int) -> int:
    """Healthy runs: how many layers are called wrong."""
    wrong = 0
    for number in range(inputs):
        value = value_of(bench, number)
        answer = bench.judge(value, bench.run(value))
        wrong += len(answer.culprits) + len(answer.recovered)
    return wrong
