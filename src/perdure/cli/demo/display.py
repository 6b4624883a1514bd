"""How the demo is shown: progress bars and lines on a terminal, only lines elsewhere."""

import contextlib
from collections import Counter, deque
from collections.abc import Generator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from perdure.base.clock import Clock
from perdure.cli.demo.harness import Heading

LINES: Final = 16  # of the latest events below the bars
_STYLES: Final = {"dead": "bold red", "done": "bold green"}


class Lines:
    """Prints what happens, line by line."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._began = clock.monotonic()
        self._scenarios = 0

    @contextlib.contextmanager
    def scenario(self, title: Heading) -> Generator[None]:
        """Show what happens inside the block as one scenario."""
        self._scenarios += 1
        head = (f"\n{self._scenarios}  {title.name}", "bold cyan")
        self._console.print(Text.assemble(head, f"\n{title.text}\n"), soft_wrap=True)
        yield

    def line(self, text: str, style: str) -> Text:
        """Return a line with its time."""
        since = f"{self._clock.monotonic() - self._began:5.1f}s  "
        return Text.assemble((since, "dim"), (text, style))

    def say(self, text: str, style: str = "") -> None:
        """Print one event."""
        self._console.print(self.line(text, style), soft_wrap=True)

    def show(self, done: Counter[str], worker: str) -> None:
        """Show the progress."""

    def draw(self, drawing: RenderableType) -> None:
        """Print a table or a text."""
        self._console.print(drawing)


class Bars(Lines):
    """Shows progress bars, and the latest events below them."""

    def __init__(self, console: Console, clock: Clock) -> None:
        super().__init__(console, clock)
        self._live: Live | None = None
        self._progress = Progress()
        self._bars: dict[str, TaskID] = {}
        self._last: deque[RenderableType] = deque(maxlen=LINES)
        self._worker = Text()

    @contextlib.contextmanager
    def scenario(self, title: Heading) -> Generator[None]:
        with super().scenario(title):
            self._progress = Progress(
                TextColumn("{task.description:<8}"),
                BarColumn(bar_width=40),
                MofNCompleteColumn(),
                TextColumn("{task.fields[what]}"),
            )
            self._bars = {
                name: self._progress.add_task(name, total=size, what=what)
                for name, (size, what) in title.bars.items()
            }
            self._last.clear()
            self._worker = Text()
            with Live(console=self._console, refresh_per_second=20) as self._live:
                yield
            self._live = None

    def say(self, text: str, style: str = "") -> None:
        self.draw(self.line(text, style))

    def draw(self, drawing: RenderableType) -> None:
        if self._live is None:
            super().draw(drawing)
        else:
            self._last.append(drawing)
            self._redraw()

    def show(self, done: Counter[str], worker: str) -> None:
        for name, bar in self._bars.items():
            self._progress.update(bar, completed=done[name])
        style = _STYLES.get(worker.rpartition(" ")[2], "blue")
        self._worker = Text(f"\n{worker}\n", style=style)
        self._redraw()

    def _redraw(self) -> None:
        if self._live is not None:
            bars = (self._progress, self._worker) if self._bars else ()
            self._live.update(Group(*bars, *self._last))
