"""Every exit code of `tidegauge`, in one table: for scripts, for the unit file, and for docs/exit-codes.md."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    FINE = 0
    FINDING = 1
    UNUSABLE = 2
    COVERAGE = 3
    REFUSED = 4
    NO_ANSWER = 5
    ACCELERATOR_DOWN = 70
    INTERRUPTED = 130
    PIPE_CLOSED = 141


#: What each means, and what systemd should do with it when the agent ends so.
MEANINGS: dict[ExitCode, tuple[str, str]] = {
    ExitCode.FINE: ("done; for the agent: stopped by SIGTERM or Ctrl-C", "stopped"),
    ExitCode.FINDING: (
        "a finding: `compare` names a culprit, `baseline compare` finds it worse, a check or a goal is missed",
        "none: the agent doesn't use it; Python itself ends with it after a fault of the program: restart",
    ),
    ExitCode.UNUSABLE: (
        "an input, a configuration or a command line can't be used; one sentence says why",
        "don't restart: only a person can cure it (`RestartPreventExitStatus=2`)",
    ),
    ExitCode.COVERAGE: ("`compare` saw too few of the layers to say anything", "none: the agent doesn't use it"),
    ExitCode.REFUSED: ("the agent refused the command; one sentence says why", "none: the agent doesn't use it"),
    ExitCode.NO_ANSWER: (
        "a device gave no answer to a command over the broker in time",
        "none: the agent doesn't use it",
    ),
    ExitCode.ACCELERATOR_DOWN: (
        "the accelerator was given up (only with `supervision.exit_when_down = true`)",
        "restart within the unit's start limit, then reboot (`StartLimitAction=reboot`)",
    ),
    ExitCode.INTERRUPTED: ("Ctrl-C in a command that was not done", "none: the agent doesn't use it"),
    ExitCode.PIPE_CLOSED: ("the reader of the output has left", "none: the agent doesn't use it"),
}


def table() -> str:
    """The table as Markdown."""
    lines = ["| code | name | meaning | systemd, for the agent |", "|---|---|---|---|"]
    lines += [f"| {code.value} | {code.name.lower()} | {said} | {unit} |" for code, (said, unit) in MEANINGS.items()]
    return "\n".join(lines)
