"""What the files of a compile, of a dump or of a log say together: one network, its layers, its traces, its faults.

Pure: files come as names with sizes, and with contents where they are small. Nothing here raises for a damaged file: it
becomes a finding, and the rest is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, cast

import msgspec

from tidegauge.tidl import (
    artifacts,
    compile_log,
    csv_tables,
    file_names,
    io_descriptor,
    layer_info,
    log_report,
    net_header,
    netlog,
    param_yaml,
    quant_proto,
    tensor_table,
    trace_report,
)
from tidegauge.tidl.csv_tables import ParamError
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.log_report import LogReport
from tidegauge.tidl.network_summary import Layer, Network
from tidegauge.tidl.tensor_table import TensorInfo
from tidegauge.tidl.trace_report import MissingTrace, TraceFile

T = TypeVar("T")


class Finding(msgspec.Struct, frozen=True):
    """Something to look at. `fatal`: the file can't be used as it is."""

    file: str
    problem: str
    cure: str
    fatal: bool


class Inspection(msgspec.Struct, frozen=True):
    """All that was found. `what`: "artifacts", "tempDir", "traces", "log", "parameters", in this order."""

    what: tuple[str, ...]
    networks: tuple[Network, ...]
    offloaded_nodes: int | None
    graph_nodes: int | None
    compile: compile_log.CompileLog | None
    simulation: csv_tables.PerfSim | None
    parameters: param_yaml.CompileParameters | None
    traces: tuple[TraceFile, ...]
    missing: tuple[MissingTrace, ...]
    logs: tuple[LogReport, ...]
    findings: tuple[Finding, ...]


