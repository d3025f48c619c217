"""Nothing that shows what a camera saw is written to a disk before it has been hidden as `[privacy]` asks.

A live pair of input and answers is in memory alone. Before it becomes a golden tensor or a capture, its picture is
hidden in the input tensor, and both sides run on what remains: the new pair is exact, and shows no more. What must be
written before it can be hidden or encrypted, such as a traced run's files, lies in a folder in RAM.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from tidegauge import board
from tidegauge.agent.config import AgentConfig
from tidegauge.agent.events import Evidence
from tidegauge.agent.pipeline import PipelineService, PipelineUnavailable
from tidegauge.agent.preconditions import Refused
from tidegauge.agent.shadow import ShadowService
from tidegauge.agent.state import StateStore
from tidegauge.bundles.manifest import Privacy
from tidegauge.bundles.redaction import Hiding, hidden
from tidegauge.metrics import Refusal
from tidegauge.profile import Profile
from tidegauge.ram_folder import RamFolder

#: One run on both sides, queueing included.
SECONDS = 60.0


def golden_path(state: Path, sha256: str, side: str = "") -> Path:
    """Of a golden tensor's inputs, or of the accepted outputs of a `side`."""
    return state / "golden" / f"{sha256}{side and '.'}{side}.bin"


class PrivatePairs:
    """Pairs of which nothing is seen that the board keeps to itself.

    `at_rest`: what is done to pictures that lie on the board for long, in a form that it must read itself: nothing that
    only the recipient can read would serve as a golden tensor, so where bundles are encrypted, these are blurred.
    """

    def __init__(
        self, config: AgentConfig, profile: Profile, store: StateStore, pipeline: PipelineService, shadow: ShadowService
    ) -> None:
        privacy = config.privacy
        self._preprocess, self._store, self._pipeline, self._shadow = profile.preprocess, store, pipeline, shadow
        self._live = privacy.hiding
        self.at_rest = privacy.at_rest
        self.told = Privacy(config.capture.privacy, privacy.hiding, privacy.encrypt_to)
        self.ram = RamFolder(store.folder)
        #: Whether a capture's own files stay in memory.
        self.in_ram = bool(privacy.encrypt_to) or config.capture.privacy == "statistics"

    def check(self, trace_folder: Path) -> str:
        """Why no capture may be taken, in words; empty for nothing. Traces are written in clear by TIDL itself."""
        if not self.told.recipient or board.in_memory(trace_folder):
            return ""
        return (
            f"the trace folder {trace_folder} (key `capture.trace_folder`) is on a disk, where traces would lie in "
            "clear, and key `privacy.encrypt_to` forbids that: give a folder in memory (tmpfs)"
        )

    async def for_capture(self, evidence: Evidence) -> Evidence:
        """The pair that a capture may record, whoever asks for it: with the policy "golden" never a live one.

        Raises PipelineUnavailable, ShadowUnavailable, TimeoutError, and Refused where there is no golden tensor.
        """
        if self.told.policy != "golden" or evidence.hidden:
            return await self._hidden(evidence, self._live)
        golden = next(iter(self._store.state.golden), None)
        if golden is None:
            raise Refused(
                Refusal.NO_EVIDENCE,
                'no live frame may be traced (key `capture.privacy` is "golden"), and there is no golden tensor yet',
            )
        path = golden_path(self._store.folder, golden.sha256)
        return msgspec.structs.replace(await self._shadow.golden(path, golden.index, SECONDS), hidden=True)

    async def for_rest(self, evidence: Evidence) -> Evidence:
        """The pair that may become a golden one. Raises PipelineUnavailable, ShadowUnavailable, TimeoutError."""
        return await self._hidden(evidence, self.at_rest)

    async def _hidden(self, evidence: Evidence, hiding: Hiding) -> Evidence:
        if not hiding or evidence.hidden:
            return evidence
        ready = self._pipeline.ready
        if ready is None:
            raise PipelineUnavailable("the pipeline is down")
        (spec,), (data,) = ready.inputs, evidence.inputs  # the worker refuses a model with more than one
        tensor = np.frombuffer(data, spec.dtype).reshape(spec.shape)
        path = self.ram.ready() / f"hidden-{evidence.digest[:16]}.bin"
        try:
            path.write_bytes(hidden(tensor, self._preprocess, hiding).tobytes())
            made = await self._shadow.golden(path, -1, SECONDS)
        finally:
            path.unlink(missing_ok=True)
        return msgspec.structs.replace(made, hidden=True)
