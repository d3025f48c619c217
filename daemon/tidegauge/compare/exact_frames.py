"""Which host folder belongs to which frame, and the bit-exact answers of many frames as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tidegauge.compare.exact_types import ExactComparison
from tidegauge.errors import TidegaugeError


def pair_frames(frames: Sequence[Path], others: Sequence[Path]) -> list[Path]:
    """For each frame the folder of `others` of the same name, or of the same place where names tell nothing.

    Raises `TidegaugeError` where their numbers differ: one input has one run on either side.
    """
    if len(frames) != len(others):
        raise TidegaugeError(
            f"{others[0].parent if len(others) > 1 else others[0]} holds {len(others)} runs, the device {len(frames)}",
            "give a folder of traces for each frame, with the same names on both sides",
        )
    named = {path.name: path for path in others}
    if len(named) == len(others) and {path.name for path in frames} == set(named):
        return [named[path.name] for path in frames]
    return list(others)


def merge_exact(answers: Sequence[ExactComparison]) -> ExactComparison:
    """The worst frame's answer, with how many of all differ. Raises `TidegaugeError` for none."""
    if not answers:
        raise TidegaugeError("there are no frames to compare", "give folders of traces with --host and --device")
    if len(answers) == 1:
        return answers[0]
    worst = max(answers, key=lambda a: (a.exit_code == 1, a.counts.larger, a.counts.off_by_one, -a.counts.share))
    codes = {answer.exit_code for answer in answers}
    code: Literal[0, 1, 3] = 3 if 3 in codes else 1 if 1 in codes else 0
    differ = [answer for answer in answers if answer.exit_code == 1]
    thin = [answer for answer in answers if answer.exit_code == 3]
    if thin:
        worst = thin[0]
        text = (
            f"{len(thin)} of {len(answers)} frames have too few traces on both sides; {worst.device}: {worst.sentence}"
        )
    elif differ:
        text = f"{len(differ)} of {len(answers)} frames differ; the worst is {worst.device}: {worst.sentence}"
    else:
        text = f"None of {len(answers)} frames differs. {worst.sentence}"
    notes = tuple(dict.fromkeys(note for answer in answers for note in answer.notes))
    seconds = round(sum(answer.seconds for answer in answers), 3)
    return msgspec.structs.replace(worst, exit_code=code, sentence=text, notes=notes, seconds=seconds)
