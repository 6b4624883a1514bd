"""Run a program in virtual time, and check afterwards that it left nothing behind."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from perdure.base.settings import Settings
from perdure.process.runtime import LoopRuntime, run_in
from perdure.testing.clock import VirtualLoop

P = ParamSpec("P")
T = TypeVar("T")


class Leak(AssertionError):
    """The program left timers or tasks behind."""


def simulate(
    main: Callable[..., Coroutine[Any, Any, T]],
    *args: Any,
    seed: int | None = None,
    settings: Settings | None = None,
    patience: float = 0.0,
) -> T:
    """Run `main` as the root process in virtual time.

    Args:
        main: An `async def` function.
        *args: Its arguments.
        seed: Shuffles the order in which ready processes and tasks run.
        settings: The settings of the runtime.
        patience: Real seconds to wait for I/O before time jumps.

    Raises:
        Leak: Timers or tasks are left at the end.
    """
    loop = VirtualLoop(patience=patience, seed=seed)
    if seed is not None and settings is None:
        settings = Settings(turn_steps=1)  # a new order after each step
    shuffle = loop.shuffle if seed is not None else None
    runtime = LoopRuntime(settings, clock=loop.clock, shuffle=shuffle)
    guarded = functools.partial(_checked, runtime, main)
    return run_in(runtime, guarded, args, lambda: loop)


async def _checked(runtime: LoopRuntime, main: Callable[..., Any], *args: Any) -> Any:
    """Run main; the check runs when the runtime has closed."""
    runtime.at_close(functools.partial(_check_nothing_left, runtime.loop))
    return await main(*args)


def _check_nothing_left(loop: asyncio.AbstractEventLoop) -> None:
    scheduled: Any = getattr(loop, "_scheduled", ())
    timers = [handle for handle in scheduled if not handle.cancelled()]
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    if timers or tasks:
        raise Leak(f"left behind: timers {timers}, tasks {sorted(map(repr, tasks))}")


@overload
def simulated(function: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]: ...


@overload
def simulated(
    *, seed: int | None = None, settings: Settings | None = None, patience: float = 0.0
) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, None]]: ...


def simulated(function: Any = None, **options: Any) -> Any:
    """Turn an `async def` function into a test that runs in `simulate`."""
    if function is None:
        return functools.partial(simulated, **options)

    @functools.wraps(function)
    def test(*args: Any, **kwargs: Any) -> None:
        simulate(functools.partial(function, *args, **kwargs), **options)

    return test
