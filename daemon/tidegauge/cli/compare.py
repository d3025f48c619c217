"""`tidegauge compare`."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from tidegauge.cli.compare_output import find_layer, only_top, print_layer, to_csv, watching
from tidegauge.compare import (
    Comparison,
    ExactComparison,
    ReleaseComparison,
    Source,
    compare,
    compare_folders,
    compare_releases,
    compare_rungs,
    exact_to_json,
    frame_folders,
    from_json,
    is_float_network,
    merge_exact,
    merge_frames,
    open_frames,
    open_side,
    other_run,
    pair_frames,
    rejudge,
    release_to_json,
    to_json,
)
from tidegauge.compare.baseline import Baseline, baseline_from_json, baseline_to_json, learn
from tidegauge.compare.release import MOVED
from tidegauge.compare.report import print_comparison, print_exact, render_exact, render_html
from tidegauge.compare.report.html import page
from tidegauge.compare.report.release import print_release, release_body, release_headline
from tidegauge.compare.stored import stopped
from tidegauge.compare.types import INPUT_FACTOR
from tidegauge.errors import TidegaugeError

#: Columns where the output is a file or a pipe: a layer's row stays one line.
_LOG_WIDTH = 180
#: A stored answer of a network of a few hundred layers has some megabytes.
_MAX_STORED = 512 << 20
_PATH = click.Path(path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_NEW = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class Options:
    """What was asked for, as given."""

    source: Path | None
    device: tuple[Path, ...]
    host: Path | None
    host_float: Path | None
    host_float_tempdir: Path | None
    before: Path | None
    after: Path | None
    before_tempdir: Path | None
    after_tempdir: Path | None
    stored: Path | None
    model: Path | None
    tempdir: Path | None
    artifacts: Path | None
    log: Path | None
    inputs: tuple[str, ...]
    reference: Path | None
    json_file: str | None
    html_file: Path | None
    csv_file: Path | None
    top: int | None
    layer: str | None
    min_coverage: float | None
    threshold: float | None
    target_db: float | None
    past_input: bool
    baseline: Path | None
    write_baseline: Path | None

    @property
    def compiled(self) -> Path | None:
        """Where the compile's tables are looked for."""
        return self.tempdir if self.tempdir is not None else self.artifacts

    @property
    def coverage(self) -> float:
        return 0.8 if self.min_coverage is None else self.min_coverage


@click.command("compare")
@click.argument("source", type=_PATH, required=False)
@click.option("--device", type=_FOLDER, multiple=True, help="Folder of traces, or of frames; repeat for more frames.")
@click.option("--host", type=_FOLDER, help="Folder of the PC emulation's traces of the same artifacts: bit by bit.")
@click.option("--host-float", type=_FOLDER, help="Folder of the emulation's float traces (tensor_bits 32).")
@click.option("--host-float-tempdir", type=_FOLDER, help="tempDir of that compile; else the one beside its traces.")
@click.option("--before", type=_PATH, help="The earlier of two compiles (SDK releases) or boards: folder or bundle.")
@click.option("--after", type=_PATH, help="The later one. Traces beside their tempDir are compared too.")
@click.option("--before-tempdir", type=_FOLDER, help="tempDir of --before, where it is not beside it.")
@click.option("--after-tempdir", type=_FOLDER, help="tempDir of --after, where it is not beside it.")
@click.option("--from", "stored", type=_FILE, help="A stored answer (JSON): judge again, without reading a tensor.")
@click.option("--model", type=_FILE, help="The float model (.onnx or .tflite) that was compiled.")
@click.option("--tempdir", type=_FOLDER, help="The compile's tempDir (or the folder that holds it).")
@click.option("--artifacts", type=_FOLDER, help="The compile's artifacts folder, which holds tempDir.")
@click.option("--log", type=_FILE, help="The C7x's remote log of the traced run, which tells scales too.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]FILE",
    help="Input tensor: .npy, raw float32 .bin, .png (RGB 0…1); else an input.npy beside the traces.",
)
@click.option(
    "--reference",
    type=_FOLDER,
    help="Float tensors of another run, as NAME.npy: compare with these in place of the computed ones.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write the answer as JSON; - for standard output.")
