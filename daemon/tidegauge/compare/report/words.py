"""Numbers and names as a person reads them; the same in the page and in the terminal."""

from __future__ import annotations

from tidegauge.compare.advice import SCALE_ONCE
from tidegauge.compare.stored import stopped
from tidegauge.compare.types import INPUT_FACTOR, Advice, Comparison, Culprit, Cure, LayerResult, Metrics, WhatIf

VERDICTS = {
    "healthy": "right",
    "inherits": "inherits error",
    "faulty": "wrong",
    "recovers": "wrong, recovers",
    "undecided": "not judged",
}
STATUSES = {
    "ok": "",
    "missing": "trace missing",
    "truncated": "trace truncated",
    "shape_mismatch": "shape mismatch",
    "non_finite": "not finite",
    "constant": "constant",
    "all_zero": "all zero",
    "below_resolution": "below one step",
    "duplicate": "two traces of it",
    "unmatched": "no float twin",
}


SOURCES = {
    "svg": "the compile's svg or html",
    "proto": "the quantisation proto",
    "io": "the I/O descriptor",
    "log": "the C7x's log",
    "estimate": "an estimate from the float run",
    "float": "it holds floats",
    "none": "nowhere",
}
MATCHED = {
    "name": "its whole name",
    "sanitised": "its whole name, / as _",
    "input": "TIDL's alias of an input",
    "original": "TIDL's alias of an output",
    "lineage": "what it reads and what reads it",
    "fingerprint": "its neighbourhood in the graph",
    "renamed": "a prefix that all names changed",
    "weights": "the scales of its weights",
    "value": "its values",
    "none": "nothing",
}


_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def weights(layer: LayerResult) -> str:
    """Which weights the local reference was computed with."""
    if layer.weights in ("none", "float"):
        return "float" if _WEIGHTED & set(layer.operators) else "none"
    return layer.weights if layer.weights == "as compiled" else f"{layer.weights} (guessed: no table tells them)"


def number(value: float | None, digits: int = 3) -> str:
    """A number with few digits; a dash where there is none."""
    if value is None:
        return "–"
    if value != 0 and (abs(value) >= 1e7 or abs(value) < 1e-3):
        return f"{value:.1e}"
    if abs(value) >= 1000:
        whole = f"{float(f'{value:.{digits}g}'):,.0f}"
        return whole.replace(",", "\u202f")
    return f"{value:.{digits}g}"


def decibels(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} dB"


def quality(metrics: Metrics | None) -> str:
    """The SQNR; "exact" where there is no error at all."""
    if metrics is not None and metrics.count and metrics.max_error == 0.0:
        return "exact"
    return decibels(metrics.sqnr_db if metrics is not None else None)


def percent(value: float | None) -> str:
    if value is None:
        return "–"
    return "0 %" if value == 0 else f"{value * 100:.2g} %" if value < 0.995 else f"{value * 100:.0f} %"


def estimated(layer: LayerResult) -> str:
    """A mark for a layer whose numbers rest on an estimated scale; empty for all others."""
    return " (scale estimated)" if layer.scale_source == "estimate" else ""


def verdict(layer: LayerResult) -> str:
    """The verdict, with the status where it is not plain."""
    status = STATUSES[layer.status]
    return f"{VERDICTS[layer.verdict]} ({status})" if status else VERDICTS[layer.verdict]


def headline(comparison: Comparison) -> str:
    """A word or two for the exit code; what was found, where no layer is to blame."""
    if comparison.exit_code == 1 and (fed_wrong(comparison) or stopped(comparison)):
        return "wrong input"
    if comparison.exit_code == 1 and not comparison.culprits:
        return "error found"
    return {0: "fine", 1: "culprit found", 2: "unusable", 3: "coverage too low"}[comparison.exit_code]


def fed_wrong(comparison: Comparison) -> bool:
    """Whether device and float run were both fed an input of another scale."""
    return any(finding.kind == INPUT_FACTOR for finding in comparison.findings)


