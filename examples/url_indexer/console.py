"""How the indexer looks on a terminal: a progress bar, the log above it, and a table."""

import logging
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.highlighter import NullHighlighter
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.url_indexer.fetcher import FETCH
from examples.url_indexer.runner import Progress as Advance
from perdure import telemetry

log = logging.getLogger("examples.url_indexer")

# The result goes to stdout; progress and logs go to stderr.
console = Console(stderr=True)


def show_log(*, verbose: bool) -> None:
    """Print the log, with each fetch if `verbose`."""
    if console.is_terminal:
        above_the_bar = RichHandler(console=console, show_path=False, highlighter=NullHighlighter())
        logging.basicConfig(format="%(message)s", handlers=[above_the_bar])
    else:  # whole lines, for files and for grep
        logging.basicConfig(format="%(levelname)s %(message)s")
    if verbose:
        log.setLevel(logging.INFO)
        telemetry.attach("fetch-logger", (*FETCH, "stop"), _log_fetch)


def _log_fetch(
    _event: telemetry.Event, measured: telemetry.Values, about: telemetry.Values, _config: object
) -> None:
    took = measured["duration"] / 1e6
    log.info("fetch %s took %.0f ms: %s", about["url"], took, about["result"])


@contextmanager
def bar(total: int) -> Generator[Advance, None, None]:
    """Show a progress bar on a terminal, and nothing elsewhere."""
    columns = (TextColumn("Pages"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        pages = progress.add_task("pages", total=total)
        yield lambda done, _begun: progress.update(pages, completed=done)


def print_counts(counts: list[tuple[str, int]]) -> None:
    width = max((len(str(count)) for _, count in counts), default=0)
    for token, count in counts:
        print(f"{count:>{width}}  {token}")