@click.option("--html", "html_file", type=_NEW, help="Write the report.")
@click.option("--csv", "csv_file", type=_NEW, help="Write a row a layer.")
@click.option("--top", type=click.IntRange(min=1), help="Show only so many layers, the worst first.")
@click.option("--layer", metavar="NAME", help="Show all of one layer: its name, the ONNX name, or the data id.")
@click.option("--min-coverage", type=click.FloatRange(0, 1), help="Below: no verdict, exit code 3.  [default: 0.8]")
@click.option(
    "--threshold",
    type=click.FloatRange(min=0, min_open=True),
    help="Local error over the healthy noise above which a layer is wrong.  [default: 10]",
)
@click.option(
    "--target",
    "target_db",
    type=float,
    metavar="DB",
    help="The SQNR that every output shall reach: name the fewest layers whose change gets there.",
)
@click.option("--past-input", is_flag=True, help="Judge the layers also where the device was fed another input.")
@click.option("--baseline", type=_FILE, help="Limits from healthy runs instead of the default factor.")
@click.option("--write-baseline", type=_NEW, help="Take this run for healthy and write (or widen) its baseline.")
def command(**given: Any) -> None:
    """Compare a device run with its float model, layer by layer, and name the layer that is wrong.

    SOURCE is a bundle (a folder or a .tidebundle), a folder of trace files with --model and --input, or a folder of
    such folders: frames, whose sums are merged. With --host and no --input, host and device are compared bit by bit
    and no model is needed; with both, and with --host-float, the answer says between which rungs the error enters:
    input, import, quantisation, device. With --before and --after two compiles or boards are compared with each other;
    with --from a stored answer is judged again.

    Exit code: 0 fine, 1 a culprit is named (bit by bit: a difference; releases: the output moved), 2 the input is
    unusable, 3 too few layers could be compared.
    """
    options = Options(**given)
    if options.reference is not None and (options.stored is not None or options.before or options.after):
        raise TidegaugeError("--reference is for a device run compared with its model", "leave it out, or name the run")
    if options.stored is not None:
        _again(options)
    elif options.before is not None or options.after is not None:
        _releases(options)
    else:
        _run(options)


# --- the modes -------------------------------------------------------------------------------------------------------


def _again(options: Options) -> None:
    """A stored answer with other thresholds."""
    path = options.stored
    if path is None or options.source is not None or options.device:
        raise TidegaugeError("--from takes a stored answer in place of traces", "leave out the source, or --from")
    if path.stat().st_size > _MAX_STORED:
        raise TidegaugeError(f"{path} is larger than {_MAX_STORED} bytes", "give the JSON that --json wrote")
    try:
        answer = from_json(path.read_bytes())
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise TidegaugeError(f"{path} is no stored comparison ({error})", "give the JSON that --json wrote") from error
    answer = rejudge(answer, threshold=options.threshold, min_coverage=options.min_coverage)
    _deliver_comparison(answer, options)


def _releases(options: Options) -> None:
    """Two compiles, or two boards."""
    if options.before is None or options.after is None:
        missing = "--before" if options.before is None else "--after"
        raise TidegaugeError(f"{missing} is missing", "give both: --before FOLDER --after FOLDER")
    if options.csv_file is not None or options.layer is not None:
        raise TidegaugeError("--csv and --layer are for comparisons with a model", "use --json")
    tempdirs = options.before_tempdir, options.after_tempdir
    with open_side(options.before, tempdirs[0]) as before, open_side(options.after, tempdirs[1]) as after:
        judged = None
        if options.model is not None and before.tensors and after.tensors:
            judged = _judged(options, options.before, tempdirs[0]), _judged(options, options.after, tempdirs[1])
        limit = MOVED if options.threshold is None else options.threshold
        answer = compare_releases(before, after, min_coverage=options.coverage, threshold=limit, judged=judged)
    title = f"Tidegauge: {release_headline(answer)}, release against release"
    _deliver(release_to_json(answer), lambda: page(title, release_body(answer), [], 0), answer, options)
    sys.exit(answer.exit_code)


def _judged(options: Options, path: Path, tempdir: Path | None) -> Comparison:
    traces = next((p for p in (path, path / "traces", path / "device") if _traced(p)), path)
    return compare(
        traces,
        model=options.model,
        tempdir=tempdir if tempdir is not None else path,
        inputs=options.inputs,
        min_coverage=options.coverage,
        threshold=options.threshold,
        past_input=options.past_input,
    )


def _traced(path: Path) -> bool:
    return path.is_file() or (path / "manifest.json").is_file() or any(path.glob("*tidl_trace*"))


