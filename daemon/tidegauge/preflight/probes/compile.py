"""The check `compile`: what the compile was told, against the profile and against what TIDL knows.

`param.yaml` and `run.log` lie beside the artifacts folder in TI's packages, or in it; many boards have neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegauge.preflight import options
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, not_applicable, ok, warning
from tidegauge.profile import Preprocess
from tidegauge.tidl import compile_log, param_yaml
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.param_yaml import CompileParameters

_LOGS = ("run.log", "compile.log", "tempDir/compile.log")
_LARGEST = 16 << 20


def run(context: Context) -> Finding:
    profile = context.required.profile
    artifacts = Path(profile.artifacts)
    path, text = _first(artifacts, ("param.yaml",))
    _, log = _first(artifacts, _LOGS)
    if path is None and log is None:
        return not_applicable("there is no param.yaml and no compile log in or beside the artifacts folder")
    invalid: Sequence[str] = ()
    try:
        if log is not None:
            invalid = compile_log.parse(log).invalid_names
        parameters = param_yaml.parse(text) if text is not None else None
    except FormatError as error:
        return warning(f"what the compile left can't be read: {error.problem}", error.cure)
    return judge(profile.preprocess, parameters, invalid)


def _first(artifacts: Path, names: Sequence[str]) -> tuple[Path | None, str | None]:
    """The first of the files, in the artifacts folder or beside it, and its text."""
    for folder in (artifacts, artifacts.parent):
        for name in names:
            path = folder / name
            if path.is_file() and path.stat().st_size <= _LARGEST:
                return path, path.read_text(errors="replace")
    return None, None


def judge(preprocess: Preprocess, parameters: CompileParameters | None, invalid: Sequence[str]) -> Finding:
    """`invalid`: layer names of 16-bit or deny lists that the compile did not find."""
    if parameters is not None:
        differences = against_profile(preprocess, parameters)
        if differences:
            told = "; ".join(
                f"{key} is {ours} in the profile, {theirs} at compile time" for key, ours, theirs in differences
            )
            return failed(told, "use the numbers of param.yaml in [preprocess], or compile again with the profile's")
    strangers = options.unknown(parameters.options if parameters is not None else ())
    if strangers:
        return _ignored(strangers)
    if invalid:
        return warning(
            f"the compile did not find {len(invalid)} layers of its lists: {', '.join(list(invalid)[:4])}",
            "correct the names (ONNX output names) and compile again: mixed precision is not applied there",
        )
    if parameters is None:
        return ok("every layer that the compile's lists name was found (no param.yaml)")
    return ok(f"[preprocess] is the compile's; {len(parameters.options)} options, all known")


def _ignored(strangers: Mapping[str, str]) -> Finding:
    cures = [f"did you mean `{near}` for `{key}`?" for key, near in strangers.items() if near]
    return warning(
        f"TIDL ignores options that it does not know: {', '.join(strangers)}",
        " ".join(cures) or "remove them, so that nobody believes in them",
    )


def against_profile(preprocess: Preprocess, parameters: CompileParameters) -> list[tuple[str, str, str]]:
    """Key, value of the profile, value of the compile, where the compile says one and they differ."""
    size = parameters.crop or parameters.resize
    pairs: list[tuple[str, object, object]] = [
        ("height × width", (preprocess.height, preprocess.width), size),
        ("layout", preprocess.layout, parameters.layout),
        ("channel_order", preprocess.channel_order, parameters.channel_order),
    ]
    if not parameters.normalised_inside:
        pairs += [("mean", preprocess.mean, parameters.mean), ("scale", preprocess.scale, parameters.scale)]
    return [
        (key, _said(ours), _said(theirs))
        for key, ours, theirs in pairs
        if theirs is not None and not _same(ours, theirs)
    ]


def _same(ours: object, theirs: object) -> bool:
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        if len(theirs) == 1:
            theirs = theirs * len(ours)
        # param.yaml holds 1/58.395 in a few decimals
        return len(ours) == len(theirs) and all(
            math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-9) for a, b in zip(ours, theirs, strict=True)
        )
    return ours == theirs


def _said(value: object) -> str:
    return " ".join(f"{item:g}" for item in value) if isinstance(value, tuple) else str(value)


PROBE = Probe(
    id="compile",
    title="`param.yaml` and compile log: preparation against the profile, unknown options, layer names",
    why="pictures prepared otherwise than at compile time; options and 16-bit lists that were silently not applied",
    place="anywhere",
    run=run,
)
