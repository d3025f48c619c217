"""Prints docs/preflight.md from the checks and rules themselves, so that it can't drift from them.

`python tools/preflight_reference.py > docs/preflight.md`; a test compares the two.
"""

from __future__ import annotations

from tidegauge.cli.check import CONFIGURATION
from tidegauge.preflight.lint.rules import RULES
from tidegauge.preflight.operators import CURES, ONNX, TFLITE
from tidegauge.preflight.registry import MODULES, load

HEAD = """\
# Preflight

Generated from the checks' own texts by `tools/preflight_reference.py`.

## `tidegauge check`

`tidegauge check --config agent.toml` tries every precondition of the agent before anything is opened on the C7x. It
opens no TIDL session. One line a check: its id, `ok`, `warning`, `failed` or `not applicable`, what was found, and the
cure. `--json` prints the same with each check's own duration. Exit code 0 when no check failed (warnings are allowed),
else 2.

Each check runs in a process of its own with a deadline: one that hangs, aborts or exits is a failed check that says so,
and the others answer. Without `--config` only the board is looked at. Where `runtime.module` names the virtual board,
that is checked instead of silicon.

A check whose own precondition is missing is `not applicable` and names the check to cure first, so that one fault is
told once. `rights` publishes empty, unretained messages on the device's own topics, which nobody acts on. It connects
with the device's own client id, or with `<device>-check` while an agent runs, which it would cut off.

The one tool that tells the free shared heap, vx_app_heap_stats.out, is a TIDL client itself: it is run only while the
C7x answers and nobody holds a session, so that `shared-heap` is not applicable beside a running agent.

Nothing here has run on a real board.
"""

LINT = """\
## `tidegauge lint`

`tidegauge lint MODEL` (`.onnx` or `.tflite`) says before the compile what TIDL will make of a model. `--profile
profile.toml` also finds a scale that is used twice; `--json` is for programs. Exit code 2 where a remark is `failed`,
else 0. Nodes that the runtime folds or removes (constants, `Shape` of a fixed shape, `Identity`, `Dropout`) are no
layers and get no remark. The forms of an operator (strides, axes, modes) are looked at in ONNX files only; float16
weights behind `DEQUANTIZE` are not looked into. Without `--input` activations' ranges are judged by operator; with it
the model is run in float on recorded input tensors, dark ones among them.
"""

PLACES = {"board": "board", "virtual": "virtual board", "anywhere": "both"}


def reference() -> str:
    lines = [HEAD, "| check | looks at | where | otherwise |", "|---|---|---|---|"]
    for module in (CONFIGURATION, *MODULES):
        probe = load(module)
        lines.append(f"| `{probe.id}` | {probe.title} | {PLACES[probe.place]} | {probe.why} |")
    lines += ["", LINT, "| rule | looks at | otherwise |", "|---|---|---|"]
    lines += [f"| `{rule.id}` | {rule.title} | {rule.why} |" for rule in RULES]
    lines += [
        "",
        "### Operators",
        "",
        "TIDL takes these, some in certain forms only (edgeai-tidl-tools docs/operators.md, tools 11_00 and 11_01).",
        "",
        f"ONNX: {', '.join(sorted(ONNX))}.",
        "",
        f"TFLite: {', '.join(sorted(TFLITE))}.",
        "",
        "| not taken | instead |",
        "|---|---|",
        *(f"| {name} | {cure} |" for name, cure in sorted(CURES.items())),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