def _run(options: Options) -> None:
    """A device run against the model, the emulation, or both."""
    if (not options.device and options.source is None) or (options.device and options.source is not None):
        raise TidegaugeError(
            "`tidegauge compare` needs one source", "name a bundle, or a folder of traces with --device"
        )
    given = options.device or (options.source,)
    paths = [path for item in given if item is not None for path in frame_folders(item)]
    hosts, floats = _others(options.host, paths), _others(options.host_float, paths)
    if _bit_by_bit(options, paths):
        pairs = [(host, path) for host, path in zip(hosts, paths, strict=True) if host is not None]
        found = [compare_folders(h, d, options.compiled, min_coverage=options.coverage) for h, d in pairs]
        exact = merge_exact(found)
        _deliver(exact_to_json(exact), lambda: render_exact(exact), exact, options)
        sys.exit(exact.exit_code)
    limits = _limits(options)
    answers, model = [], b""
    frames = open_frames(
        paths,
        model=options.model,
        tempdir=options.compiled,
        inputs=options.inputs,
        log=options.log,
        reference=options.reference,
    )
    for (opened, previous), host, host_float in zip(frames, hosts, floats, strict=True):
        model = opened.model
        answers.append(_one(opened, previous, host, host_float, options, limits))
    answer = merge_frames(answers)
    if options.write_baseline is not None:
        _healthy(answers)
        for each in answers:
            _learn(options.write_baseline, each, hashlib.sha256(model).hexdigest())
    _deliver_comparison(answer, options)


def _others(folder: Path | None, paths: list[Path]) -> Sequence[Path | None]:
    """The other side's run of each frame."""
    return [None] * len(paths) if folder is None else pair_frames(paths, frame_folders(folder))


def _bit_by_bit(options: Options, paths: list[Path]) -> bool:
    """Host against device without a model: nothing else was given."""
    plain = options.host is not None and options.host_float is None and not options.inputs and options.reference is None
    bundles = any(path.is_file() or (path / "manifest.json").is_file() for path in paths)
    return plain and options.model is None and not bundles


def _one(
    opened: Source,
    previous: Source | None,
    host: Path | None,
    host_float: Path | None,
    options: Options,
    limits: Baseline | None,
) -> Comparison:
    with watching(Console(stderr=True)) as progress:
        if host is None and host_float is None and not is_float_network(opened.tensors):
            return compare(
                opened,
                min_coverage=options.coverage,
                progress=progress,
                baseline=limits,
                target_db=options.target_db,
                threshold=options.threshold,
                previous=previous,
                past_input=options.past_input,
            )
        return compare_rungs(
            opened,
            other_run(opened, host) if host is not None else None,
            other_run(opened, host_float, options.host_float_tempdir) if host_float is not None else None,
            min_coverage=options.coverage,
            baseline=limits,
            threshold=options.threshold,
            target_db=options.target_db,
            past_input=options.past_input,
            progress=progress,
        )


def _limits(options: Options) -> Baseline | None:
    path = options.baseline
    return baseline_from_json(path.read_bytes(), str(path)) if path is not None else None


def _healthy(answers: Sequence[Comparison]) -> None:
    """No limit may be learned from a run of which no layer was judged, or that was fed wrong on both sides."""
    for answer in answers:
        if stopped(answer) or any(finding.kind == INPUT_FACTOR for finding in answer.findings):
            raise TidegaugeError(
                f"{answer.subject.source} is no healthy run ({answer.sentence.removesuffix('.')})",
                "learn the baseline from runs whose input is the recorded one and within the range of the calibration",
            )


def _learn(path: Path, answer: Comparison, model_sha256: str) -> None:
    before = baseline_from_json(path.read_bytes(), str(path)) if path.exists() else None
    learned = learn(answer, model_sha256, before)
    _write(path, baseline_to_json(learned))
    click.echo(f"{path}: {len(learned.layers)} layers from {learned.runs} healthy runs", err=True)
    named = ", ".join(culprit.layer for culprit in answer.culprits)
    if named:
        click.echo(f"warning: taken for healthy though the default limit names {named}", err=True)


# --- the answer ------------------------------------------------------------------------------------------------------


def _deliver_comparison(answer: Comparison, options: Options) -> None:
    chosen = find_layer(answer, options.layer) if options.layer is not None else None
    if options.csv_file is not None:
        _write(options.csv_file, to_csv(answer))
    _deliver(to_json(answer), lambda: render_html(answer), answer, options)
    if chosen is not None and options.json_file != "-":
        print_layer(chosen, _console())
    sys.exit(answer.exit_code)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)


def _deliver(
    data: bytes,
    draw: Callable[[], str],
    answer: Comparison | ExactComparison | ReleaseComparison,
    options: Options,
) -> None:
    if options.html_file is not None:
        _write(options.html_file, draw().encode())
    if options.json_file == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    if options.json_file is not None:
        _write(Path(options.json_file), data)
    console = _console()
    if isinstance(answer, ExactComparison):
        print_exact(answer, console, options.top)
    elif isinstance(answer, ReleaseComparison):
        print_release(answer, console, options.top)
    elif options.layer is None:
        print_comparison(only_top(answer, options.top) if options.top is not None else answer, console)
    for file in (options.html_file, options.csv_file):
        if file is not None:
            console.print(f"Report: {file}", markup=False)


def _write(path: Path, data: bytes) -> None:
    """All or nothing: a reader never sees half a report."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TidegaugeError(f"{path} can't be written", error.strerror or "") from error
