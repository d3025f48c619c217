"""`tidegauge virtualboard`: the emulated AM62A from the command line."""

from __future__ import annotations

import io
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tidegauge.errors import TidegaugeError
from tidegauge.tidl import heap_stats
from tidegauge.tidl.heap_stats import SHARED, Heap
from tidegauge.virtualboard import core, failures, remote_log
from tidegauge.virtualboard.faults import ALL_KINDS, eligible, parse
from tidegauge.virtualboard.network import DTYPES, load_all, load_artifacts
from tidegauge.virtualboard.state import VARIABLE, BoardState, board_folder, fail, inject, reboot

Array = NDArray[Any]
_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group("virtualboard")
def command() -> None:
    """An emulated AM62A: compiles and runs ONNX or TFLite models, traces like TIDL, takes faults. Not TI's emulator."""


@command.command("compile")
@click.argument("model", type=_FILE)
@click.option("--artifacts", required=True, type=_FOLDER, help="New or empty folder for the artifacts and tempDir.")
@click.option(
    "--calibration",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    help="Input tensor (.npy, or .npz by input name), or a folder of them. May be repeated.",
)
@click.option("--tensor-bits", type=click.Choice(["8", "16", "32"]), default="8", show_default=True)
@click.option(
    "--16bit", "wide", multiple=True, metavar="NAME", help="output_feature_16bit_names_list. May be repeated."
)
@click.option("--params-16bit", "params", multiple=True, metavar="NAME", help="params_16bit_names_list.")
@click.option("--deny", "denied", multiple=True, metavar="NAME", help="deny_list:layer_name. May be repeated.")
@click.option("--quantization-scale-type", "scale", type=click.Choice(["0", "1", "4"]), default="0", show_default=True)
@click.option("--calibration-frames", "frames", type=int, default=20, show_default=True, help="Use at most so many.")
@click.option("--option", "extra", multiple=True, metavar="KEY=VALUE", help="Any compile option, by TIDL's name.")
def compile_command(
    model: Path,
    artifacts: Path,
    calibration: tuple[Path, ...],
    tensor_bits: str,
    wide: tuple[str, ...],
    params: tuple[str, ...],
    denied: tuple[str, ...],
    scale: str,
    frames: int,
    extra: tuple[str, ...],
) -> None:
    """Compile the ONNX or TFLite file MODEL.

    Of a TFLite model, operators that the C7x has no layer for stay on the CPU; warnings count them.
    """
    from tidegauge.virtualboard.compiler import compile_model  # heavy: a remote-log server must start at once
    from tidegauge.virtualboard.options import CompileOptions

    chosen = {
        "tensor_bits": tensor_bits,
        "advanced_options:output_feature_16bit_names_list": ",".join(wide),
        "advanced_options:params_16bit_names_list": ",".join(params),
        "deny_list:layer_name": ",".join(denied),
        "advanced_options:quantization_scale_type": scale,
        "advanced_options:calibration_frames": str(frames),
    }
    options = CompileOptions.from_tidl(chosen | dict(_pair(text) for text in extra))
    report = compile_model(model, artifacts, _calibration(model, calibration), options)
    for warning in report.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(
        f"{artifacts}: {len(report.layers)} layers from {report.offloaded} of {report.nodes} nodes in "
        f"{len(report.subgraphs)} sub-graph(s), {report.frames} calibration frames"
    )
    for name, value in report.sqnr_db.items():
        click.echo(f"{name}: {value:.1f} dB signal to quantisation noise")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise TidegaugeError(f"the option {text!r} is not of the form KEY=VALUE", "write accuracy_level=1, for example")
    return key, value


def _calibration(model: Path, paths: tuple[Path, ...]) -> Iterator[dict[str, Array]]:
    inputs = _input_names(model)
    files: list[Path] = []
    for path in paths:
        found = sorted(p for p in path.iterdir() if p.suffix in (".npy", ".npz")) if path.is_dir() else [path]
        if not found:
            raise TidegaugeError(
                f"the calibration folder {path} holds no .npy or .npz file", "save input tensors there"
            )
        files += found
    for file in files:
        yield _tensors(file, inputs)


def _input_names(model: Path) -> list[str]:
    import onnx

    from tidegauge.virtualboard import tflite_model

    if tflite_model.is_tflite(model):
        loaded = tflite_model.load(model)
        return list(loaded.names(loaded.inputs))
    try:
        graph = onnx.load(model).graph
    except OSError as error:
        raise TidegaugeError(f"the model {model} can't be read ({error.strerror})", "name an ONNX file") from error
    constants = {i.name for i in graph.initializer}
    return [i.name for i in graph.input if i.name not in constants]


