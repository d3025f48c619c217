"""The check `network-version`.

Source: vx_tidl_target.c, SDK 11.1: the C7x compares the first word of the network with a constant of its firmware; the
constant is found in the firmware file as four little-endian bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from tidegauge.errors import TidegaugeError
from tidegauge.preflight import firmware, virtual
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, not_applicable, ok, warning
from tidegauge.runtimes import artifact_folder
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.tidl import net_header
from tidegauge.tidl.artifacts import NET_SUFFIX
from tidegauge.tidl.errors import FormatError

_CURE = (
    "compile again with the tools release of this firmware (`advanced_options:c7x_firmware_version`), or update the "
    "board's firmware and libraries to the compile's release"
)


def run(context: Context) -> Finding:
    try:
        versions = read_versions(Path(context.required.profile.artifacts))
    except (RuntimeFault, FormatError):
        versions = {}
    if not versions:
        return not_applicable("no network's version can be read: see `artifacts`")
    try:
        if context.virtual:
            return judge(versions, {virtual.read(context)[1].firmware_version}, "the virtual board's firmware")
        path = firmware.find(context)
        data = path.read_bytes()
    except (TidegaugeError, OSError) as error:
        where = "virtual-board" if context.virtual else "firmware"
        return not_applicable(f"the firmware can't be read ({error}): see `{where}`")
    wanted = {*net_header.KNOWN_VERSIONS, *versions.values()}
    return judge(versions, constants_in(data, wanted), str(path))


def read_versions(folder: Path) -> dict[str, int]:
    """Version by file; containers have none. Raises RuntimeFault, FormatError."""
    contents = artifact_folder.read(folder).contents
    headers = {name: net_header.parse(data) for name, data in contents.items() if name.endswith(NET_SUFFIX)}
    return {name: header.version for name, header in headers.items() if header.version is not None}


def constants_in(data: bytes, versions: set[int]) -> set[int]:
    return {version for version in versions if struct.pack("<I", version) in data}


def judge(versions: Mapping[str, int], expected: set[int], where: str) -> Finding:
    """`expected`: versions that the firmware is known to hold."""
    wrong = {name: version for name, version in versions.items() if version not in expected}
    if not wrong:
        return ok(f"{', '.join(f'0x{version:08X}' for version in sorted(set(versions.values())))}, as in {where}")
    told = ", ".join(f"{name} has version {_named(version)}" for name, version in sorted(wrong.items()))
    if not expected:
        return warning(f"{told}; {where} holds no version known here, so that nothing can be said", _CURE)
    return failed(f"{told}, but {where} takes {' or '.join(_named(version) for version in sorted(expected))}", _CURE)


def _named(version: int) -> str:
    release = net_header.KNOWN_VERSIONS.get(version)
    return f"0x{version:08X}" + (f" (release {release})" if release else "")


PROBE = Probe(
    id="network-version",
    title="version of the network against the constant in the C7x's firmware",
    why="the C7x refuses the network (`Network version - …, Expected version - …`) and each failed create leaks memory",
    place="anywhere",
    run=run,
)
