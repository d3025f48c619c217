"""`tidegauge compare`."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from tidegauge.compare import (
    Comparison,
    ExactComparison,
    compare,
    compare_folders,
    compare_rungs,
    exact_to_json,
    is_float_network,
    open_source,
    other_run,
    to_json,
)
from tidegauge.compare.baseline import baseline_from_json, baseline_to_json, learn
from tidegauge.compare.report import print_comparison, print_exact, render_exact, render_html
from tidegauge.errors import TidegaugeError

#: Columns where the output is a file or a pipe: a layer's row stays one line.
_LOG_WIDTH = 180
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("compare")
@click.argument("source", type=click.Path(path_type=Path), required=False)
@click.option("--device", type=_FOLDER, help="Folder of trace files, instead of a bundle.")
@click.option("--host", type=_FOLDER, help="Folder of the PC emulation's traces of the same artifacts: bit by bit.")
@click.option("--host-float", type=_FOLDER, help="Folder of the emulation's float traces (tensor_bits 32).")
@click.option("--host-float-tempdir", type=_FOLDER, help="tempDir of that compile; else the one beside its traces.")
@click.option("--model", type=_FILE, help="The float model (.onnx) that was compiled.")
@click.option("--tempdir", type=_FOLDER, help="The compile's tempDir (or the folder that holds it).")
@click.option(
    "--input", "inputs", multiple=True, metavar="[NAME=]FILE", help="Input tensor: .npy, or raw float32 .bin."
)
@click.option("--json", "json_file", metavar="FILE", help="Write the answer as JSON; - for standard output.")
@click.option("--html", "html_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report.")
@click.option("--min-coverage", type=click.FloatRange(0, 1), default=0.8, show_default=True)
@click.option("--baseline", type=_FILE, help="Limits from healthy runs instead of the default factor.")
@click.option(
    "--write-baseline",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Take this run for healthy and write (or widen) its baseline.",
)
def command(
    source: Path | None,
    device: Path | None,
    host: Path | None,
    host_float: Path | None,
    host_float_tempdir: Path | None,
    model: Path | None,
    tempdir: Path | None,
    inputs: tuple[str, ...],
    json_file: str | None,
    html_file: Path | None,
    min_coverage: float,
    baseline: Path | None,
    write_baseline: Path | None,
) -> None:
    """Compare a device run with its float model, layer by layer, and name the layer that is wrong.

    SOURCE is a bundle (a folder or a .tidebundle), or a folder of trace files with --model and --input. With --host
    and no --input, host and device are compared bit by bit and no model is needed; with both, and with --host-float,
    the answer says between which rungs the error enters: input, import, quantisation, device.
    Exit code: 0 fine, 1 a culprit is named (bit by bit: a difference), 2 the input is unusable, 3 too few layers could
    be compared.
    """
    path = device or source
    if path is None or (device is not None and source is not None):
        raise TidegaugeError(
            "`tidegauge compare` needs one source", "name a bundle, or a folder of traces with --device"
        )
    if (
        host is not None
        and host_float is None
        and not inputs
        and path.is_dir()
        and not (path / "manifest.json").is_file()
    ):
        exact = compare_folders(host, path, tempdir, min_coverage=min_coverage)
        _deliver(exact_to_json(exact), lambda: render_exact(exact), exact, json_file, html_file)
        sys.exit(exact.exit_code)
    with open_source(path, model=model, tempdir=tempdir, inputs=inputs) as opened:
        limits = baseline_from_json(baseline.read_bytes(), str(baseline)) if baseline is not None else None
        if host is None and host_float is None and not is_float_network(opened.tensors):
            answer = compare(opened, min_coverage=min_coverage, baseline=limits)
        else:
            emulation = other_run(opened, host) if host is not None else None
            floats = other_run(opened, host_float, host_float_tempdir) if host_float is not None else None
            answer = compare_rungs(opened, emulation, floats, min_coverage=min_coverage, baseline=limits)
        if write_baseline is not None:
            _learn(write_baseline, answer, hashlib.sha256(opened.model).hexdigest())
    _deliver(to_json(answer), lambda: render_html(answer), answer, json_file, html_file)
    sys.exit(answer.exit_code)


def _learn(path: Path, answer: Comparison, model_sha256: str) -> None:
    before = baseline_from_json(path.read_bytes(), str(path)) if path.exists() else None
    learned = learn(answer, model_sha256, before)
    _write(path, baseline_to_json(learned))
    click.echo(f"{path}: {len(learned.layers)} layers from {learned.runs} healthy runs", err=True)
    named = ", ".join(culprit.layer for culprit in answer.culprits)
    if named:
        click.echo(f"warning: taken for healthy though the default limit names {named}", err=True)


def _deliver(
    data: bytes,
    page: Callable[[], str],
    answer: Comparison | ExactComparison,
    json_file: str | None,
    html_file: Path | None,
) -> None:
    if html_file is not None:
        _write(html_file, page().encode())
    if json_file == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    if json_file is not None:
        _write(Path(json_file), data)
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    if isinstance(answer, ExactComparison):
        print_exact(answer, console)
    else:
        print_comparison(answer, console)
    if html_file is not None:
        console.print(f"Report: {html_file}", markup=False)


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
