"""The artifacts folder of a compile: what must be in it, and what its small text files say.

Source: onnxrt_ep.cpp and tfl_delegate.cpp, SDK 11.1 (`allowedNode.txt`: number of groups, then for each its size and
node indices; missing, the CPU runs everything); real AM62A artifacts of tools 10_00_08_00.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from tidegauge.tidl import io_descriptor, net_header
from tidegauge.tidl.errors import FormatError

ALLOWED_NODES = "allowedNode.txt"
METADATA = "onnxrtMetaData.txt"
NET_SUFFIX, IO_SUFFIX = "_tidl_net.bin", "_tidl_io_1.bin"
#: How many bytes of a network `check` looks at.
NET_HEAD_BYTES = 8
#: No true text file of the folder is larger.
LARGEST_TEXT = 4 << 20

_COMPILE_AGAIN = "compile again with the tools release that the board's SDK asks for"
_COPY = "copy the whole artifacts folder of the compile to the board again"
_LIST_KEYS = {"inDataNames", "outDataNames"}
_INDEXED = re.compile(r"(\d{1,4}):(\w{1,64})", re.ASCII)
_MOST_NODES = 1_000_000


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with one file. `fatal`: opening a session would fail, leak or run on the CPU."""

    file: str
    problem: str
    cure: str
    fatal: bool = True


