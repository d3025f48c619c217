"""The check `shared-heap`: room for a traced session.

Source: app_mem_map.h of AM62A and tidl_rt_ovx.c, SDK 11.1. On a board vx_app_heap_stats.out tells; it is itself a
TIDL client, so that it is run only while there is no other and the C7x answers.
"""

from __future__ import annotations

from pathlib import Path

from tidegauge.board import tidl_holders
from tidegauge.errors import TidegaugeError
from tidegauge.preflight import virtual
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, not_applicable, ok
from tidegauge.preflight.probes import carveouts, clients, remoteproc
from tidegauge.preflight.state import running_agent
from tidegauge.runtimes import shared_heap
from tidegauge.runtimes.errors import RuntimeFault
from tidegauge.tidl.heap_stats import SHARED, TRACE_OBJECT_BYTES, Heap

MIB = 1 << 20
PROGRAMS = ("/opt/vision_apps/vx_app_heap_stats.out", "/opt/vx_app_heap_stats.out")


def run(context: Context) -> Finding:
    try:
        heaps = _virtual(context) if context.virtual else _board(context)
    except TidegaugeError as error:
        return not_applicable(error.problem)
    try:
        need = shared_heap.session_bytes(Path(context.required.profile.artifacts))
    except RuntimeFault as error:
        return not_applicable(f"{error.problem}: cure the check `artifacts` first")
    return judge(heaps, need, context.required.capture)


def judge(heaps: tuple[Heap, ...], need: int, capture: bool) -> Finding:
    """`need`: bytes of the shared heap that the model's session takes; a traced one takes more."""
    try:
        shared = shared_heap.shared(heaps)
    except TidegaugeError as error:
        return not_applicable(error.problem)
    wanted = need + (TRACE_OBJECT_BYTES if capture else 0)
    what = "a traced session" if capture else "a session"
    others = "".join(f"; {h.cpu} {h.name} {_mib(h.free)} of {_mib(h.size)}" for h in heaps if h is not shared)
    told = f"{_mib(shared.free)} of {_mib(shared.size)} free, {what} takes {_mib(wanted)}{others}"
    if shared.free < wanted:
        cure = (
            "end other users of the shared heap (camera pipelines); what killed ones held comes back at a reboot only"
        )
        return failed(told, cure)
    return ok(told)


def _virtual(context: Context) -> tuple[Heap, ...]:
    """Raises TidegaugeError. What a running agent holds is free again by the time of a capture."""
    proc, agent = context.path("/proc"), running_agent(context)
    used = virtual.shared_used(context, lambda pid: bool(agent) and agent in clients.ancestry(proc, pid))
    return (Heap("MPU1_0", SHARED, virtual.SHARED_HEAP_BYTES, virtual.SHARED_HEAP_BYTES - used),)


def _board(context: Context) -> tuple[Heap, ...]:
    """Raises TidegaugeError where it can't be looked at now."""
    for probe in (carveouts.PROBE, remoteproc.PROBE):
        if probe.run(context).status != "ok":
            raise TidegaugeError(f"cure the check `{probe.id}` first", "")
    holders = tidl_holders(set(), context.path("/proc"))
    if holders:
        named = ", ".join(f"pid {pid} ({unit})" for pid, unit in holders)
        raise TidegaugeError(f"the tool for it is a TIDL client itself, and others hold a session: {named}", "")
    program = next((path for path in map(context.path, PROGRAMS) if path.is_file()), None)
    if program is None:
        raise TidegaugeError(f"this image has no {PROGRAMS[0]}", "")
    return shared_heap.ask([str(program)])


def _mib(count: int) -> str:
    return f"{count / MIB:.1f} MiB"


PROBE = Probe(
    id="shared-heap",
    title="free shared heap: room for a traced session",
    why="a create fails (`Shared mem ptr allocation failed`), and each failed create leaks memory of the C7x",
    place="anywhere",
    run=run,
    deadline=lambda _context: shared_heap.TOOL_SECONDS + 10.0,
)
