"""Many frames of one compile: sums merged over all, the worst frame kept, and how often each layer is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from tidegauge.compare.load import Source
from tidegauge.compare.raw_types import Frame, FrameLayer, Frames, LayerSums
from tidegauge.compare.stored import merged, numbers
from tidegauge.compare.types import Advice, Comparison, Culprit, Finding, LayerResult, OutputResult
from tidegauge.errors import TidegaugeError

#: So many frames are needed before a fault of the first one alone is called that.
_TELLING = 3
#: What can't be used in any frame comes first.
_STATUS_ORDER = (
    "non_finite",
    "all_zero",
    "constant",
    "truncated",
    "shape_mismatch",
    "duplicate",
    "missing",
    "unmatched",
    "below_resolution",
    "ok",
)


def compare_frames(sources: Iterable[Source], one: Callable[[Source], Comparison]) -> Comparison:
    """Compare each source by itself with `one`, one at a time, and merge the answers. Raises `TidegaugeError`."""
    return merge_frames([one(source) for source in sources])


def merge_frames(answers: Sequence[Comparison]) -> Comparison:
    """One answer of several frames of the same model and compile, in the order in which they were taken.

    Sums are merged exactly, numbers derive from them; a layer is wrong where a frame says so. Raises `TidegaugeError`
    for none, and for frames of different models or compiles.
    """
    if not answers:
        raise TidegaugeError("there are no frames to compare", "give folders of traces with --device")
    if len(answers) == 1:
        return answers[0]
    _same_compile(answers)
    worst = max(range(len(answers)), key=lambda i: (_badness(answers[i]), -i))
    main = answers[worst]
    by_name = [{_key(layer): layer for layer in answer.layers} for answer in answers]
    told = {layer.name: _frames_of(_key(layer), by_name, answers) for layer in main.layers if layer.name}
    layers = tuple(_layer(layer, [names.get(_key(layer)) for names in by_name], answers) for layer in main.layers)
    named = tuple(_first(c, told.get(c.layer), len(answers)) for c in _culprits(answers, layers, recovered=False))
    taken = {culprit.index for culprit in named}
    harmless = tuple(c for c in _culprits(answers, layers, recovered=True) if c.index not in taken)
    thin = any(answer.exit_code == 3 for answer in answers)
    code: Literal[0, 1, 3] = 3 if thin else 1 if any(answer.exit_code == 1 for answer in answers) else 0
    frames = Frames(
        frames=tuple(_frame(answer) for answer in answers),
        worst=worst,
        sentence=_sentence(answers, told, worst),
        layers=told,
    )
    return msgspec.structs.replace(
        main,
        exit_code=code,
        sentence=_verdict(main, named, frames, thin, answers),
        layers=layers,
        culprits=named,
        recovered=harmless,
        coverage=min((answer.coverage for answer in answers), key=lambda coverage: coverage.share),
        outputs=_outputs(answers),
        findings=_findings(answers, frames),
        cure=main.cure if _cured(main, named) else None,
        seconds=round(sum(answer.seconds for answer in answers), 3),
        frames=frames,
    )


def first_only(flags: Sequence[bool]) -> bool:
    """Whether the first frame alone is wrong, of enough of them: what a first inference does that no later one does."""
    return len(flags) >= _TELLING and flags[0] and not any(flags[1:])


def _key(layer: LayerResult) -> tuple[str, int, str]:
    return layer.name, layer.data_id, layer.file if not layer.name else ""


def _same_compile(answers: Sequence[Comparison]) -> None:
    for answer in answers[1:]:
        if answer.subject.model != answers[0].subject.model or [_key(x) for x in answer.layers] != [
            _key(x) for x in answers[0].layers
        ]:
            raise TidegaugeError(
                f"{answer.subject.source} and {answers[0].subject.source} are not of one compile",
                "compare frames of one model and compile together, and two compiles with --before and --after",
            )


def _badness(answer: Comparison) -> tuple[int, float, float]:
    """What names something wrong first, then the poorest output."""
    sqnr = [output.metrics.sqnr_db for output in answer.outputs if output.metrics.sqnr_db is not None]
    error = max((c.excess if c.excess is not None else math.inf for c in answer.culprits), default=0.0)
    return answer.exit_code == 1, -min(sqnr, default=math.inf), error


def _frames_of(
    key: tuple[str, int, str], by_name: Sequence[dict[tuple[str, int, str], LayerResult]], answers: Sequence[Comparison]
) -> FrameLayer:
    flags, errors, compared = [], [], 0
    for names, answer in zip(by_name, answers, strict=True):
        layer = names[key]
        wrong = {c.index for c in (*answer.culprits, *answer.recovered)}
        flags.append(layer.index in wrong)
        errors.append(layer.excess if layer.excess is not None else (math.inf if flags[-1] else -1.0))
        compared += layer.cumulative is not None
    worst = max(range(len(errors)), key=lambda i: (flags[i], errors[i], -i))
    return FrameLayer(compared, sum(flags), worst, first_only(flags))


def _layer(layer: LayerResult, all_of: Sequence[LayerResult | None], answers: Sequence[Comparison]) -> LayerResult:
    """The layer with numbers over all frames; its drawings stay those of the worst frame."""
    there = [other for other in all_of if other is not None]
    usable = [other for other in there if other.sums is not None]
    status = min((other.status for other in there), key=_STATUS_ORDER.index)
    reason = next((other.reason for other in there if other.status == status), layer.reason)
    faulty = next((other for other in there if other.verdict == "faulty"), None)
    verdict = faulty.verdict if faulty is not None else layer.verdict
    if status == "ok" and faulty is not None:
        reason = faulty.reason
    sums = _merge([other.sums for other in usable if other.sums is not None])
    if sums is None:
        return msgspec.structs.replace(layer, status=status, reason=reason, verdict=verdict)
    cumulative, local, excess = numbers(layer, sums)
    return msgspec.structs.replace(
        layer,
        status=status,
        reason=reason,
        verdict=verdict,
        cumulative=cumulative if status != "non_finite" else None,
        local=local if status != "non_finite" else None,
        excess=excess,
        low_share=_share(sums, "low"),
        high_share=_share(sums, "high"),
        sums=sums,
    )


def _first(culprit: Culprit, told: FrameLayer | None, frames: int) -> Culprit:
    """A culprit of the first frame alone is no layer to change: the session's first run is not to be trusted."""
    if told is None or not told.first_only:
        return culprit
    text = f"Layer {culprit.layer} is wrong in the first of {frames} frames only, and right in all others"
    return msgspec.structs.replace(
        culprit,
        cause="first_frame",
        explained=None,
        detail=f"{culprit.cause} in the first frame: {culprit.detail}",
        sentence=f"{text} ({culprit.detail}).",
        advice=(Advice("", "", "run one inference after each start of the session, and throw its result away"),),
        what_if=None,
    )


