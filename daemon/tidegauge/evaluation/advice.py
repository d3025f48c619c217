"""Advice, applied: the virtual board recompiles with the pasted text and runs again; does the error fall as foretold?

Where the advice is to calibrate with frames like the captured one, the captured one joins those of the calibration.

Every case is a compile whose output is wrong, a report on it, and the report's text, read as a person's compile script
would. It counts as right when every key was accepted, and the output's error after recompiling is within 20 % of what
the report said it would be, and below what it was.
"""

from __future__ import annotations

import ast
import math
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from tidegauge.compare import Comparison, compare, open_source
from tidegauge.compare.advice import FRAMES
from tidegauge.compare.report import words
from tidegauge.compare.types import WhatIf
from tidegauge.compare.whatif import worst
from tidegauge.evaluation.comparison import wilson
from tidegauge.evaluation.figures import Figure, Report
from tidegauge.evaluation.networks import NETWORKS, picture
from tidegauge.virtualboard.calibration import float_session
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import Fault, Kind, eligible
from tidegauge.virtualboard.network import TwinNetwork, load_all, load_artifacts
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.state import VARIABLE, BoardState, inject
from tidegauge.virtualboard.tracing import content, file_name, kinds
from tidegauge.virtualboard.twin import original

Array = NDArray[Any]

#: The error after recompiling may differ from the figure by this share; and so many cases must be right.
WITHIN, GOAL = 0.2, 90.0
SETS = ("rounding", "a fault in one layer", "two faults", "a coarse release", "a narrow calibration")
_FRAMES = 4
#: A narrow calibration sees pictures with this share of the contrast only.
_CONTRAST = 0.4
_TRIES = 8
#: Kinds of faults, and between which amounts one is drawn (log-uniform; None: the kind's default).
_KINDS: dict[Kind, tuple[float, float] | None] = {
    "gain": (1.1, 2.0),
    "offset": (0.02, 0.5),
    "band": (0.05, 0.7),
    "saturate": (0.2, 0.8),
    "zero": None,
    "boundary_column": (0.05, 0.7),
    "channel_swap": None,
    "weights": (0.3, 0.9),
    "bias": (1.5, 4.0),
    "accumulator": (0.3, 0.8),
    "requantise": None,
}
_ACCEPTED = ("calibration frames were given", "is ignored: it needs")


class Job(NamedTuple):
    """What one process does: cases of every set on one network."""

    network: str
    cases: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """One case. Errors are relative; `refused`: what the compile said of a pasted key, empty where all are accepted."""

    group: str
    what: str
    options: tuple[str, ...]
    before: float
    predicted: float
    measured: float
    refused: str

    @property
    def close(self) -> bool:
        if self.predicted == 0:
            return self.measured == 0
        return abs(self.measured / self.predicted - 1) <= WITHIN

    @property
    def right(self) -> bool:
        return not self.refused and self.close and self.measured < self.before


def evaluate(quick: bool, seed: int, jobs: int = 0, progress: Callable[[str], None] = lambda text: None) -> Report:
    """`seed` draws layers, faults, targets and pictures; figures do not depend on `jobs`."""
    work = [Job(network, 1 if quick else 6, seed) for network in NETWORKS]
    outcomes: list[Outcome] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs or os.cpu_count() or 1, mp_context=context) as pool:
        for job, found in zip(work, pool.map(measure, work), strict=True):
            outcomes += found
            wrong = [
                f"{o.group}, {o.what}: foretold {o.predicted:.3g}, got {o.measured:.3g} {o.refused}"
                for o in found
                if not o.right
            ]
            progress(f"{job.network}: {len(found)} cases" + "".join(f"; WRONG {text}" for text in wrong))
    return Report(seed, quick, figures(outcomes), [])


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """The share of right cases, in all and by set; how close the figures are; what was refused."""
    found = [_share("Advice applied", "right: accepted, and within 20 % of the figure", outcomes, GOAL)]
    found += [_share("By what was wrong", name, [o for o in outcomes if o.group == name], None) for name in SETS]
    kinds_ = sorted({option for o in outcomes for option in o.options})
    found += [_share("By option", name, [o for o in outcomes if name in o.options], None) for name in kinds_]
    refused = sum(bool(o.refused) for o in outcomes)
    found.append(Figure("Advice applied", "cases with a key that was not accepted", refused, "", 0, "<="))
    fallen = sum(o.measured <= (1 + WITHIN) * o.predicted for o in outcomes)
    found.append(
        Figure("Advice applied", "error no higher than 20 % above the figure", _percent(fallen, len(outcomes)), "%")
    )
    gains = [20 * math.log10(o.before / o.measured) for o in outcomes if o.measured > 0 and math.isfinite(o.before)]
    found.append(
        Figure("Advice applied", "error falls by, median", float(np.median(gains)) if gains else math.nan, "dB")
    )
    return found


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else math.nan


