"""A compiled network on the virtual board, faults drawn at random, and what the comparison says of each run."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from tidegauge.compare import Comparison, compare, open_source
from tidegauge.compare.baseline import Baseline, learn
from tidegauge.evaluation.networks import NETWORKS, picture
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import INSIDE, Fault, Kind, eligible
from tidegauge.virtualboard.network import TwinLayer, TwinNetwork, load_artifacts
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.tracing import content, file_name, kinds

Array = NDArray[Any]
Bits = Literal["8 bit", "mixed", "16 bit", "6 bit"]
BITS: tuple[Bits, ...] = ("8 bit", "mixed", "16 bit", "6 bit")

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
    "boundary_column": frozenset({"boundary_column"}),
    "one_channel": frozenset({"channels"}),
    "shear": frozenset({"row_shear"}),
    "rounding": frozenset({"rounding"}),
    "coarse": frozenset({"coarse_step"}),
}
#: A fault of this part of a tensor's range or more is gross. Kinds without a size are one or the other by nature.
GROSS = 0.05
KINDS: dict[str, tuple[Kind, ...]] = {
    "gross": ("gain", "offset", "band", "zero", "saturate", "channel_swap", "nan", "boundary_column", "shear"),
    "mild": ("gain", "offset", "band", "saturate", "boundary_column", "one_channel", "rounding", "tiny", "coarse"),
    "inside": tuple(sorted(INSIDE)),
}
KINDS["any"] = tuple(dict.fromkeys(kind for kinds in KINDS.values() for kind in kinds))
#: The noisy device: this share of the codes of every layer but the faulty one is off by one, always the same ones. A
#: fault must then change more codes than that, and 16 of them, or 16 by two.
NOISE, CHANGED_OVER_NOISE = 0.01, 0.02
#: Healthy runs that its baseline is learnt from.
LEARNT = 8
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
    noise: tuple[Fault, ...] = ()
    baseline: Baseline | None = None

    def run(self, value: Array, faults: Sequence[Fault] = ()) -> dict[str, Array]:
        """Every layer's tensor, with these faults on top of the device's noise."""
        names = [layer.name for layer in self.network.tensors()]
        faulty = {fault.layer for fault in faults}
        noise = [fault for fault in self.noise if fault.layer not in faulty]
        return Twin(self.network, (*faults, *noise)).run({"input": value}, names)

    def judge(self, value: Array, tensors: Mapping[str, Array]) -> Comparison:
        """Write the traces as a board does, and compare them with the model as `tidegauge compare` does."""
        for layer in self.network.tensors():
            (kind,) = kinds(layer, 1)
            (self.traces / file_name(layer, "subgraph_0", kind)).write_bytes(content(layer, tensors[layer.name], kind))
        source = self.traces / "input.npy"
        np.save(source, value)
        with open_source(self.traces, model=self.model, tempdir=self.artifacts, inputs=[str(source)]) as opened:
            return compare(opened, baseline=self.baseline)


def build(root: Path, network: str, bits: Bits) -> Bench:
    """Compile one of `NETWORKS` for the virtual board."""
    root.mkdir(parents=True, exist_ok=True)
    model = NETWORKS[network](root / "net.onnx")
    dims = onnx.load(model).graph.input[0].type.tensor_type.shape.dim
    shape = tuple(d.dim_value for d in dims)
    frames = [{"input": picture(shape, seed)} for seed in range(_FRAMES)]
    artifacts = _compile(root, model, frames, bits)
    traces = root / "traces"
    traces.mkdir()
    return Bench(model, artifacts, traces, load_artifacts(artifacts), shape)


def _compile(root: Path, model: Path, frames: Sequence[Mapping[str, Array]], bits: Bits) -> Path:
    artifacts = root / "artifacts"
    proto = root / "scales.prototxt" if bits == "6 bit" else None
    options = CompileOptions(
        calibration_frames=_FRAMES,
        tensor_bits=16 if bits == "16 bit" else 8,
        quant_params_proto_path=str(proto) if proto is not None else "",
    )
    compile_model(model, artifacts, frames, options)
    if proto is not None:
        proto.write_text(_quarter(proto.read_text()))
        artifacts = root / "coarse"
        compile_model(model, artifacts, frames, options)
    if bits == "mixed":
        wide = [
            t.name for t in load_artifacts(artifacts).tensors() if t.kind.endswith(("ConvolutionLayer", "EltWiseLayer"))
        ]
        chosen = msgspec.structs.replace(
            options,
            output_feature_16bit_names_list=tuple(wide[1::4]),
            params_16bit_names_list=tuple(wide[2::4]),
        )
        artifacts = root / "mixed"
        compile_model(model, artifacts, frames, chosen)
    return artifacts


def _quarter(text: str) -> str:
    """A quantisation proto whose activations use a quarter of their codes: 6 bits of 8."""

    def coarser(block: re.Match[str]) -> str:
        def quarter(scale: re.Match[str]) -> str:
            return f"scale: {float(scale[1]) / 4:.9g}"

        return block[0] if "element_type: 6" in block[0] else re.sub(r"scale: (\S+)", quarter, block[0])

    return re.sub(r"outputs \{[^}]*\}", coarser, text)


def make_noisy(bench: Bench) -> None:
    """Codes off by one all over the device, and a baseline of its healthy runs."""
    bench.noise = tuple(Fault(name, "rounding", NOISE) for name in eligible(bench.network)["rounding"])
    learn_healthy(bench, LEARNT)


def learn_healthy(bench: Bench, runs: int) -> list[Comparison]:
    """Give the bench a baseline of so many healthy runs, and return them."""
    digest = hashlib.sha256(bench.model.read_bytes()).hexdigest()
    learnt: Baseline | None = None
    answers = list(healthy(bench, range(500, 500 + runs)))
    for answer in answers:
        learnt = learn(answer, digest, learnt)
    bench.baseline = learnt
    return answers


@dataclass(frozen=True)
class Outcome:
    """One faulty run. `changed`: share of the faulty layer's codes that the fault changes (of two: the smaller).

    `cause`: whether the first one named is the faulty layer, with the right cause; None for kinds without one.
    """

    what: str
    detectable: bool
    changed: float
    hit: bool
    both: bool
    cause: bool | None
    named: tuple[str, ...] = ()


def draw(random: np.random.Generator, bench: Bench, family: str) -> Fault | None:
    """A fault of a random kind of one of `KINDS` on a random layer, its size log-uniform within the family's bounds."""
    able = eligible(bench.network)
    possible = [kind for kind in KINDS[family] if able[kind]]
    if not possible:
        return None
    kind = possible[int(random.integers(len(possible)))]
    layer = bench.network.layer(able[kind][int(random.integers(len(able[kind])))])
    code = 1 / 255 if layer.quant.is_float else 1 / (1 << layer.quant.bits)
    low, high = {"gross": (GROSS, 0.7), "mild": (code, GROSS)}.get(family, (code, 0.7))
    return Fault(layer.name, kind, _amount(random, kind, layer, (low, high)))