def _cured(main: Comparison, named: Sequence[Culprit]) -> bool:
    same = {c.index for c in named} == {c.index for c in main.culprits}
    return same and not any(culprit.cause == "first_frame" for culprit in named)


def _merge(all_of: Sequence[LayerSums]) -> LayerSums | None:
    if not all_of:
        return None
    cumulative, local = all_of[0].cumulative, all_of[0].local
    for other in all_of[1:]:
        cumulative, local = merged(cumulative, other.cumulative), merged(local, other.local)
    judged = [other for other in all_of if other.local is not None] or list(all_of)
    floor = sum(other.floor for other in judged) / len(judged)
    noise = sum(other.weight_noise for other in judged) / len(judged)
    return LayerSums(cumulative, local, floor, noise)


def _share(sums: LayerSums, end: Literal["low", "high"]) -> float | None:
    part = sums.cumulative
    return getattr(part, end) / part.count if part is not None and part.count else None


def _culprits(answers: Sequence[Comparison], layers: Sequence[LayerResult], recovered: bool) -> tuple[Culprit, ...]:
    """Every layer that a frame names, from the frame where it is worst; a wrong input first, then those of most
    frames."""
    best: dict[str, Culprit] = {}
    times: dict[str, int] = {}
    for answer in answers:
        for culprit in answer.recovered if recovered else answer.culprits:
            name = _name_of(answer, culprit)
            times[name] = times.get(name, 0) + 1
            if name not in best or _weight(culprit) > _weight(best[name]):
                best[name] = culprit
    index = {layer.name or layer.file: layer.index for layer in layers}
    inputs = {layer.name or layer.file for layer in layers if layer.matched == "input"}
    order = sorted(best, key=lambda name: (name not in inputs, -times[name], -_weight(best[name])))
    return tuple(
        msgspec.structs.replace(
            best[name],
            rank=rank,
            index=index[name],
            sentence=f"{best[name].sentence.removesuffix('.')} (in {times[name]} of {len(answers)} frames).",
        )
        for rank, name in enumerate(order, 1)
    )