def _share(group: str, name: str, outcomes: Sequence[Outcome], goal: float | None) -> Figure:
    right = sum(o.right for o in outcomes)
    low, high = wilson(right, len(outcomes))
    note = f"{right} of {len(outcomes)}, 95 % interval {100 * low:.1f} to {100 * high:.1f} %"
    return Figure(group, name, _percent(right, len(outcomes)), "%", goal, ">=", note)


@dataclass(frozen=True)
class _Compiled:
    """Artifacts of the whole model as one sub-graph, and a folder for its traces."""

    artifacts: Path
    traces: Path

    @property
    def network(self) -> TwinNetwork:
        return load_artifacts(self.artifacts)

    def run(self, value: Array, faults: Sequence[Fault]) -> dict[str, Array]:
        network = self.network
        return Twin(network, tuple(faults)).run({"input": value}, [layer.name for layer in network.tensors()])


def conditions() -> str:
    """What is counted, in words."""
    return (
        f"A case is right where every pasted key is accepted and the output's error after recompiling is below what it "
        f"was and within {100 * WITHIN:.0f} % of what the report foretold. Faults are drawn from {', '.join(_KINDS)}."
    )


# --- one process -------------------------------------------------------------------------------------------------


def measure(job: Job) -> list[Outcome]:
    """All cases of one network."""
    found: list[Outcome] = []
    number = list(NETWORKS).index(job.network)
    with tempfile.TemporaryDirectory(prefix="tidegauge-advice-") as folder:
        root = Path(folder)
        board = _Board(root, NETWORKS[job.network](root / "net.onnx"))
        wide = board.compile("plain", {}, narrow=False)
        narrow = board.compile("narrow", {}, narrow=True)
        for index, group in enumerate(SETS):
            random = np.random.default_rng([job.seed, number, index])
            start = narrow if group == SETS[4] else wide
            wanted = len(found) + job.cases
            for _ in range(job.cases * _TRIES):
                if len(found) == wanted:
                    break
                outcome = _case(board, start, group, random)
                if outcome is not None:
                    found.append(outcome)
    return found


def _case(board: _Board, start: _Compiled, group: str, random: np.random.Generator) -> Outcome | None:
    """None where the report has nothing to cure: a fault too small to be named, say."""
    value = picture(board.shape, int(random.integers(1000, 1 << 30)))
    faults, coarse = _faults(start, group, random)
    if group in SETS[1:4] and not faults:
        return None
    healthy = worst(board.expected(value), board.run(start.artifacts, value, (), False))
    target = None
    if group == SETS[0] and healthy is not None and healthy.sqnr_db is not None:
        target = healthy.sqnr_db + float(random.uniform(2, 10))
    answer = _report(board.model, start, value, start.run(value, faults), target)
    if answer.cure is None or not answer.cure.advice:
        return None
    if group == SETS[4] and not any(item.option == FRAMES for item in answer.cure.advice):
        return None
    options: dict[str, str] = ast.literal_eval("{" + words.paste(answer.cure.advice) + "\n}")
    narrow = group == SETS[4]
    again = board.compile("again", options, narrow=narrow, extra=value if narrow else None)
    after = worst(board.expected(value), board.run(again.artifacts, value, faults, coarse))
    return Outcome(
        group=group,
        what=" + ".join(f"{f.layer}:{f.kind}:{f.strength:.3g}" for f in faults) or f"target {target or 0:.1f} dB",
        options=tuple(options),
        before=_error(answer.cure.before),
        predicted=_error(answer.cure.after),
        measured=_error(after),
        refused=board.refused(options),
    )


def _error(figure: WhatIf | None) -> float:
    return math.inf if figure is None or figure.error is None else figure.error


def _faults(bench: _Compiled, group: str, random: np.random.Generator) -> tuple[list[Fault], bool]:
    """What the board does wrong, and whether only to 8-bit layers (a release whose 8-bit kernels are coarse)."""
    if group == SETS[3]:
        kinds_ = ("TIDL_ConvolutionLayer", "TIDL_PoolingLayer", "TIDL_EltWiseLayer")
        coarse = set(eligible(bench.network)["coarse"])
        layers = [t.name for t in bench.network.tensors() if t.kind in kinds_ and t.name in coarse]
        return [Fault(layers[int(random.integers(len(layers)))], "coarse", float(random.integers(3, 6)))], True
    if group not in SETS[1:3]:
        return [], False
    able = eligible(bench.network)
    drawn = [_draw(random, able) for _ in range(1 + (group == SETS[2]))]
    return (drawn if len({f.layer for f in drawn}) == len(drawn) else []), False


