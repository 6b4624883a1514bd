"""`run`: from a plain program into a process, and back."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from typing import Any

from perdure.base.settings import Settings
from perdure.process.birth import Function, Options, check_function, give_birth
from perdure.process.death import freeze
from perdure.process.eager_loop import new_loop
from perdure.process.event import ExitResult
from perdure.process.runtime import Runtime

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def run(
    main: Function,
    *args: Any,
    settings: Settings | None = None,
    loop_factory: LoopFactory | None = None,
) -> Any:
    """Run `main` as the root process, and give its value or raise what it raised.

    When it has ended, every process that is left gets CANCEL and is killed after
    `settings.stop_timeout`.
    SIGINT and SIGTERM end the root process in the same polite way, a second one kills:
    if the root reads its events it gets CANCEL, otherwise its code is interrupted.

    Args:
        main: An `async def` function.
        *args: Its arguments.
        settings: The bounds of the runtime.
        loop_factory: Makes the asyncio loop; the usual one by default.

    Raises:
        KeyboardInterrupt: SIGINT ended the program.
        SystemExit: SIGTERM ended the program; the code is 143.
    """
    return run_in(Runtime(settings), main, args, loop_factory)


def run_in(
    runtime: Runtime,
    main: Function,
    args: tuple[Any, ...],
    loop_factory: LoopFactory | None = None,
) -> Any:
    """Run `main` as the root process of a given runtime."""
    check_function(main, "run")
    _check_no_loop(main)
    loop = (loop_factory or new_loop)()
    try:
        outcome = loop.run_until_complete(_serve(runtime, main, args))
    finally:
        close_loop(loop, runtime.settings.abandon_after)
    if outcome.error is None:
        return outcome.value
    if runtime.received and runtime.received[0] is signal.SIGINT:
        raise KeyboardInterrupt
    if runtime.received:
        raise SystemExit(128 + runtime.received[0])
    raise outcome.error


def _check_no_loop(main: Function) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if main.__module__ == "__mp_main__":  # an OS worker imports the main module
        raise RuntimeError(
            "a worker imports this file too: "
            'put perdure.run() under `if __name__ == "__main__":`, so that it runs only once'
        )
    raise RuntimeError(
        "perdure.run() makes a loop of its own and cannot be called in a running event loop: "
        "use `async with perdure.Runtime():` there, or process.spawn() if this is a process"
    )


def close_loop(loop: asyncio.AbstractEventLoop, patience: float) -> None:
    """Close a loop as `asyncio.run` does, but do not wait for ever for tasks that refuse to end."""
    try:
        loop.run_until_complete(_end_tasks(patience))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


async def _end_tasks(patience: float) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        done, refusing = await asyncio.wait(tasks, timeout=patience)
        for task in done:
            if not task.cancelled():
                task.exception()  # nobody is left to ask for it
        for task in refusing:
            freeze(task)


async def _serve(runtime: Runtime, main: Function, args: tuple[Any, ...]) -> ExitResult:
    runtime.open(asyncio.get_running_loop())
    try:
        with _signals(runtime):
            root = give_birth(runtime, None, main, args, Options())
            runtime.root = root
            await runtime.wait_for(root)
            await runtime.stop()
    finally:
        runtime.close()
    assert root.outcome is not None
    return root.outcome


@contextlib.contextmanager
def _signals(runtime: Runtime) -> Generator[None, None, None]:
    """Stop in order on SIGINT and SIGTERM, where this thread may handle signals at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    for number in numbers:
        with contextlib.suppress(NotImplementedError):  # not every loop can
            runtime.loop.add_signal_handler(number, runtime.on_signal, number)
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            with contextlib.suppress(NotImplementedError):
                runtime.loop.remove_signal_handler(number)
            signal.signal(number, handler or signal.SIG_DFL)