def _name_of(answer: Comparison, culprit: Culprit) -> str:
    layer = answer.layers[culprit.index]
    return layer.name or layer.file


def _weight(culprit: Culprit) -> float:
    share = culprit.effect.share if culprit.effect is not None else None
    return share if share is not None else (culprit.excess if culprit.excess is not None else math.inf)


def _outputs(answers: Sequence[Comparison]) -> tuple[OutputResult, ...]:
    """Each output as its worst frame has it."""
    worst: dict[str, OutputResult] = {}
    for answer in answers:
        for output in answer.outputs:
            before = worst.get(output.name)
            if before is None or _quality(output) < _quality(before):
                worst[output.name] = output
    return tuple(worst.values())


def _quality(output: OutputResult) -> float:
    if output.non_finite:
        return -math.inf
    return output.metrics.sqnr_db if output.metrics.sqnr_db is not None else math.inf


def _frame(answer: Comparison) -> Frame:
    return Frame(
        source=answer.subject.source,
        input=answer.subject.input,
        exit_code=answer.exit_code,
        culprits=tuple(c.layer for c in answer.culprits),
        outputs={output.name: output.metrics.sqnr_db for output in answer.outputs},
    )


def _findings(answers: Sequence[Comparison], frames: Frames) -> tuple[Finding, ...]:
    """Those of all frames, a kind and layer once, with the number of frames; and what the frames together say."""
    first: dict[tuple[str, str | None], Finding] = {}
    times: dict[tuple[str, str | None], int] = {}
    for answer in answers:
        for key in {(f.kind, f.layer): f for f in answer.findings}.items():
            first.setdefault(*key)
            times[key[0]] = times.get(key[0], 0) + 1
    found = [
        f
        if times[key] == len(answers)
        else msgspec.structs.replace(
            f, sentence=f"{f.sentence.removesuffix('.')} (in {times[key]} of {len(answers)} frames)."
        )
        for key, f in first.items()
    ]
    early = [name for name, layer in frames.layers.items() if layer.first_only]
    if early:
        text = (
            f"Only the first frame is wrong ({', '.join(early[:3])}), the {len(answers) - 1} others are right: the "
            "first inference after a start is not to be trusted. Run one before the product's first."
        )
        found.append(Finding("first_frame_only", "warning", text, early[0]))
    return tuple(found)


def _sentence(answers: Sequence[Comparison], told: dict[str, FrameLayer], worst: int) -> str:
    wrong = sum(answer.exit_code == 1 for answer in answers)
    text = (
        f"{wrong} of {len(answers)} frames {'is' if wrong == 1 else 'are'} wrong"
        if wrong
        else f"none of {len(answers)} frames is wrong"
    )
    flagged = sorted(((layer.flagged, name) for name, layer in told.items() if layer.flagged), reverse=True)
    if flagged:
        text += ": " + ", ".join(f"{name} in {times}" for times, name in flagged[:3])
    return f"{text[0].upper()}{text[1:]}; the worst is {answers[worst].subject.source}."


def _verdict(
    main: Comparison, named: Sequence[Culprit], frames: Frames, thin: bool, answers: Sequence[Comparison]
) -> str:
    if thin:
        poor = next(answer for answer in answers if answer.exit_code == 3)
        return f"{poor.sentence} ({poor.subject.source})"
    return f"{named[0].sentence} {frames.sentence}" if named else f"{main.sentence} {frames.sentence}"