def _placed(networks: Collection[TwinNetwork], fault: Fault) -> Fault:
    """The same fault in another compile. What has become an output of a sub-graph has another name there: its own is
    that of the float values it leaves as."""
    able = {name for network in networks for name in eligible(network)[fault.kind]}
    other = original(fault.layer)
    return msgspec.structs.replace(fault, layer=other) if fault.layer not in able and other in able else fault


def _draw(random: np.random.Generator, able: Mapping[Kind, Sequence[str]]) -> Fault:
    kind = list(_KINDS)[int(random.integers(len(_KINDS)))]
    layer = able[kind][int(random.integers(len(able[kind])))]
    bounds = _KINDS[kind]
    amount = None if bounds is None else math.exp(random.uniform(math.log(bounds[0]), math.log(bounds[1])))
    return Fault(layer, kind, amount)


def _report(
    model: Path, bench: _Compiled, value: Array, tensors: Mapping[str, Array], target: float | None
) -> Comparison:
    for layer in bench.network.tensors():
        (kind,) = kinds(layer, 1)
        (bench.traces / file_name(layer, "subgraph_0", kind)).write_bytes(content(layer, tensors[layer.name], kind))
    source = bench.traces / "input.npy"
    np.save(source, value)
    with open_source(bench.traces, model=model, tempdir=bench.artifacts, inputs=[str(source)]) as opened:
        return compare(opened, target_db=target)


class _Board:
    """One model, its compiles, and a virtual board that runs them."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model = root, model
        proto = onnx.load(model)
        self.shape = tuple(d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim)
        self.outputs = [item.name for item in proto.graph.output]
        self._float = float_session(proto, [])
        self._warnings: tuple[str, ...] = ()
        self._count = 0
        self._state = root / "board"
        BoardState(trace_folder=str(root)).save(self._state)

    def expected(self, value: Array) -> dict[str, Array]:
        return dict(zip(self.outputs, self._float.run(self.outputs, {"input": value}), strict=True))

    def compile(self, name: str, options: Mapping[str, str], *, narrow: bool, extra: Array | None = None) -> _Compiled:
        """`narrow`: calibrated with pictures of little contrast; `extra`: with this picture as well."""
        self._count += 1
        folder = self.root / f"{name}-{self._count}"
        frames = [picture(self.shape, seed) * (_CONTRAST if narrow else 1.0) for seed in range(_FRAMES)]
        frames += [] if extra is None else [extra]
        given = {FRAMES: str(len(frames)), **options}
        feeds = [{"input": frame.astype(np.float32)} for frame in frames]
        report = compile_model(self.model, folder / "artifacts", feeds, CompileOptions.from_tidl(given))
        self._warnings = report.warnings
        (folder / "traces").mkdir()
        return _Compiled(folder / "artifacts", folder / "traces")

    def refused(self, options: Mapping[str, str]) -> str:
        """What the last compile said against a pasted key or a name in it."""
        said = [text for text in self._warnings if not any(known in text for known in _ACCEPTED)]
        return "; ".join(text for text in said if "Invalid Layer Name" in text or text.split()[0] in options)

    def run(self, artifacts: Path, value: Array, faults: Sequence[Fault], coarse: bool) -> dict[str, Array]:
        """The outputs, of a session as an application has it. A fault leaves with its layer, a coarse one with bits."""
        from tidegauge.virtualboard import onnxruntime_tidl  # looks for its board when it is used

        networks = load_all(artifacts).values()
        layers = {layer.name: layer for network in networks for layer in network.tensors()}
        placed = [_placed(networks, fault) for fault in faults]
        kept = [f for f in placed if f.layer in layers and not (coarse and layers[f.layer].quant.bits != 8)]
        inject(self._state, kept, artifacts)
        os.environ[VARIABLE] = str(self._state)
        session = onnxruntime_tidl.InferenceSession(
            self.model,
            providers=[onnxruntime_tidl.TIDL, onnxruntime_tidl.CPU],
            provider_options=[{"artifacts_folder": str(artifacts), "debug_level": "0"}, {}],
        )
        values = session.run(self.outputs, {"input": value})
        return dict(zip(self.outputs, values, strict=True))
