"""How long work looks on a terminal: a bar with counts, or a spinner if nothing is counted."""

from typing import Final

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from perdure.base.clock import SystemClock
from perdure.base.duration import spell
from perdure.cli.output import WorkDone, cell

WIDTH: Final = 30
EACH_SECOND: Final = 8  # looks at the work


class ShownProgress:
    """One line, which disappears when the work is done."""

    def __init__(self, text: str, work: WorkDone) -> None:
        self._text = text
        self._work = work
        self._spinner = Spinner("dots")
        self._clock = SystemClock()
        self._began = self._clock.monotonic()

    def on(self, screen: Console) -> Live:
        """Return what shows it on a screen while its block runs."""
        return Live(
            console=screen,
            get_renderable=self.line,
            refresh_per_second=EACH_SECOND,
            transient=True,
        )

    def line(self) -> Table:
        """Return the line as it is now."""
        work, line = self._work, Table.grid(padding=(0, 1))
        took = cell(spell(round(self._clock.monotonic() - self._began)), style="dim")
        if work.total is None:
            line.add_row(self._spinner, cell(f"{self._text} …"), took)
        else:
            bar = ProgressBar(total=max(work.total, 1), completed=work.done, width=WIDTH)
            line.add_row(cell(self._text), bar, cell(f"{work.done:,} of {work.total:,}"), took)
        return line
