"""Where the demonstration is shown: bars and lines on a terminal, lines alone elsewhere."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Generator
from typing import Any, Final

from msgspec import Struct
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from perdure.base.clock import Clock
from perdure.cli.demo.app import build
from perdure.cli.demo.mailing import MailingAct
from perdure.cli.demo.migration import MigrationAct
from perdure.cli.demo.order import OrderAct
from perdure.cli.demo.payout import PayoutAct
from perdure.cli.demo.scene import Outcome, Scene, Title
from perdure.cli.demo.world import receiving

# Runs the demonstration: one act after the other, in one store.

LONGEST: Final = 150.0  # seconds, after which something is wrong
ACTS: Final = (MigrationAct, MailingAct, OrderAct, PayoutAct)


class Course(Struct, frozen=True, kw_only=True):
    """How the demonstration went."""

    outcomes: tuple[Outcome, ...]
    jobs: dict[str, int]  # by state
    kills: int
    effects: int
    requests_repeated: int
    seconds: float


async def direct(scene: Scene) -> Course:
    """Run it to its end."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with receiving(scene.receiver) as port, build(scene.folder, port) as app:
        with scene.opened(app, port):
            async with asyncio.timeout(LONGEST):
                outcomes = [await act(scene).play() for act in ACTS]
        jobs = await (await app.store()).counts()
    return Course(
        outcomes=tuple(outcomes),
        jobs=jobs,
        kills=scene.kills,
        effects=len(scene.receiver.done),
        requests_repeated=scene.receiver.repeated,
        seconds=loop.time() - began,
    )


# What the demonstration comes to: for programs, and for people.


def tally(course: Course) -> dict[str, Any]:
    """Add up what the acts came to."""
    outcomes = course.outcomes
    counted: dict[str, Any] = {
        "jobs": course.jobs,
        "steps": sum(each.steps for each in outcomes),
        "kills": course.kills,
        "effects": course.effects,
        "lost": sum(each.lost for each in outcomes),
        "duplicates": sum(each.duplicates for each in outcomes),
        "requests_repeated": course.requests_repeated,
        "seconds": round(course.seconds, 1),
    }
    for each in outcomes:
        counted |= each.more
    return counted


def is_good(counted: dict[str, Any]) -> bool:
    """Whether nothing was lost or doubled."""
    return not counted["lost"] and not counted["duplicates"]


def verdict(counted: dict[str, Any]) -> Text:
    """Say it in two lines."""
    if not is_good(counted):
        text = f"{counted['lost']} lost, {counted['duplicates']} doubled: that must not be."
        return Text(text, style="bold red")
    jobs = sum(counted["jobs"].values())
    return Text.assemble(
        ("Nothing lost, nothing doubled", "bold green"),
        f": {jobs} jobs, {counted['steps']} steps, {counted['effects']} effects and "
        f"{counted['kills']} kills in {counted['seconds']:.0f} s.\n"
        f"The world was asked {counted['requests_repeated']} times for what it had done already, "
        "each time with the same key:\nso it did nothing twice.",
    )


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
        """Return a line with its time."""
        since = f"{self._clock.monotonic() - self._began:5.1f}s  "
        return Text.assemble((since, "dim"), (text, style))

    def say(self, text: str, style: str = "") -> None:
        """Return what happened."""
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
