"""Model and artifacts that are replaced under a running agent: noticed, checked, then taken up or refused.

Files of another compile must not be opened beside a reference of the old one: the golden test would accuse the
accelerator. So nothing is done while files still change; what fails a check is refused and what runs goes on; what
passes is taken up in order: pipeline stopped, shadow worker replaced, baseline void, pipeline started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from tidegauge.agent.bundling import Identity, identify
from tidegauge.agent.bus import Bus
from tidegauge.agent.capture import CaptureService
from tidegauge.agent.config import Loaded
from tidegauge.agent.configuration_probe import settings_of
from tidegauge.agent.events import PipelineUp
from tidegauge.agent.file_watch import settled, signature, wait
from tidegauge.agent.pipeline import PipelineService
from tidegauge.agent.preconditions import Refused
from tidegauge.agent.shadow import ShadowService
from tidegauge.log_kinds import FILES_REFUSED, FILES_TAKEN
from tidegauge.metrics import AgentMetrics
from tidegauge.preflight.context import Context
from tidegauge.preflight.runner import run_one

log = logging.getLogger(__name__)

#: Checks that read files only: they open nothing on the accelerator.
CHECKS = tuple(f"tidegauge.preflight.probes.{name}" for name in ("artifacts", "network_version", "model", "compile"))
#: Seconds between two looks without a hint; that files must have stayed the same; that are waited for that at most.
PERIOD, QUIET, PATIENCE = 30.0, 2.0, 600.0


def failures(loaded: Loaded) -> list[str]:
    """What is wrong with the files as they lie there, one sentence each. Blocks: each check is a process."""
    context = Context(settings=settings_of(loaded))
    results = [run_one(module, context) for module in CHECKS]
    return [f"{each.found}: {each.cure}" if each.cure else each.found for each in results if each.status == "failed"]


class Replaced:
    """`run()` for ever. `problem`: why files that lie there now are not the ones that run; empty for nothing.

    `adopt` makes an identity the one that runs: it voids what belonged to the former.
    """

    def __init__(
        self,
        loaded: Loaded,
        hint: asyncio.Event,
        capture: CaptureService,
        pipeline: PipelineService,
        shadow: ShadowService,
        adopt: Callable[[Identity], None],
        bus: Bus,
        metrics: AgentMetrics,
    ) -> None:
        self._loaded, self._hint, self._adopt = loaded, hint, adopt
        self._capture, self._pipeline, self._shadow, self._metrics = capture, pipeline, shadow, metrics
        self._paths = (Path(loaded.profile.artifacts), Path(loaded.profile.model))
        self._seen = signature(self._paths)  # before they are hashed: what changes meanwhile is seen
        self.running = identify(loaded.config.device, loaded.profile, "")
        self.problem = ""
        self._refused: Identity | None = None
        self._opened = False
        bus.on(PipelineUp, lambda _: self._on_opened())

    def look(self) -> None:
        """Look again, also where nothing seems to have changed."""
        self._seen = {}
        self._hint.set()

    async def run(self) -> None:
        while True:
            await wait(self._hint, PERIOD)
            if self._opened:
                await self._opened_all_the_same()
            if signature(self._paths) != self._seen:
                self._metrics.artifacts_refused.set(1)
                self.problem = "model or artifacts are being replaced"
                self._seen = await settled(self._paths, QUIET, PATIENCE)
                await self._judge()

    async def _judge(self) -> None:
        """Files have changed and come to rest: nothing, refused, or taken up."""
        profile = self._loaded.profile
        try:
            found = await asyncio.to_thread(identify, self._loaded.config.device, profile, "")
        except OSError as error:
            self._refuse(f"{error.filename} can't be read ({error.strerror})", None)
            return
        if same(found, self.running):
            self._settle()
            return
        wrong = await asyncio.to_thread(failures, self._loaded)
        if wrong:
            self._refuse("; ".join(wrong), found)
        else:
            await self._take_up(found)

    def _refuse(self, why: str, found: Identity | None) -> None:
        self._refused = found
        self._metrics.artifacts_refused.set(1)
        self.problem = f"replaced model or artifacts are refused: {why}"
        said = FILES_REFUSED.of()
        log.error("%s; what was opened before goes on running, and nothing is captured", self.problem, extra=said)

    def _settle(self) -> None:
        self._refused, self._opened, self.problem = None, False, ""
        self._metrics.artifacts_refused.set(0)

    async def _take_up(self, found: Identity) -> None:
        log.warning(
            "model or artifacts were replaced and pass the checks: they are taken up now", extra=FILES_TAKEN.of()
        )
        async with self._capture.turn:
            try:
                await self._pipeline.pause()
            except Refused as refused:  # an application's session, which takes them up when it is started again
                self._refuse(str(refused), found)
                return
            self._become(found)
            self._pipeline.resume()
        self._pipeline.try_again()  # one that was given up: with these files it may open

    def _become(self, found: Identity) -> None:
        self._shadow.restart()
        self.running = found
        self._settle()
        self._adopt(found)

    def _on_opened(self) -> None:
        if self._refused is not None:
            self._opened = True
            self._hint.set()

    async def _opened_all_the_same(self) -> None:
        """A worker had to be replaced and has opened files that were refused: no reference of others may judge them."""
        refused, self._opened = self._refused, False
        if refused is not None:
            log.warning("the refused files run since a worker was replaced: what was accepted before is void")
            self._become(refused)


def same(one: Identity, other: Identity) -> bool:
    """Whether the files are the same."""
    return one.artifacts == other.artifacts and one.model == other.model
