"""The device session in a worker: opened and closed around a block, its faults sorted by kind, its runs timed."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tidegauge.errors import TidegaugeError
from tidegauge.pipeline.process import FailureKind, WorkerFault
from tidegauge.profile import Profile
from tidegauge.runtimes.factory import open_device
from tidegauge.runtimes.session import Array, Offload, Session
from tidegauge.tidl.offload import NotOffloaded


@contextmanager
def device_session(profile: Profile, module: str, debug_level: int) -> Iterator[Session]:
    """The device session, closed on every way out: a TIDL session that is not closed leaks until reboot."""
    try:
        session = open_device(profile, module, debug_level)
    except TidegaugeError as error:
        raise _fault(error, FailureKind.OPEN_FAILED) from None
    try:
        yield session
    finally:
        session.close()


def timed_run(session: Session, tensors: Mapping[str, Array]) -> tuple[float, list[Array]]:
    """Run once; returns the seconds inside the runtime, and the outputs in the session's order.

    Raises WorkerFault of kind "device_error" when the runtime fails or answers with other tensors than it announced.
    """
    started = time.perf_counter()
    try:
        answer = session.run(tensors)
    except TidegaugeError as error:
        raise _fault(error, FailureKind.DEVICE_ERROR) from None
    seconds = time.perf_counter() - started
    return seconds, [answer[spec.name] for spec in session.outputs]


def proven_offload(session: Session) -> Offload:
    """The proof that the accelerator computed the last run. Raises WorkerFault of kind "not_offloaded"."""
    try:
        offload = session.offload()
    except TidegaugeError as error:
        raise _fault(error, FailureKind.NOT_OFFLOADED) from None
    if offload is None:
        raise WorkerFault(
            FailureKind.NOT_OFFLOADED,
            f"the runtime {session.kind} gives no proof that the accelerator computed the answer",
            "use a TIDL runtime for the device",
        )
    return offload


def _fault(error: TidegaugeError, kind: FailureKind) -> WorkerFault:
    """The error by its kind. Its traceback goes to the log and lets go of what its frames hold: a runtime's session
    that is still referenced there would outlive `close`."""
    traceback.print_exception(error, file=sys.stderr)
    failed: BaseException | None = error
    while failed is not None:
        traceback.clear_frames(failed.__traceback__)
        failed = failed.__cause__ or failed.__context__
    if isinstance(error, NotOffloaded):
        kind = FailureKind.NOT_OFFLOADED
    return WorkerFault(kind, error.problem, error.cure)