def _amount(random: np.random.Generator, kind: Kind, layer: TwinLayer, bounds: tuple[float, float]) -> float | None:
    """The amount in the kind's own unit (see `Fault`)."""
    size = math.exp(random.uniform(math.log(bounds[0]), math.log(bounds[1])))
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
    if kind in ("shear", "requantise", "coarse"):
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


def sizes(bench: Bench, faults: Sequence[Fault], value: Array) -> list[tuple[float, int]]:
    """What each fault changes in its own layer, on a device that has all the others, without noise."""
    quiet = replace(bench, noise=())
    found = []
    for fault in faults:
        others = [other for other in faults if other is not fault]
        layer = bench.network.layer(fault.layer)
        before, after = quiet.run(value, others), quiet.run(value, [*others, fault])
        found.append(change(layer, before[layer.name], after[layer.name]))
    return found


def _detectable(bench: Bench, share: float, two: int, count: int) -> bool:
    if two >= CHANGED_BY_TWO:
        return True
    return share >= CHANGED_OVER_NOISE and share * count >= CHANGED_BY_TWO if bench.noise else share >= CHANGED


def _causes(bench: Bench, fault: Fault) -> frozenset[str] | None:
    """The right words for a fault; None where only the layer is judged."""
    layer = bench.network.layer(fault.layer)
    if fault.kind == "one_channel" and layer.shape[-3] == 1:
        return frozenset({"rounding"})  # the one channel is the whole tensor
    if fault.kind == "rounding" and layer.dims[4] * layer.dims[5] == 1:
        return frozenset({"rounding", "channels"})  # each element is a channel
    return CAUSES.get(fault.kind)


def try_faults(bench: Bench, faults: Sequence[Fault], value: Array) -> Outcome | None:
    """None where a fault changes nothing at all, or nothing beside the other one."""
    changed = sizes(bench, faults, value)
    if not all(share > 0 for share, _ in changed):
        return None
    answer = bench.judge(value, bench.run(value, faults))
    named = (*answer.culprits, *answer.recovered)
    first = named[0] if named else None
    wanted = {fault.layer for fault in faults}
    hit = first is not None and first.layer in wanted
    causes = _causes(bench, faults[0]) if len(faults) == 1 else None
    counts = [math.prod(bench.network.layer(fault.layer).shape) for fault in faults]
    return Outcome(
        what=" + ".join(f"{f.layer}:{f.kind}:{f.strength:.7g}" for f in faults),
        detectable=all(_detectable(bench, *one, count) for one, count in zip(changed, counts, strict=True)),
        changed=min(share for share, _ in changed),
        hit=hit,
        both={c.layer for c in named} == wanted,
        cause=None if causes is None else bool(hit and first is not None and first.cause in causes),
        named=tuple(f"{c.layer}: {c.cause}" for c in named),
    )


def value_of(bench: Bench, number: int) -> Array:
    """An input tensor that no calibration saw."""
    return picture(bench.shape, _FIRST_PICTURE + number)


def healthy(bench: Bench, pictures: Iterable[int]) -> Iterator[Comparison]:
    """Runs without a fault."""
    for number in pictures:
        value = value_of(bench, number)
        yield bench.judge(value, bench.run(value))
