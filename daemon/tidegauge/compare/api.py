"""The comparison as a library: `report = compare(bundle); report.culprits[0].layer`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidegauge.compare import run
from tidegauge.compare.baseline import Baseline
from tidegauge.compare.frames import merge_frames
from tidegauge.compare.load import Source, frame_folders, open_frames
from tidegauge.compare.reference import GROUP_BYTES
from tidegauge.compare.run import Progress
from tidegauge.compare.types import Comparison


def compare(
    source: Source | str | Path | Sequence[str | Path],
    *,
    model: str | Path | None = None,
    tempdir: str | Path | None = None,
    inputs: Sequence[str] = (),
    min_coverage: float = 0.8,
    progress: Progress | None = None,
    group_bytes: int = GROUP_BYTES,
    baseline: Baseline | None = None,
    target_db: float | None = None,
    threshold: float | None = None,
    previous: Source | None = None,
    past_input: bool = False,
    reference: str | Path | None = None,
) -> Comparison:
    """Compare a device run with its float model, layer by layer, and name the layers that are wrong by themselves.

    `source`: a bundle (a folder or a `.tidebundle`), a folder of traces, a folder of such folders or several of them
    (frames, merged), or an opened `Source`. `model`, `tempdir`, `inputs` (paths, or `NAME=PATH`) complete or replace
    what it holds; an `input.npy` beside traces is taken by itself. `min_coverage`: the share of layers below which
    there is no verdict. `group_bytes`: bound of the float values held at a time. `baseline`: limits from healthy runs.
    `target_db`: the SQNR that every output shall reach. `threshold`: the excess over the healthy noise above which a
    layer is wrong. `previous`: of an opened `Source`, the frame before, to recognise what is left over from it; several
    frames follow each other. `past_input`: judge the layers also where the pre-processing has fed the device another
    input, which ends the analysis otherwise. `reference`: a folder with float tensors of another run, one `.npy` a
    tensor, which the device is compared with in place of those computed here; of frames, a folder of such folders.
    Raises `TidegaugeError` for unusable input.
    """

    def one(opened: Source, previous: Source | None = None) -> Comparison:
        return run.compare(
            opened,
            min_coverage=min_coverage,
            progress=progress,
            group_bytes=group_bytes,
            baseline=baseline,
            target_db=target_db,
            threshold=threshold,
            previous=previous,
            past_input=past_input,
        )

    if isinstance(source, Source):
        return one(source, previous)
    given = [source] if isinstance(source, str | Path) else list(source)
    paths = [path for item in given for path in frame_folders(Path(item))]
    frames = open_frames(
        paths,
        model=Path(model) if model is not None else None,
        tempdir=Path(tempdir) if tempdir is not None else None,
        inputs=inputs,
        reference=Path(reference) if reference is not None else None,
    )
    return merge_frames([one(opened, previous) for opened, previous in frames])
