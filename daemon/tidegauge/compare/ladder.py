"""Climb the rungs that are there: compare each with the float model, host and device bit by bit, and decide."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import msgspec

from tidegauge.compare.baseline import Baseline
from tidegauge.compare.compiled import locate_tempdir, read_tempdir
from tidegauge.compare.exact import TraceFile, compare_exact
from tidegauge.compare.exact_load import trace_files
from tidegauge.compare.exact_types import ExactComparison
from tidegauge.compare.float_traces import FLOAT_NETWORK, is_float_network
from tidegauge.compare.load import Source
from tidegauge.compare.run import Progress, compare
from tidegauge.compare.rungs import FLOAT_SQNR_DB, Rungs, Seen, decide
from tidegauge.compare.stored import stopped
from tidegauge.compare.traces import Reader, device_tensors
from tidegauge.compare.types import INPUT_FACTOR, Comparison, Culprit, Finding
from tidegauge.errors import TidegaugeError
from tidegauge.tidl import trace_names


def compare_rungs(
    device: Source,
    host: Source | None = None,
    host_float: Source | None = None,
    *,
    min_coverage: float = 0.8,
    baseline: Baseline | None = None,
    threshold: float | None = None,
    target_db: float | None = None,
    past_input: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """The comparison of the highest rung that is there, with the verdict on all of them in `rungs` and `exact`.

    A float network is taken as the 32-bit rung wherever it was given. `past_input`: as of `compare`. Raises
    `TidegaugeError`.
    """
    notes: list[str] = []
    sides: list[Source | None] = [device, host]
    for place, source in enumerate(sides):
        if source is None or not is_float_network(source.tensors):
            continue
        notes.append(FLOAT_NETWORK.format(source.subject.source))
        if host_float is not None:
            raise TidegaugeError(
                f"{source.subject.source} and {host_float.subject.source} are both of a network compiled as float",
                "give one of them as --host-float, and the 8 or 16 bit runs as --host and --device",
            )
        host_float, sides[place] = source, None
    if host_float is not None and not is_float_network(host_float.tensors):
        raise TidegaugeError(
            f"{host_float.subject.source} is not of a network compiled as float (tensor_bits 32)",
            "give it as --host, or compile with tensor_bits=32",
        )
    board, emulation = sides
    exact = _exact(emulation, board, min_coverage) if emulation is not None and board is not None else None
    answers: dict[str, Comparison] = {}
    for name, source in (("host_float", host_float), ("host", emulation), ("device", board)):
        if source is not None:
            last = source is next(each for each in (board, emulation, host_float) if each is not None)
            answers[name] = compare(
                source,
                min_coverage=min_coverage,
                baseline=baseline if name == "device" else None,
                threshold=threshold,
                target_db=target_db if last else None,
                past_input=past_input,
                progress=progress,
            )
    rungs = decide(
        _seen(answers.get("host_float"), floats=True), _seen(answers.get("host")), _seen(answers.get("device")), exact
    )
    rungs = msgspec.structs.replace(rungs, notes=tuple(notes))
    return _join(answers, rungs, exact)


def _exact(host: Source, device: Source, min_coverage: float) -> ExactComparison:
    ours, theirs = ([TraceFile(t.file, t.size, t.read) for t in side.tensors if t.file] for side in (host, device))
    labels = (host.subject.source, device.subject.source)
    return compare_exact(ours, theirs, device.subgraphs, labels=labels, min_coverage=min_coverage)


def _join(answers: dict[str, Comparison], rungs: Rungs, exact: ExactComparison | None) -> Comparison:
    main = next(answers[name] for name in ("device", "host", "host_float") if name in answers)
    codes = {answer.exit_code for answer in answers.values()} | ({exact.exit_code} if exact is not None else set())
    code: Literal[0, 1, 3] = 3 if 3 in codes else 1 if rungs.enters or main.exit_code == 1 else 0
    seconds = round(sum(answer.seconds for answer in answers.values()), 3)
    said = {finding.sentence for finding in main.findings}
    findings = [Finding("float_network", "note", note) for note in rungs.notes if note not in said]
    return msgspec.structs.replace(
        main, exit_code=code, rungs=rungs, exact=exact, findings=(*main.findings, *findings), seconds=seconds
    )


def _seen(answer: Comparison | None, floats: bool = False) -> Seen | None:
    if answer is None:
        return None
    inputs = {layer.index for layer in answer.layers if layer.matched == "input"}
    wrong = [f.sentence for f in answer.findings if f.kind in ("input_range", INPUT_FACTOR)]
    wrong += [c.sentence for c in answer.culprits if c.index in inputs]
    return Seen(
        source=answer.subject.source,
        culprits=tuple(
            c.layer for c in answer.culprits if c.index not in inputs and not (floats and _rounding(answer, c))
        ),
        input_wrong=wrong[0] if wrong else "",
        input_seen=any(answer.layers[i].cumulative is not None for i in inputs),
        enough=answer.coverage.share >= answer.coverage.minimum,
        stopped=stopped(answer),
        diffuse=any(f.kind == "accumulated_error" for f in answer.findings),
        outputs={output.name: output.metrics.sqnr_db for output in answer.outputs},
        exact=tuple(
            o.name for o in answer.outputs if o.metrics.count and o.metrics.max_error == 0 and not o.non_finite
        ),
    )


def _rounding(answer: Comparison, culprit: Culprit) -> bool:
    """Whether a float layer differs no more than another order of additions makes it."""
    local = answer.layers[culprit.index].local
    return local is not None and local.sqnr_db is not None and local.sqnr_db >= FLOAT_SQNR_DB


# --- what a folder of traces is ----------------------------------------------------------------------------------


def other_run(source: Source, folder: Path, tempdir: Path | None = None) -> Source:
    """The same model and input with the traces of another run. The tables: those of `tempdir`, of a tempDir beside the
    traces, else the source's own. Of two dumps in one folder the PC's is taken. Raises `TidegaugeError`."""
    files = trace_files(folder)
    if not files:
        raise TidegaugeError(f"{folder} has no trace files (*tidl_trace*)", "give the folder that holds the traces")
    own = [f for f in files if (parsed := trace_names.parse(f.file)) is not None and parsed.cpu is None]
    files = own or files
    place = tempdir or locate_tempdir(folder)
    tables = read_tempdir(place) if place is not None else source.subgraphs
    readers: dict[str, Reader] = {f.file: f.read for f in files if f.read is not None}
    tensors, findings = device_tensors({f.file: f.size for f in files}, readers, {}, tables)
    subject = msgspec.structs.replace(source.subject, source=str(folder), bundle_id=None, device=None, created=None)
    return dataclasses.replace(
        source,
        subject=subject,
        tensors=tensors,
        subgraphs=tables,
        outputs={},
        findings=findings,
        tracing_changed_output=None,
    )
