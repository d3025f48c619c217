"""What `tidegauge inspect` prints: tables that fit 100 columns, with more in them where there is room."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegauge.tidl.inspection import Inspection
from tidegauge.tidl.io_descriptor import IoInput, IoTensor
from tidegauge.tidl.log_report import LogReport
from tidegauge.tidl.network_summary import Layer, Network
from tidegauge.tidl.trace_report import TraceFile

#: From here on the tables show where a number comes from, the graph's edges and times.
_WIDE = 130
_MOST_NAMED = 12
_STATUS = {"whole": "green", "truncated": "red", "too long": "red", "unexpected": "yellow", "size unknown": "yellow"}


def show(found: Inspection, console: Console, rows: bool = True) -> None:
    """Print everything, the faults last: that is where a person looks first. `rows`: each layer and each trace."""
    wide = console.width >= _WIDE
    console.print(_title("found: " + ", ".join(found.what)))
    console.print(_summary(found))
    for network in found.networks:
        _network(network, console, rows, wide)
    if found.traces:
        _traces(found, console, rows)
    for log in found.logs:
        _log(log, found.networks, console)
    _findings(found, console)


def _title(text: str) -> Text:
    return Text(plain(text).plain, style="bold")


def plain(text: str) -> Text:
    """Text out of a file, without markup and without what a terminal would obey."""
    return Text("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(text)))


def _pairs(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, plain(value))
    return table


def _summary(found: Inspection) -> Table:
    rows: list[tuple[str, str]] = []
    compiled, simulated, told = found.compile, found.simulation, found.parameters
    if compiled is not None:
        versions = [("tools", compiled.tools), ("firmware", compiled.firmware), ("runtime", compiled.runtime)]
        rows.append(("compiled with", ", ".join(f"{name} {value}" for name, value in versions if value) or "not told"))
    if compiled is not None and compiled.c7x_nodes is not None:
        subgraphs = f" in {_count(compiled.subgraphs, 'sub-graph')}" if compiled.subgraphs is not None else ""
        rows.append(("nodes", f"{compiled.c7x_nodes} on the C7x{subgraphs}, {compiled.cpu_nodes} on the CPU"))
    elif found.offloaded_nodes is not None:
        of = f" of {found.graph_nodes}" if found.graph_nodes is not None else ""
        rows.append(("nodes", f"{found.offloaded_nodes}{of} on the C7x"))
    if simulated is not None:
        traffic = f", {simulated.ddr_total:g} MB through DDR" if simulated.ddr_total is not None else ""
        clock = f" at {simulated.clock_mhz:g} MHz" if simulated.clock_mhz is not None else ""
        rows.append(("simulated", f"{simulated.microseconds / 1000:.1f} ms an inference{clock}{traffic}"))
    if told is not None:
        bits = told.options.get("tensor_bits", "?")
        scale = told.options.get("advanced_options:quantization_scale_type", "?")
        frames = told.options.get("advanced_options:calibration_frames", "?")
        rows.append(("options", f"tensor_bits {bits}, quantization_scale_type {scale}, calibration_frames {frames}"))
        rows.append(("input made by", _preprocess(found)))
    return _pairs(rows)


def _preprocess(found: Inspection) -> str:
    told = found.parameters
    assert told is not None
    size = "x".join(str(value) for value in reversed(told.crop)) if told.crop else "no crop"
    order = told.channel_order or "order not told"
    pad = ", padded to keep the aspect" if told.keep_aspect else ""
    return (
        f"{size}{pad}, {order}, {told.layout or 'layout not told'}, mean {_list(told.mean)}, scale {_list(told.scale)}"
    )


def _list(values: Sequence[float] | None) -> str:
    return "not told" if values is None else "[" + ", ".join(f"{value:g}" for value in values) + "]"


def _network(network: Network, console: Console, rows: bool, wide: bool) -> None:
    console.print()
    console.print(_title(f"sub-graph {network.name}"))
    version = f"{network.version} (release {network.release or 'unknown'})" if network.version else ""
    macs = f", {network.giga_macs:g} giga MACs" if network.giga_macs is not None else ""
    pairs = [
        ("network", "a container of several sub-graphs" if network.container else version),
        ("descriptor of release", network.descriptor_release or ""),
        ("layers", f"{len(network.layers)}{macs}, picture: {network.picture or 'none'}" if network.layers else ""),
    ]
    console.print(_pairs((name, value) for name, value in pairs if value))
    if network.descriptor is not None:
        console.print(_io([*network.descriptor.inputs, *network.descriptor.outputs]))
    if rows and network.layers:
        console.print(_layers(network.layers, wide))


def _table(left: Sequence[str], columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column, justify="left" if column in left else "right", no_wrap=True, overflow="ellipsis",
            ratio=None, min_width=8 if column == "name" else None,
        )  # fmt: skip
    return table


def _io(tensors: Sequence[IoTensor]) -> Table:
    table = _table(
        ("", "name", "shape", "given as", "kept as", "layout"),
        ("", "name", "shape", "given as", "kept as", "scale", "zero", "layout"),
    )
    for tensor in tensors:
        given = isinstance(tensor, IoInput)
        table.add_row(
            "input" if given else "output",
            plain(tensor.name),
            _dims(tensor.dims),
            tensor.raw_dtype if isinstance(tensor, IoInput) else "",
            tensor.dtype,
            _number(tensor.scale),
            str(tensor.zero_point),
            {0: "NCHW", 1: "NHWC"}.get(tensor.layout, str(tensor.layout)),
        )
    return table


def _layers(layers: Sequence[Layer], wide: bool) -> Table:
    weights = any(layer.weight_steps is not None for layer in layers)
    timed = any(layer.microseconds is not None for layer in layers)
    cycles = any(layer.cycles is not None for layer in layers)
    columns = ["id", "layer", "name", "shape", "type", "scale", "low", "high"]
    columns += ["zero"] if wide else []
    columns += ["weight error"] if weights else []
    columns += ["relative"] if wide and weights else []
    columns += ["µs"] if timed and wide else []
    columns += ["cycles"] if cycles else []
    columns += ["inputs", "told by"] if wide else []
    table = _table(("layer", "name", "shape", "type", "inputs", "told by"), columns)
    for layer in layers:
        cells: dict[str, str | Text] = {
            "id": "-" if layer.data_id is None else str(layer.data_id),
            "layer": layer.kind.removeprefix("TIDL_").removesuffix("Layer"),
            "name": plain(layer.name),
            "shape": _dims(layer.dims),
            "type": layer.dtype or "",
            "scale": _number(layer.scale),
            "low": _number(layer.minimum),
            "high": _number(layer.maximum),
            "zero": "" if layer.zero_point is None else str(layer.zero_point),
            "weight error": "" if layer.weight_steps is None else f"{layer.weight_steps:.2f} steps",
            "relative": "" if layer.weight_relative is None else f"{layer.weight_relative:.2%}",
            "µs": "" if layer.microseconds is None else f"{layer.microseconds:.1f}",
            "cycles": "" if layer.cycles is None else str(layer.cycles),
            "inputs": " ".join(str(source) for source in layer.inputs),
            "told by": layer.source,
        }
        table.add_row(*(cells[column] for column in columns))
    return table


def _traces(found: Inspection, console: Console, rows: bool) -> None:
    console.print()
    total = sum(trace.size for trace in found.traces)
    counts = Counter(trace.status for trace in found.traces)
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    known = any(network.layers for network in found.networks)
    missing = f", {len(found.missing)} missing" if known else ""
    console.print(_title(f"traces: {_count(len(found.traces), 'file')}, {total / 1e6:.1f} MB: {told}{missing}"))
    if rows:
        console.print(_trace_table(found.traces))
    if found.missing:
        named = ", ".join(f"{item.data_id} {item.name or ''}".strip() for item in found.missing[:_MOST_NAMED])
        more = f" and {len(found.missing) - _MOST_NAMED} more" if len(found.missing) > _MOST_NAMED else ""
        console.print(plain(f"missing: {named}{more}"), style="yellow")
    if not known:
        console.print(
            "Names, and what is missing, are not known without the compile's tempDir: give it with --artifacts."
        )


def _trace_table(traces: Sequence[TraceFile]) -> Table:
    table = _table(("name", "core", "kind", "shape", "type", "status"),
                   ("id", "name", "core", "kind", "shape", "type", "bytes", "expected", "status"))  # fmt: skip
    for trace in traces:
        table.add_row(
            str(trace.data_id),
            plain(trace.name or ""),
            trace.cpu or "PC",
            {"y": "codes", "float": "float", "padded": "padded"}[trace.kind],
            _dims(trace.dims),
            trace.dtype or "",
            str(trace.size),
            "" if trace.expected is None else str(trace.expected),
            Text(trace.status, style=_STATUS[trace.status]),
        )
    return table


def _log(log: LogReport, networks: Sequence[Network], console: Console) -> None:
    console.print()
    span = ""
    if log.first_seconds is not None and log.last_seconds is not None:
        span = f", {log.first_seconds:.3f} to {log.last_seconds:.3f} s after boot"
    console.print(_title(f"log {log.file}: {_count(log.lines, 'line')}{span}"))
    pairs = [("cores", ", ".join(log.cores))]
    if log.milestone is not None:
        pairs.append(("start came to", log.milestone.replace("_", " ")))
    if log.offload is not None:
        count = log.offload
        pairs.append(("offloaded", f"{count.nodes} of {count.total} nodes in {_count(count.subgraphs, 'sub-graph')}"))
    if log.scales:
        pairs.append(("scales told", f"of {log.scales} tensors"))
    if log.clock_hz is not None:
        pairs.append(("clock", f"{log.clock_hz / 1e6:g} MHz"))
    if log.cycles:
        total = sum(layer.cycles for layer in log.cycles)
        slow = max(log.cycles, key=lambda layer: layer.cycles)
        clock = f", {total / log.clock_hz * 1000:.2f} ms" if log.clock_hz else ""
        slowest = f"the slowest {slow.layer} with {slow.cycles / total:.0%}" if total else ""
        pairs.append(("layer times", f"{_count(len(log.cycles), 'layer')}, {total} cycles{clock}, {slowest}"))
    if log.run_microseconds is not None:
        copied_in, processed, copied_out = log.run_microseconds
        pairs.append(("last run", f"{copied_in:.0f} µs in, {processed:.0f} µs processing, {copied_out:.0f} µs out"))
    if log.last_layer is not None:
        state = "begun, not ended: a hung C7x stands here" if log.unfinished is not None else log.last_layer.phase
        number = log.last_layer.layer
        rows = [row for network in networks for row in network.layers if row.number == number]
        name = f" {rows[0].name}" if len(rows) == 1 else ""
        pairs.append(("last layer", f"{number}{name} ({state})"))
    console.print(_pairs((name, value) for name, value in pairs if value))
    if not log.faults:
        console.print("no line names a fault", style="green")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("line", "times", "fault", "first told as", "cure"):
        right = column in ("line", "times")
        table.add_column(
            column, justify="right" if right else "left", no_wrap=right or column == "fault", overflow="fold"
        )
    for fault in log.faults:
        cells = (plain(fault.text), plain(fault.cure))
        table.add_row(str(fault.line), str(fault.count), Text(fault.cause, style="red"), *cells)
    console.print(table)


def _findings(found: Inspection, console: Console) -> None:
    if not found.findings:
        return
    console.print()
    for finding in found.findings:
        mark = Text("damaged" if finding.fatal else "look at", style="red" if finding.fatal else "yellow")
        console.print(mark, plain(f"{finding.file}: {finding.problem}. {finding.cure[:1].upper()}{finding.cure[1:]}."))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _dims(dims: Sequence[int] | None) -> str:
    """C x H x W, with the outer dimensions only where one of them is more than 1."""
    if dims is None:
        return ""
    outer = 0
    while outer < len(dims) - 3 and dims[outer] == 1:
        outer += 1
    return "x".join(str(size) for size in dims[outer:])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 4 - max(0, math.floor(math.log10(abs(value))) + 1))
    return f"{value:.{digits}f}" if 1e-3 <= abs(value) < 1e7 else f"{value:.3g}"
