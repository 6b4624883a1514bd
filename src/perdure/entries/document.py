"""What a file says, and at which line it says it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from perdure.base.errors import Mistake

Key = str | int
Steps = tuple[Key, ...]


class Document(NamedTuple):
    """The content of one file, or of a mapping that is none.

    Attributes:
        name: Names it in messages.
        folder: Where `file://` begins.
        value: What it says.
        lines: The line of each value, by the keys and indices that lead to it.
        mistakes: Those that were found while it was read.
    """

    name: str
    folder: Path
    value: Any
    lines: Mapping[Steps, int]
    mistakes: Sequence[Mistake] = ()


class Place(NamedTuple):
    """A value in a document, of an entry if its name is known."""

    document: Document
    steps: Steps = ()
    entry: str = ""

    def inside(self, key: Key) -> "Place":
        """Give the place of a value in this one."""
        return self._replace(steps=(*self.steps, key))

    def first_of(self, *keys: Key) -> "Place":
        """Give the place of the first of these that stands in the file."""
        places = [self.inside(key) for key in keys]
        return next((each for each in places if each.steps in self.document.lines), places[0])

    @property
    def line(self) -> int:
        """The line of the value, or of the nearest one around it that has a line."""
        lines = self.document.lines
        for length in range(len(self.steps), -1, -1):
            if line := lines.get(self.steps[:length]):
                return line
        return 0

    def mistake(self, text: str) -> Mistake:
        """Tell what is wrong here."""
        return Mistake(self.document.name, self.line, self.entry, text)

    def field(self, depth: int) -> str:
        """Spell the way to the value from a depth on: `lifecycle.restart.jitter`."""
        return ".".join(map(str, self.steps[depth:]))