def _tensors(path: Path, inputs: list[str]) -> dict[str, Array]:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise TidegaugeError(f"{path} can't be read as an input tensor ({error})", "save it with numpy.save") from error
    if isinstance(loaded, np.ndarray):
        if len(inputs) != 1:
            raise TidegaugeError(f"{path} is one tensor, the model has the inputs {', '.join(inputs)}", "use .npz")
        return {inputs[0]: loaded}
    with loaded:
        return {name: loaded[name] for name in loaded.files}


@command.command("run")
@click.argument("artifacts", type=_FOLDER)
@click.option("--model", type=_FILE, help="The model; needed where the CPU runs a part of it.")
@click.option(
    "--input",
    "sources",
    required=True,
    multiple=True,
    type=_FILE,
    help="Input tensor, .npy or .npz by name.",
)
@click.option("--output", required=True, type=_FOLDER, help="Folder for outputs, traces and the remote log.")
@click.option("--debug-level", type=click.IntRange(0, 6), default=0, show_default=True, help="3 and 4 dump traces.")
@click.option(
    "--target",
    type=click.Choice(["device", "host"]),
    default="device",
    show_default=True,
    help="host: TI's emulation on a PC, whose traces have no core in their names, and which runs float networks.",
)
@click.option("--fault", "faults", multiple=True, metavar="LAYER:KIND[:AMOUNT]", help=f"Kinds: {', '.join(ALL_KINDS)}.")
def run_command(
    artifacts: Path,
    model: Path | None,
    sources: tuple[Path, ...],
    output: Path,
    debug_level: int,
    target: Literal["device", "host"],
    faults: tuple[str, ...],
) -> None:
    """Run input tensors, one frame after another, on a board of its own.

    Outputs go to OUTPUT/offload/frame_N/NAME.bin, float32, as TI's basic_example.py writes them; those of the last
    frame also to OUTPUT/NAME.npy, and its traces to OUTPUT/traces: as with TIDL, each frame's overwrite the last one's.
    """
    from tidegauge.virtualboard.runner import model_needed, open_runner

    names = list(load_artifacts(artifacts).inputs if model is None else _input_names(model))
    if model is None and model_needed(artifacts):
        raise TidegaugeError(f"the CPU runs a part of the model that {artifacts} is of", "name the model with --model")
    frames = [_tensors(source, names) for source in sources]
    traces = output / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tidegauge-virtualboard-") as name:
        board = Path(name)
        BoardState(trace_folder=str(traces), target=target).save(board)
        inject(board, (parse(text) for text in faults), artifacts)
        with _log_server(board):
            run = open_runner(artifacts, model, board, debug_level)
            for number, tensors in enumerate(frames):
                results = run(tensors)
                _write_outputs(output, number, results)
        log = board / remote_log.LOG_FILE
        (output / remote_log.LOG_FILE).write_bytes(log.read_bytes() if log.exists() else b"")
    for tensor, value in results.items():
        path = output / f"{tensor.replace('/', '_')}.npy"
        np.save(path, value)
        click.echo(f"{tensor}: {path}")
    click.echo(f"{sum(1 for _ in traces.iterdir())} trace files in {traces}")


def _write_outputs(output: Path, number: int, results: dict[str, Array]) -> None:
    folder = output / "offload" / f"frame_{number}"
    folder.mkdir(parents=True, exist_ok=True)
    for tensor, value in results.items():
        value.astype("<f4").tofile(folder / f"{tensor.replace('/', '_')}.bin")


@contextmanager
def _log_server(board: Path) -> Iterator[None]:
    """A remote-log server in a thread, for the length of one run; what it would print is kept in the log itself."""
    stop, ready = threading.Event(), threading.Event()
    sink = io.BytesIO()
    thread = threading.Thread(target=remote_log.serve, args=(board, sink, stop, ready), daemon=True)
    thread.start()
    try:
        ready.wait(5.0)
        yield
    finally:
        stop.set()
        thread.join()


@command.command("remote-log")
@click.argument("folder", required=False, type=_FOLDER)
def remote_log_command(folder: Path | None) -> None:
    """Print new lines of the board's remote log until SIGTERM, as vx_app_arm_remote_log.out does on a real board.

    The board is FOLDER, else the folder in TIDEGAUGE_VIRTUALBOARD. The C7x can dump traces only while this runs.
    """
    folder = folder or board_folder()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    remote_log.serve(folder, sys.stdout.buffer, stop)