class SubgraphMeta(msgspec.Struct, frozen=True):
    """One sub-graph in onnxrtMetaData.txt: its name begins the names of its files."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class MetaData(msgspec.Struct, frozen=True):
    """onnxrtMetaData.txt. `graph_nodes`: nodes of the optimised ONNX graph."""

    graph_nodes: int
    subgraphs: tuple[SubgraphMeta, ...]


def parse_allowed_nodes(text: str) -> tuple[tuple[int, ...], ...]:
    """The node indices of each group that runs on the accelerator. Raises FormatError."""
    words = text.split()
    if len(words) > _MOST_NODES or not all(word.isdecimal() and word.isascii() and len(word) < 10 for word in words):
        raise FormatError(f"{ALLOWED_NODES}: something is not a node index")
    numbers = [int(word) for word in words]
    if not numbers:
        raise FormatError(f"{ALLOWED_NODES}: the file is empty")
    groups: list[tuple[int, ...]] = []
    at = 1
    for _ in range(min(numbers[0], len(numbers))):
        size = numbers[at] if at < len(numbers) else len(numbers)
        group = tuple(numbers[at + 1 : at + 1 + size])
        if len(group) < size:
            raise FormatError(f"{ALLOWED_NODES}: the file ends inside group {len(groups)}")
        groups.append(group)
        at += 1 + size
    if len(groups) != numbers[0] or at != len(numbers):
        raise FormatError(f"{ALLOWED_NODES}: {numbers[0]} groups are promised, the numbers are not that many")
    return tuple(groups)


def parse_metadata(text: str) -> MetaData:
    """Raises FormatError."""
    nodes: int | None = None
    fields: dict[int, dict[str, str]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        key, separator, value = line.strip().partition("=")
        indexed = _INDEXED.fullmatch(key)
        if not key:
            continue
        if not separator:
            raise FormatError(f"{METADATA}: {line[:60]!r} is not key=value", line=number)
        if key == "numGraphNodes":
            nodes = _count(value, number)
        elif indexed:
            fields.setdefault(int(indexed[1]), {})[indexed[2]] = value
    if nodes is None or not fields:
        raise FormatError(f"{METADATA}: numGraphNodes or a sub-graph is missing")
    return MetaData(nodes, tuple(_subgraph(index, fields[index]) for index in sorted(fields)))


def _subgraph(index: int, field: dict[str, str]) -> SubgraphMeta:
    name = field.get("subGraphName", "")
    if not name or "/" in name:
        raise FormatError(f"{METADATA}: sub-graph {index} has no name")
    lists = {key: tuple(item for item in field.get(key, "").split(",") if item) for key in _LIST_KEYS}
    for count, key in (("numInputs", "inDataNames"), ("numOutputs", "outDataNames")):
        if count in field and _count(field[count], None) != len(lists[key]):
            raise FormatError(f"{METADATA}: {count} of sub-graph {index} is not the number of {key}")
    return SubgraphMeta(name, lists["inDataNames"], lists["outDataNames"])


def _count(value: str, line: int | None) -> int:
    if not (value.isdecimal() and value.isascii() and len(value) < 10):
        raise FormatError(f"{METADATA}: {value[:20]!r} is not a count", line=line)
    return int(value)


def check(
    runtime: Literal["onnx", "tflite"], sizes: Mapping[str, int], contents: Mapping[str, bytes]
) -> tuple[Problem, ...]:
    """Everything wrong with an artifacts folder.

    `sizes`: bytes of every file in the folder by name. `contents`: allowedNode.txt and onnxrtMetaData.txt whole, and
    at least the first eight bytes of each network, where present.
    """
    problems: list[Problem] = []
    problems += _check_allowed_nodes(sizes, contents)
    names = sorted(name.removesuffix(NET_SUFFIX) for name in sizes if name.endswith(NET_SUFFIX))
    if runtime == "onnx":
        problems += _check_metadata(sizes, contents)
        names = sorted({*names, *_metadata_names(contents)})
    if not names:
        problems.append(Problem(f"*{NET_SUFFIX}", "there is no compiled network", _COPY))
    for name in names:
        problems += _check_network(name, sizes, contents)
    return tuple(problems)


def _check_allowed_nodes(sizes: Mapping[str, int], contents: Mapping[str, bytes]) -> list[Problem]:
    if ALLOWED_NODES not in sizes:
        return [Problem(ALLOWED_NODES, "the file is missing, so the CPU would run the whole model", _COPY)]
    try:
        groups = parse_allowed_nodes(_text(contents, ALLOWED_NODES))
    except FormatError as error:
        return [Problem(ALLOWED_NODES, error.problem, _COPY)]
    if not any(groups):
        problem = "the file allows no node, so the CPU would run the whole model"
        return [Problem(ALLOWED_NODES, problem, "read the compile's log for the layers it does not support")]
    return []


def _check_metadata(sizes: Mapping[str, int], contents: Mapping[str, bytes]) -> list[Problem]:
    if METADATA not in sizes:
        return [Problem(METADATA, "the file is missing", _COPY, fatal=False)]
    try:
        parse_metadata(_text(contents, METADATA))
    except FormatError as error:
        return [Problem(METADATA, error.problem, _COPY)]
    return []


def _metadata_names(contents: Mapping[str, bytes]) -> list[str]:
    try:
        return [item.name for item in parse_metadata(_text(contents, METADATA)).subgraphs]
    except FormatError:  # told by _check_metadata
        return []


def _text(contents: Mapping[str, bytes], name: str) -> str:
    data = contents.get(name, b"")
    if len(data) > LARGEST_TEXT:
        raise FormatError(f"{name}: {len(data)} bytes are too many")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{name}: the file is not text", offset=error.start) from None


def _check_network(name: str, sizes: Mapping[str, int], contents: Mapping[str, bytes]) -> list[Problem]:
    net, descriptor = name + NET_SUFFIX, name + IO_SUFFIX
    missing = [Problem(file, "the file is missing", _COPY) for file in (net, descriptor) if file not in sizes]
    if missing:
        return missing
    problems: list[Problem] = []
    size, release = sizes[descriptor], io_descriptor.KNOWN_SIZES.get(sizes[descriptor])
    if release is None:
        known = ", ".join(str(known) for known in io_descriptor.KNOWN_SIZES)
        problems.append(Problem(descriptor, f"{size} bytes are no release's descriptor ({known})", _COMPILE_AGAIN))
    try:
        header = net_header.parse(contents.get(net, b""))
    except FormatError as error:
        return [*problems, Problem(net, error.problem, _COPY)]
    if header.release is None and not header.container:
        problem = f"network version 0x{header.version or 0:08X} is of no release known here"
        problems.append(Problem(net, problem, _COMPILE_AGAIN, fatal=False))
    elif release is not None and header.release is not None and not _belong(size, header.release):
        problem = f"the network is of release {header.release}, {descriptor} of {release}"
        problems.append(Problem(net, problem, "copy both files from one compile"))
    return problems


def _belong(size: int, release: str) -> bool:
    major, minor = (int(part) for part in release.split(" ")[0].split("."))
    first, _, last = io_descriptor.KNOWN_SIZES[size].partition(" to ")
    lowest, highest = (tuple(int(part) for part in (word or first).split(".")) for word in (first, last))
    return lowest <= (major, minor) <= highest
