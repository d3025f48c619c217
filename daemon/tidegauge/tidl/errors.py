"""What a parser says when a file is not what its name promises."""

from __future__ import annotations

from tidegauge.errors import TidegaugeError

#: The cure for most damaged files: they were cut on the way, or mixed from two compiles.
COPY_AGAIN = "copy it again, whole, from the folder of the compile that made it"


class FormatError(TidegaugeError):
    """Text or bytes that do not follow their format. `line` counts from 1, `offset` is in bytes from 0."""

    def __init__(
        self, problem: str, cure: str = COPY_AGAIN, *, offset: int | None = None, line: int | None = None
    ) -> None:
        self.offset = offset
        self.line = line
        where = ""
        if line is not None:
            where = f"line {line}: "
        elif offset is not None:
            where = f"at byte {offset}: "
        super().__init__(where + problem, cure)

    def in_file(self, name: str) -> FormatError:
        """The same error with the name of the file in front, for whoever knows it."""
        named = FormatError(f"{name}: {self.problem}", self.cure)
        named.offset, named.line = self.offset, self.line
        return named