@command.command("layers")
@click.argument("artifacts", type=_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="One JSON array instead of a table.")
def layers_command(artifacts: Path, as_json: bool) -> None:
    """List the layers of compiled ARTIFACTS, and the faults each can have."""
    rows = []
    for network in load_all(artifacts).values():
        able = eligible(network)
        rows += [(layer, [kind for kind in ALL_KINDS if layer.name in able[kind]]) for layer in network.tensors()]
    if as_json:
        listed = [msgspec.to_builtins(layer) | {"faults": kinds} for layer, kinds in rows]
        click.echo(msgspec.json.format(msgspec.json.encode(listed)).decode())
        return
    table = Table("id", "layer", "kind", "shape", "type", "scale", "zero", "range", "faults")
    for layer, kinds in rows:
        quant = layer.quant
        table.add_row(
            str(layer.data_id),
            layer.name,
            layer.kind.removeprefix("TIDL_"),
            "x".join(map(str, layer.shape)),
            DTYPES[quant.element_type],
            f"{quant.scale:.6g}",
            str(quant.zero_point),
            f"{layer.low:.4g} … {layer.high:.4g}",
            " ".join(kinds),
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)


_FAIL = click.option(
    "--fail",
    "failing",
    multiple=True,
    metavar="NAME[:AMOUNT]",
    help="Switch a failure on; may be repeated. `tidegauge virtualboard failures` lists them.",
)


@command.command("init")
@click.argument("folder", type=_FOLDER)
@click.option("--trace-folder", type=_FOLDER, default=Path("/tmp"), show_default=True, help="Where the C7x dumps.")
@click.option(
    "--trace-op-seconds", type=float, default=0.0, show_default=True, help="Pause a file operation; real: 0.01."
)
@_FAIL
def init_command(folder: Path, trace_folder: Path, trace_op_seconds: float, failing: tuple[str, ...]) -> None:
    """Make a board in the new folder FOLDER: a healthy one, or one with failures."""
    if (folder / "board.json").exists():
        raise TidegaugeError(f"{folder} is a board already", "name a new folder")
    BoardState(
        trace_folder=str(trace_folder.absolute()),
        trace_op_seconds=trace_op_seconds,
        failures=tuple(failures.parse(text) for text in failing),
    ).save(folder)
    click.echo(f"export {VARIABLE}={folder.absolute()}")


@command.command("inject")
@click.argument("faults", nargs=-1, metavar="[LAYER:KIND[:AMOUNT]]...")
@_FAIL
@click.option("--artifacts", type=_FOLDER, help="Check the faults against these artifacts first.")
def inject_command(faults: tuple[str, ...], failing: tuple[str, ...], artifacts: Path | None) -> None:
    """Replace the faults and failures of the board in TIDEGAUGE_VIRTUALBOARD; none heals it.

    A hung C7x and leaked memory stay until `tidegauge virtualboard reboot`.
    """
    folder = board_folder()
    wanted = [failures.parse(text) for text in failing]
    inject(folder, [parse(text) for text in faults], artifacts)
    state = fail(folder, wanted)
    click.echo(f"{len(state.faults)} faults, {len(state.failures)} failures")


@command.command("failures")
@click.option("--json", "as_json", is_flag=True, help="One JSON array instead of Markdown.")
def failures_command(as_json: bool) -> None:
    """List every failure mode: what it does, what its amount means, and where it comes from."""
    if as_json:
        listed = [{"name": name} | msgspec.to_builtins(mode) for name, mode in failures.MODES.items()]
        click.echo(msgspec.json.format(msgspec.json.encode(listed)).decode())
        return
    click.echo("| name | what happens | amount (default) | source |\n|---|---|---|---|")
    for name, mode in failures.MODES.items():
        amount = f"{mode.amount} ({mode.default:g})" if mode.amount else "–"
        click.echo(f"| `{name}` | {mode.does} | {amount} | {mode.source} |")


@command.command("heap")
@click.argument("folder", required=False, type=_FOLDER)
def heap_command(folder: Path | None) -> None:
    """Print what is free on the board, in the lines of vx_app_heap_stats.out, and which sessions hold the rest."""
    now = core.CoreState.load(folder or board_folder())
    for heap in (
        Heap("MPU1_0", SHARED, core.SHARED_HEAP_BYTES, now.shared_free),
        Heap("C7X_1", "DDR_LOCAL_MEM", core.C7X_HEAP_BYTES, now.c7x_free),
    ):
        click.echo(heap_stats.line(heap))
    click.echo(f"{now.leaked_bytes} bytes of the C7x's heap leaked by failed creates")
    orphans = now.orphans()
    for held in now.sessions:
        fate = "dead: lost until reboot" if held in orphans else "alive"
        click.echo(f"pid {held.pid} ({fate}): {held.c7x_bytes} C7x, {held.shared_bytes} shared")
    if now.hung:
        click.echo(f"the C7x hangs since a {now.hung}: reboot")


@command.command("reboot")
@click.argument("folder", required=False, type=_FOLDER)
def reboot_command(folder: Path | None) -> None:
    """Switch the board off and on: memory, hang, semaphores, trace globals and trace folder are as new."""
    reboot(folder or board_folder())
