"""Where the demonstration is shown: bars and lines on a terminal, lines alone elsewhere."""

import contextlib
from collections import Counter, deque
from collections.abc import Generator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from perdure.base.clock import Clock
from perdure.cli.demo.scene import Title

LINES: Final = 16  # of the last events that are seen below the bars
_STYLES: Final = {"dead": "bold red", "done": "bold green"}


class Lines:
    """Says what happens, line by line."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._began = clock.monotonic()
        self._acts = 0

    @contextlib.contextmanager
    def act(self, title: Title) -> Generator[None]:
        """Show what happens inside the block as one act."""
        self._acts += 1
        head = (f"\n{self._acts}  {title.name}", "bold cyan")
        self._console.print(Text.assemble(head, f"\n{title.text}\n"), soft_wrap=True)
        yield

    def line(self, text: str, style: str) -> Text:
        """Give a line with its time."""
        since = f"{self._clock.monotonic() - self._began:5.1f}s  "
        return Text.assemble((since, "dim"), (text, style))

    def say(self, text: str, style: str = "") -> None:
        """Tell what happened."""
        self._console.print(self.line(text, style), soft_wrap=True)

    def show(self, done: Counter[str], worker: str) -> None:
        """Show how far it is."""

    def draw(self, picture: RenderableType) -> None:
        """Show a picture."""
        self._console.print(picture)


class Bars(Lines):
    """Bars for what there is to do, and below them what happened last."""

    def __init__(self, console: Console, clock: Clock) -> None:
        super().__init__(console, clock)
        self._live: Live | None = None
        self._progress = Progress()
        self._bars: dict[str, TaskID] = {}
        self._last: deque[RenderableType] = deque(maxlen=LINES)
        self._worker = Text()

    @contextlib.contextmanager
    def act(self, title: Title) -> Generator[None]:
        with super().act(title):
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

    def draw(self, picture: RenderableType) -> None:
        if self._live is None:
            super().draw(picture)
        else:
            self._last.append(picture)
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
