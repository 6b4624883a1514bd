"""The runner: fetches all pages, a few at a time."""

from collections.abc import Callable, Iterable

from examples.url_indexer.fetcher import fetch_and_tokenize, log_failure
from examples.url_indexer.index import top
from perdure import Duration
from perdure.otp import Exited, TaskSupervisor

FETCHERS = "App.FetchSup"

Progress = Callable[[int, int], object]


async def run(
    urls: Iterable[str],
    max_concurrency: int | None = None,
    *,
    timeout: Duration = 5.0,
    progress: Progress | None = None,
) -> list[tuple[str, int]]:
    """Index the pages, skip those that fail, and return the 20 most frequent words.

    Args:
        urls: The pages.
        max_concurrency: How many are fetched at once; the number of cores by default.
        timeout: How long one page may take, with all its attempts.
        progress: Called with the numbers of pages that are done and that were started.
    """
    # Not linked: a fetch that crashes costs one page, and nothing more.
    # In a block: if we are stopped, so are the fetches.
    async with TaskSupervisor.async_stream_nolink(
        FETCHERS,
        urls,
        fetch_and_tokenize,
        max_concurrency=max_concurrency,
        timeout=timeout,
        ordered=False,
        zip_input_on_exit=True,
        progress=progress,
    ) as results:
        async for result in results:
            if isinstance(result, Exited):  # it ended before it could log that itself
                log_failure(*result.reason)
    return await top(20)