def paste(advice: tuple[Advice, ...], comparison: Comparison | None = None) -> str:
    """The advice as lines for a dictionary of TIDL compile options; alternatives and deeds in words become comments.

    `comparison`: to tell what the outputs are now beside what they would be.
    """
    now = {output.name: output.metrics.sqnr_db for output in comparison.outputs} if comparison is not None else {}
    lines = []
    for item in advice:
        why = item.why if item.what_if is None else f"{item.why}; with this alone {worth(item.what_if)}"
        if item.what_if is not None and (today := now.get(item.what_if.output)) is not None:
            why += f" (now {decibels(today)})"
        if not item.option:
            lines.append(f"# {why[0].upper()}{why[1:]}")
        elif item.alternative:
            lines.append(f'# or: "{item.option}": "{item.value}",  # {why}')
        else:
            lines.append(f'"{item.option}": "{item.value}",  # {why}')
    return "\n".join(lines)


#: Longer values of an option are cut in a headline; the text to paste has them whole.
_SHOWN = 90
_IN_WORDS = {
    "advanced_options:output_feature_16bit_names_list": "Compile with the outputs of these layers at 16 bits",
    "advanced_options:params_16bit_names_list": "Compile with the weights of these layers at 16 bits",
    "deny_list:layer_name": "Compile with these nodes on the Arm core",
    "advanced_options:calibration_frames": "Calibrate again, with frames like this one among the others",
    "advanced_options:quantization_scale_type": "Compile with one scale a weight channel",
    "advanced_options:add_data_convert_ops": "Apply mean and scale once, and compile with TIDL's own input conversion",
}


def to_do(comparison: Comparison) -> tuple[str, str] | None:
    """What to change, in plain words and as the option that does it; None where nothing is to be changed.

    All culprits' cures together where they are known, else the first culprit's first choice.
    """
    if fed_wrong(comparison):
        return _sentence(SCALE_ONCE), ""
    lines = comparison.cure.advice if comparison.cure is not None and comparison.cure.advice else ()
    if not lines and comparison.culprits:
        lines = comparison.culprits[0].advice
    options = [item for item in lines if item.option and not item.alternative]
    if not options:
        deed = next((item.why for item in lines if item.why), None)
        return None if deed is None else (_sentence(deed), "")
    first = options[0]
    value = first.value if len(first.value) <= _SHOWN else f"{first.value[:_SHOWN]}…"
    others = len(options) - 1
    more = f" and {others} more option{'s' * (others > 1)}" if others else ""
    text = _IN_WORDS.get(first.option, f"{first.why[0].upper()}{first.why[1:]}")
    cure = comparison.cure
    if cure is not None and cure.advice and cure.after.sqnr_db is not None:
        text += f": {worth(cure.after)}" + (
            f" instead of {decibels(cure.before.sqnr_db)}" if cure.before.sqnr_db else ""
        )
    return text, f'"{first.option}": "{value}"{more}'


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def worth(figure: WhatIf) -> str:
    """What an output would be, in a few words."""
    if figure.error is None:
        return f"output {figure.output} would still not be finite"
    return f"output {figure.output} would have {decibels(figure.sqnr_db) if figure.sqnr_db is not None else 'no error'}"


def foretold(cure: Cure) -> bool:
    """Whether there is anything to say of a cure: a set of changes, or a target that none reaches."""
    return bool(cure.steps or cure.advice or cure.target_db is not None)


def prediction(cure: Cure) -> str:
    """What the cure is expected to do, in a sentence."""
    text = f"Now output {cure.before.output} has {decibels(cure.before.sqnr_db)}; with this, {worth(cure.after)}"
    if cure.target_db is not None:
        text += f" (wanted: {cure.target_db:g} dB{'' if cure.reached else ', which no set of layers reaches'})"
    if not cure.faithful:
        text += ". The emulation does not give the device's own error as it is, so take this for a rough figure"
    return text + "."


CHANGES = {
    "exact": "exact",
    "wide": "at 16 bits",
    "params": "weights at 16 bits",
    "cpu": "on the Arm core",
    "range": "with a wider range",
}


def effect(culprit: Culprit) -> list[tuple[str, str]]:
    """What the culprit does to the output, as label and value."""
    found = culprit.effect
    if found is None:
        return []
    return [
        ("output", found.output),
        ("share of the output's error", percent(None if found.share is None else min(found.share, 1.0))),
        (f"output values moved by more than {number(found.step)}", percent(found.moved)),
        ("output SQNR if only this were wrong", decibels(found.sqnr_db)),
    ]
