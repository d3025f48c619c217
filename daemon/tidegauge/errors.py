"""The one error a person sees: what is wrong, where, and how to cure it."""

from __future__ import annotations


class TidegaugeError(Exception):
    """A fault with a cure. The command line prints it as one sentence and exits with `exit_code`.

    `problem` names the thing (file, key, port, layer) and what is wrong with it; `cure` says what to do.
    """

    exit_code = 2

    def __init__(self, problem: str, cure: str = "") -> None:
        self.problem = problem.strip()
        self.cure = cure.strip()
        super().__init__(str(self))

    def __str__(self) -> str:
        return f"{self.problem}: {self.cure}" if self.cure else self.problem


class Unreached(TidegaugeError):
    """A server that is needed can't be reached: it may be there later, without anything that a person does here."""
