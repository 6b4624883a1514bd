"""The command `python -m examples.url_indexer`."""

import argparse
import functools
import sys

import perdure
from examples.url_indexer.application import App
from examples.url_indexer.console import bar, log, print_counts, show_log
from examples.url_indexer.index import top
from examples.url_indexer.runner import Progress, run
from perdure import process
from perdure.errors import Shutdown
from perdure.process import Pid

DESCRIPTION = "Fetches web pages concurrently and prints their most frequent words."
ENDING = """\
Pages that fail are tried again, then skipped and logged.
Ctrl-C stops in order and prints what was counted so far; a second one ends at once.
The exit code is 1 if no page could be counted."""


async def main(options: argparse.Namespace) -> int:
    async with App():
        with bar(len(options.urls)) as progress:
            # A process of its own, so that this one is free to receive Ctrl-C.
            await ended(process.spawn_monitored(index, options, progress))
        counts = await top(options.top)
    print_counts(counts)
    return 0 if counts else 1


async def index(options: argparse.Namespace, progress: Progress) -> None:
    await run(options.urls, options.concurrency, timeout=options.timeout, progress=progress)


async def ended(runner: Pid) -> None:
    """Wait for the end of the runner; if we are cancelled, stop it."""
    async for event in process.events():
        match event:
            case process.Exit(sender=sender, result=end) if sender is runner:
                if end.error is not None and not isinstance(end.error, Shutdown):
                    raise end.error
                return
            case process.Cancel():
                log.warning("asked to stop: this is what was counted so far")
                process.exit(Shutdown("asked to stop"), runner)
            case _:
                pass


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m examples.url_indexer",
        description=DESCRIPTION,
        epilog=ENDING,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = functools.partial(parser.add_argument, metavar="N")
    parser.add_argument("urls", nargs="+", metavar="URL")
    add("--top", type=positive, default=20, help="how many words to print; default: 20")
    add("--concurrency", type=positive, default=8, help="pages at once; default: 8")
    add("--timeout", type=positive, default=10, help="seconds for a page; default: 10")
    parser.add_argument("--verbose", action="store_true", help="log each fetch")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of 1 or more, not {text!r}")
    return int(text)


if __name__ == "__main__":
    chosen = parse()
    show_log(verbose=chosen.verbose)
    try:
        sys.exit(perdure.run(main, chosen))
    except KeyboardInterrupt:
        sys.exit(130)
