"""The first words of `*_tidl_net.bin`: who may run it.

Source: vx_tidl_target.c (the C7x compares the first u32 with its own constant, strictly), SDK 11.1; device id 4 is
AM62A. The rest of the file changes its layout with every release and is not read.
"""

from __future__ import annotations

import struct

import msgspec

from tidegauge.tidl.errors import FormatError

#: First word of a file that holds several sub-graphs (`advanced_options:enable_rt_multi_subgraph_support`).
CONTAINER_MAGIC = 0xFF00FF00
#: Network versions by the SDK line that writes them.
KNOWN_VERSIONS = {
    0x20230208: "8.6",
    0x20240401: "9.2",
    0x20240719: "10.0",
    0x20241120: "10.1",
    0x20250429: "11.0",
    0x20250630: "11.0 (tools 11_00_08)",
    0x20250821: "11.1",
}
AM62A = 4
_WORDS = struct.Struct("<II")


class NetHeader(msgspec.Struct, frozen=True):
    """`version`: date-coded (0x20250821), None in a container. `release`: SDK line, None where it isn't known."""

    version: int | None
    device: int | None
    release: str | None
    container: bool = False


def parse(data: bytes) -> NetHeader:
    """`data`: at least the first eight bytes. Raises FormatError."""
    if len(data) < _WORDS.size:
        raise FormatError(f"tidl_net.bin: {len(data)} bytes are no network", offset=0)
    version, device = _WORDS.unpack_from(data)
    if version == CONTAINER_MAGIC:
        return NetHeader(None, None, None, container=True)
    return NetHeader(version, device, KNOWN_VERSIONS.get(version))


def pack(version: int, device: int = AM62A) -> bytes:
    """The eight bytes a network begins with."""
    return _WORDS.pack(version, device)
