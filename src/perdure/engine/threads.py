"""Sync functions of users run here, off the loop, and only here."""

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import isawaitable
from typing import Any

# So many sync steps run at once in one worker; more of them wait.
_THREADS = 32

_pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="perdure-step")


class BlockingContext:
    """A context as a sync function sees it: what must be awaited elsewhere blocks here."""

    def __init__(self, context: object, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._context, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(
                _await(found, args, kwargs), self._loop
            ).result()

        return call


async def _await(found: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    result = found(*args, **kwargs)
    return await result if isawaitable(result) else result


async def call_off_loop(
    function: Callable[..., Any],
    context: object,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a sync function in a thread; the thread cannot be stopped, only left behind."""
    loop = asyncio.get_running_loop()
    blocking = BlockingContext(context, loop)
    variables = contextvars.copy_context()

    def call() -> Any:
        return variables.run(function, blocking, *args, **kwargs)

    return await loop.run_in_executor(_pool, call)
