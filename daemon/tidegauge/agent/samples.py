"""One shadow sample as acceptance and detectors see it, and the journal that keeps acceptance's over a restart.

`acceptance.jsonl` in the state folder: a first line that says what the samples belong to, then one line for each. The
head is put in place by a rename, each line is durable before the next; a last line that a power cut has torn is left
out, and said so.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from tidegauge.agent.disk import Disk
from tidegauge.agent.events import Evidence, Scene
from tidegauge.detectors.camera import FrameLook
from tidegauge.files import write_durably
from tidegauge.profile import Profile

log = logging.getLogger(__name__)

VERSION = 1
#: Names in a reference's summary: how many objects it found, and how sure it is of the best.
COUNTS, CONFIDENCES = ("objects", "poses"), ("best", "confidence", "probability", "score")


class Sample(msgspec.Struct, frozen=True):
    """`loss` in [0, 1]. `nmse` of the watched output, None where undefined. `context`: of its frame.

    `settled`: the light was not changing. `features`: statistics of the input, and what the reference found in it
    (`count`, `confidence`), as far as its output tells. `look`: of the camera's frame. `ranges`:
    least and most of the reference's inputs, inner tensors and outputs, where they are beyond those of the samples
    before. `cpu_seconds`: what measuring it cost, inner tensors apart.
    `errors`: NMSE and largest difference in steps of each output, None where undefined.
    """

    loss: float
    nmse: float | None
    symptoms: tuple[str, ...]
    context: str
    settled: bool
    features: dict[str, float]
    look: FrameLook | None = None
    ranges: dict[str, tuple[float, float]] = {}
    cpu_seconds: float = 0.0
    errors: dict[str, tuple[float | None, float | None]] = {}


def sample_of(evidence: Evidence, scene: Scene, profile: Profile) -> Sample:
    measured = evidence.measured
    errors = next((each for each in measured.errors if each.output == profile.output.name), None)
    features = dict(measured.features)
    for name, keys in (("count", COUNTS), ("confidence", CONFIDENCES)):
        told = next((measured.summary[key] for key in keys if key in measured.summary), None)
        if told is not None:
            features[name] = told
    nmse = errors.nmse if errors is not None else None
    return Sample(
        measured.loss,
        nmse,
        measured.symptoms,
        scene.context,
        not scene.changing,
        features,
        scene.look,
        measured.ranges,
        measured.cpu_seconds - measured.inner_seconds,
        {each.output: (each.nmse, each.max_steps) for each in measured.errors},
    )


class Belongs(msgspec.Struct, frozen=True):
    """What samples and references belong to: hashes of artifacts and model, and the runtimes that computed."""

    artifacts: str
    model: str
    runtime: dict[str, str]


class _Head(msgspec.Struct, frozen=True):
    version: int
    belongs: Belongs


class Journal:
    """One file. `start` begins it anew, `add` appends, `load` gives what it holds for the same artifacts.

    What the disk refuses is missing after a restart, and nothing else: acceptance goes on.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.path = folder / "acceptance.jsonl"
        self._disk = disk
        self._head = b""

    def start(self, belongs: Belongs) -> None:
        self._head = msgspec.json.encode(_Head(VERSION, belongs)) + b"\n"
        self._disk.attempt("the acceptance's samples", lambda: write_durably(self.path, self._head))

    def add(self, sample: Sample) -> None:
        self._disk.attempt("a sample of the acceptance", lambda: self._append(sample))

    def _append(self, sample: Sample) -> None:
        if self._head and not self.path.exists():  # it could not be begun
            write_durably(self.path, self._head)
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, msgspec.json.encode(sample) + b"\n")
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def load(self, belongs: Belongs) -> list[Sample]:
        """The samples, and the file cut to them. Empty for no file, or one that belongs to something else."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        head, *lines = data.split(b"\n")
        try:
            found = msgspec.json.decode(head, type=_Head)
        except msgspec.DecodeError as error:
            log.error("%s can't be read (%s): acceptance starts again", self.path, error)
            return []
        if found != _Head(VERSION, belongs):
            log.warning("%s belongs to other artifacts, model or runtimes: acceptance starts again", self.path)
            return []
        samples: list[Sample] = []
        for line in lines[:-1]:  # what follows the last line's end is torn, or nothing
            try:
                samples.append(msgspec.json.decode(line, type=Sample))
            except msgspec.DecodeError as error:
                log.error("%s is damaged after %d samples (%s): the rest is left out", self.path, len(samples), error)
                break
        whole = b"\n".join([head, *lines[: len(samples)]]) + b"\n"
        if whole != data:
            log.warning("%s: cut after its %d whole samples", self.path, len(samples))
            self._disk.attempt("the acceptance's whole samples", lambda: write_durably(self.path, whole))
        return samples

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
