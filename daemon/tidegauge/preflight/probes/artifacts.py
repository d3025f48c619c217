"""The check `artifacts`."""

from __future__ import annotations

from pathlib import Path

from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, ok, warning
from tidegauge.runtimes import artifact_folder
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.tidl import io_descriptor, net_header
from tidegauge.tidl.artifacts import IO_SUFFIX, NET_SUFFIX, Problem


def run(context: Context) -> Finding:
    profile = context.required.profile
    folder = Path(profile.artifacts)
    try:
        found = artifact_folder.read(folder)
        problems = artifact_folder.problems(profile.runtime, folder)
    except RuntimeFault as error:
        return failed(error.problem, error.cure)
    return judge(folder, found, problems)


def judge(folder: Path, found: artifact_folder.Folder, problems: tuple[Problem, ...]) -> Finding:
    told = "; ".join(f"{problem.file}: {problem.problem}" for problem in problems)
    fatal = [problem for problem in problems if problem.fatal]
    if fatal:
        return failed(f"{folder}: {told}", fatal[0].cure)
    if problems:
        return warning(f"{folder}: {told}", problems[0].cure)
    networks = [
        f"{name} (version 0x{header.version:08X}, release {header.release})"
        if header.version
        else f"{name} (container)"
        for name, header in ((name, net_header.parse(found.contents[name])) for name in _ending(found, NET_SUFFIX))
    ]
    sizes = {io_descriptor.KNOWN_SIZES[found.sizes[name]] for name in _ending(found, IO_SUFFIX)}
    return ok(f"{', '.join(networks)}; descriptor of release {' and '.join(sorted(sizes))}")


def _ending(found: artifact_folder.Folder, suffix: str) -> list[str]:
    return sorted(name for name in found.sizes if name.endswith(suffix))


PROBE = Probe(
    id="artifacts",
    title="artifacts folder: files, size of `*_tidl_io_1.bin`, network version",
    why="TI's ONNX provider runs on the CPU in silence, its TFLite delegate ends the process, and a descriptor of "
    "another release fails the create, each time leaking memory of the C7x",
    place="anywhere",
    run=run,
)