class _Reader:
    """Reads file by file; what is damaged becomes a finding."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self.contents = contents
        self.findings: list[Finding] = []
        self.read: dict[tuple[str, str], object] = {}
        self.roles: dict[tuple[str, str], str] = {}
        # Of two pictures the svg is taken: its text is known.
        for path in sorted(contents, key=lambda path: (path.endswith(".html"), path.count("/"), path)):
            named = file_names.identify(path.rsplit("/", 1)[-1])
            if named is not None:
                self.roles.setdefault((named.role, named.subgraph), path)

    def bytes_of(self, role: str, subgraph: str, parse: Callable[[bytes], T]) -> T | None:
        """The parsed file of a role, None where there is none or it is damaged. Read once, complained of once."""
        path = self.roles.get((role, subgraph))
        if path is None:
            return None
        if (role, subgraph) not in self.read:
            try:
                self.read[role, subgraph] = parse(self.contents[path])
            except FormatError as error:
                told = str(error).removesuffix(f": {error.cure}")
                self.findings.append(Finding(path, told, error.cure, fatal=True))
                self.read[role, subgraph] = None
        return cast("T | None", self.read[role, subgraph])

    def text_of(self, role: str, subgraph: str, parse: Callable[[str], T]) -> T | None:
        return self.bytes_of(role, subgraph, lambda data: parse(data.decode(errors="replace")))


def inspect(
    sizes: Mapping[str, int], contents: Mapping[str, bytes], *, logs: Mapping[str, bytes] | None = None
) -> Inspection:
    """Read everything. `contents`: files that are read, of `net.bin` and traces only the head or nothing; `logs`:
    texts to be read as logs whatever their names."""
    reader = _Reader(contents)
    reports = tuple(log_report.report(name, data.decode(errors="replace")) for name, data in (logs or {}).items())
    names = file_names.subgraphs(path.rsplit("/", 1)[-1] for path in sizes)
    # A log does not say which sub-graph its table of layer times is of.
    timed = next((log.cycles for log in reports if log.cycles), ()) if len(names) == 1 else ()
    networks = tuple(_network(reader, name, timed) for name in names)
    printed = trace_report.printed_types(logs or {}) if len(names) <= 1 else {}
    traces = trace_report.judge(sizes, networks, printed)
    allowed = reader.text_of("allowed_nodes", "", artifacts.parse_allowed_nodes)
    metadata = reader.text_of("metadata", "", artifacts.parse_metadata)
    compiled = reader.text_of("compile_log", "", compile_log.parse)
    parameters = reader.text_of("yaml", "", param_yaml.parse)
    if allowed is not None and not any(allowed):
        path = reader.roles["allowed_nodes", ""]
        problem = "the file allows no node, so the CPU would run the whole model"
        reader.findings.append(Finding(path, problem, "read the compile's log for unsupported layers", fatal=True))
    reader.findings += _absent(networks, sizes)
    if compiled is not None and compiled.invalid_names:
        first = ", ".join(compiled.invalid_names[:3]) + (", …" if len(compiled.invalid_names) > 3 else "")
        problem = f"{len(compiled.invalid_names)} names of the 16-bit or deny lists were not found: {first}"
        cure = "correct the names: the option was silently not applied to them"
        reader.findings.append(Finding(reader.roles["compile_log", ""], problem, cure, fatal=False))
    return Inspection(
        what=_what(reader, traces, reports, parameters is not None),
        networks=networks,
        offloaded_nodes=None if allowed is None else sum(len(group) for group in allowed),
        graph_nodes=None if metadata is None else metadata.graph_nodes,
        compile=compiled,
        simulation=reader.text_of("perfsim", "", csv_tables.parse_perfsim),
        parameters=parameters,
        traces=traces,
        missing=trace_report.missing_traces(traces, networks),
        logs=reports,
        findings=tuple(reader.findings),
    )


def _absent(networks: tuple[Network, ...], sizes: Mapping[str, int]) -> list[Finding]:
    """A descriptor without its network, or a network without its descriptor: half a sub-graph."""
    cure = "copy the whole artifacts folder of the compile; a board can't open half a sub-graph"
    present = {(named.role, named.subgraph) for path in sizes if (named := file_names.identify(path.split("/")[-1]))}
    found: list[Finding] = []
    for network in networks:
        halves = {"net": artifacts.NET_SUFFIX, "io": artifacts.IO_SUFFIX}
        lacking = [suffix for role, suffix in halves.items() if (role, network.name) not in present]
        if len(lacking) == 1:
            found.append(Finding(network.name + lacking[0], "the file is not here", cure, fatal=False))
    return found


def _what(reader: _Reader, traces: tuple[TraceFile, ...], logs: tuple[LogReport, ...], yaml: bool) -> tuple[str, ...]:
    roles = {role for role, _ in reader.roles}
    told = {
        "artifacts": bool(roles & {"net", "io", "allowed_nodes", "metadata"}),
        "tempDir": bool(roles & {"layer_info", "netlog", "picture", "param_debug", "proto", "perfsim"}),
        "traces": bool(traces),
        "log": bool(logs) or "compile_log" in roles,
        "parameters": yaml,
    }
    return tuple(word for word, present in told.items() if present)


def _network(reader: _Reader, name: str, timed: tuple[csv_tables.LayerCycles, ...]) -> Network:
    header = reader.bytes_of("net", name, net_header.parse)
    descriptor = reader.bytes_of("io", name, io_descriptor.parse)
    graph = reader.text_of("netlog", name, netlog.parse)
    rows = reader.text_of("layer_info", name, layer_info.parse) or ()
    picture = _picture(reader, name)
    proto = reader.text_of("proto", "", _proto) or ()
    io = tensor_table.from_io_descriptor(descriptor) if descriptor else ()
    table = tensor_table.merge(svg=picture, proto=proto, io=io, layers=rows)
    path = reader.roles.get(("picture", name), "")
    for told in tensor_table.disagreements(picture, proto):
        problem = f"tensor {told.name} ({told.data_id}) has scale {told.first:g} here and {told.second:g} in the proto"
        reader.findings.append(Finding(path, problem, "take both files from one compile", fatal=True))
    return Network(
        name=name,
        era=file_names.era(name),
        version=f"0x{header.version:08X}" if header and header.version is not None else None,
        release=header.release if header else None,
        container=bool(header and header.container),
        descriptor=descriptor,
        descriptor_release=descriptor.release if descriptor else None,
        picture=path.rsplit(".", 1)[-1] if path else "",
        giga_macs=graph.giga_macs if graph else None,
        layers=_layers(reader, name, graph, table, timed) if graph or rows or picture else (),
    )


def _picture(reader: _Reader, name: str) -> tuple[TensorInfo, ...]:
    """The tensors of the svg. The html of releases from 11.1 on is read as far as it carries the same lines."""
    before = len(reader.findings)
    picture = reader.text_of("picture", name, tensor_table.from_svg) or ()
    path = reader.roles.get(("picture", name), "")
    if path.endswith(".html") and len(reader.findings) > before:
        del reader.findings[before:]
        problem = "this html does not carry the svg's lines, so no scale is taken from it"
        cure = "give the quantisation proto of the compile beside it: it holds the same scales"
        reader.findings.append(Finding(path, problem, cure, fatal=False))
    return picture


def _proto(text: str) -> tuple[TensorInfo, ...]:
    quant_proto.parse(text)
    return tensor_table.from_quant_proto(text)


def _layers(
    reader: _Reader,
    name: str,
    graph: netlog.NetLog | None,
    table: tuple[TensorInfo, ...],
    timed: tuple[csv_tables.LayerCycles, ...],
) -> tuple[Layer, ...]:
    errors = reader.text_of("param_debug", name, csv_tables.parse_param_debug) or ()
    simulated = reader.text_of("perfsim", "", csv_tables.parse_perfsim)
    measured = reader.text_of("perf", name, csv_tables.parse_perf)
    weights = {row.layer: row for row in errors if row.role in ("weights", "")}
    times = {layer.layer: layer.microseconds for layer in simulated.layers} if simulated else {}
    cycles = {layer.layer: layer.cycles for layer in (measured.layers if measured else timed)}
    by_id = {info.data_id: info for info in table if info.data_id is not None}
    if graph is None:
        known = sorted(by_id.items())
        return tuple(
            _layer(data_id, info.layer_kind or "", info.name or "", data_id, (), info, weights, times, cycles)
            for data_id, info in known
        )
    return tuple(
        _layer(
            row.number,
            row.kind,
            row.name,
            row.output,
            row.inputs,
            by_id.get(row.output) if row.output is not None else None,
            weights,
            times,
            cycles,
            row.output_dims if row.output is not None else row.input_dims,
        )
        for row in graph.layers
    )


def _layer(
    number: int,
    kind: str,
    name: str,
    data_id: int | None,
    inputs: tuple[int, ...],
    info: TensorInfo | None,
    weights: Mapping[int, ParamError],
    times: Mapping[int, float],
    cycles: Mapping[int, int],
    dims: tuple[int, ...] | None = None,
) -> Layer:
    weight = weights.get(number)
    return Layer(
        number=number,
        kind=kind,
        name=name,
        data_id=data_id,
        inputs=inputs,
        dims=info.dims if info is not None and info.dims is not None else dims,
        dtype=info.dtype if info else None,
        scale=info.scale if info else None,
        zero_point=info.zero_point if info else None,
        minimum=info.minimum if info else None,
        maximum=info.maximum if info else None,
        source=info.source if info else "",
        weight_steps=weight.steps if weight else None,
        weight_relative=weight.mean_relative if weight else None,
        microseconds=times.get(number),
        cycles=cycles.get(number),
    )


def network_differences(first: Mapping[str, bytes], second: Mapping[str, bytes]) -> dict[str, tuple[str, ...]]:
    """For each sub-graph of either compile: where its network differs, by netLog, which every release writes alike.

    Raises FormatError where one of the two has no netLog that can be read.
    """
    sides = [_Reader(contents) for contents in (first, second)]
    names = sorted({subgraph for side in sides for role, subgraph in side.roles if role == "netlog"})
    if not names:
        raise FormatError("neither compile has a netLog", "give the folders with the compiles' tempDir")
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        one, other = (side.text_of("netlog", name, netlog.parse) for side in sides)
        for side in sides:
            if side.findings:
                raise FormatError(side.findings[0].problem, side.findings[0].cure).in_file(side.findings[0].file)
        if one is None or other is None:
            found[name] = (f"only the {'second' if one is None else 'first'} compile has this sub-graph",)
        else:
            found[name] = netlog.differences(one, other)
    return found
