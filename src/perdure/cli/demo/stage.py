"""Where the demonstration is shown: bars and lines on a terminal, lines alone elsewhere."""

from collections import Counter, deque
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from perdure.base.clock import Clock
from perdure.cli.demo.notes import SIZES

LINES: Final = 16  # of the last events that are seen below the bars
_WHAT: Final = {"extract": "pages", "convert": "customers", "load": "batches"}


class Lines:
    """Says what happens, line by line."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._began = clock.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def line(self, text: str, style: str) -> Text:
        """Give a line with its time."""
        since = f"{self._clock.monotonic() - self._began:5.1f}s  "
        return Text.assemble((since, "dim"), (text, style))

    def say(self, text: str, style: str = "") -> None:
        """Tell what happened."""
        self._console.print(self.line(text, style), soft_wrap=True)

    def show(self, done: Counter[str], worker: str) -> None:
        """Show how far it is."""


class Bars(Lines):
    """A bar for each phase, and below them what happened last."""

    def __init__(self, console: Console, clock: Clock) -> None:
        super().__init__(console, clock)
        self._progress = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[what]}"),
        )
        self._bars: dict[str, TaskID] = {
            phase: self._progress.add_task(phase, total=size, what=_WHAT[phase])
            for phase, size in SIZES.items()
        }
        self._last: deque[Text] = deque(maxlen=LINES)
        self._worker = Text()
        self._live = Live(console=console, refresh_per_second=20)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        self._last.append(self.line(text, style))
        self._draw()

    def show(self, done: Counter[str], worker: str) -> None:
        for phase, bar in self._bars.items():
            self._progress.update(bar, completed=done[phase])
        style = {"dead": "bold red", "done": "bold green"}.get(worker.rpartition(" ")[2], "blue")
        self._worker = Text(f"\n{worker}\n", style=style)
        self._draw()

    def _draw(self) -> None:
        self._live.update(Group(self._progress, self._worker, *self._last))
