"""The evaluation's small board as tests use it: built at once, also on the faulty fake accelerator."""

from __future__ import annotations

import os
from pathlib import Path

import onnx

from tidegauge.agent.control import ask
from tidegauge.agent.control_messages import GetStatus
from tidegauge.agent.status import StatusReport
from tidegauge.evaluation import small_board
from tidegauge.evaluation.small_board import (
    ALARM,
    DOWN,
    HEIGHT,
    INFERENCES,
    MODEL,
    SUSPECT,
    VIRTUAL_MODULE,
    WIDTH,
    healthz,
    metrics,
    restarts,
    tiny_network,
    wait_for,
)
from tidegauge.virtualboard.options import CompileOptions

__all__ = [
    "ALARM",
    "DOWN",
    "HEIGHT",
    "HERE",
    "INFERENCES",
    "MODEL",
    "SUSPECT",
    "WIDTH",
    "SmallBoard",
    "frames_go_on",
    "healthz",
    "metrics",
    "restarts",
    "tiny_network",
    "wait_for",
]

HERE = Path(__file__).parent


class SmallBoard(small_board.SmallBoard):
    """`virtual`: on the virtual board, which can be traced; else on the faulty fake accelerator, told what to do by
    `tell`."""

    def __init__(
        self,
        folder: Path,
        *,
        virtual: bool,
        network: onnx.ModelProto | None = None,
        options: CompileOptions | None = None,
    ) -> None:
        """`network`: another one than the tiny one, with the same input and output."""
        super().__init__(folder)
        self.virtual, self.faults = virtual, folder / "faults"
        self.module = VIRTUAL_MODULE if virtual else "faulty_accelerator"
        self.faults.mkdir(parents=True)
        self.build(network, options)

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        return {**super().environment, "FAULTY_ACCELERATOR": str(self.faults), "PYTHONPATH": path}

    def status(self) -> StatusReport:
        report = ask(self.state, GetStatus()).status
        assert report is not None
        return report

    def tell(self, *faults: str) -> None:
        for fault in faults:
            (self.faults / fault).touch()

    def heal(self) -> None:
        for path in self.faults.iterdir():
            if path.name != "creates":
                path.unlink()


def frames_go_on(url: str, more: int = 3) -> None:
    before = metrics(url)[INFERENCES]
    wait_for(lambda: metrics(url)[INFERENCES] >= before + more, 30, "more device runs")
