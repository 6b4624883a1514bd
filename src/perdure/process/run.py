"""`run`: from a plain program into a process, and back."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from perdure.base.settings import Settings
from perdure.process.birth import Function, Options, check_function, give_birth
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
    check_function(main)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        received, outcome = runner.run(_serve(runtime, main, args))
    if outcome.error is None:
        return outcome.value
    if received == [signal.SIGINT]:
        raise KeyboardInterrupt
    if received:
        raise SystemExit(128 + received[0])
    raise outcome.error


async def _serve(
    runtime: Runtime, main: Function, args: tuple[Any, ...]
) -> tuple[list[signal.Signals], ExitResult]:
    runtime.open(asyncio.get_running_loop())
    try:
        with _signals(runtime) as received:
            root = give_birth(runtime, None, main, args, Options())
            runtime.root = root
            await runtime.wait_for(root)
            await runtime.stop()
    finally:
        runtime.close()
    assert root.outcome is not None
    return received, root.outcome


@contextlib.contextmanager
def _signals(runtime: Runtime) -> Iterator[list[signal.Signals]]:
    """Stop in order on SIGINT and SIGTERM, where this thread may handle signals at all."""
    received: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def stop(number: signal.Signals) -> None:
        received.append(number)
        runtime.interrupted()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    for number in numbers:
        with contextlib.suppress(NotImplementedError):  # not every loop can
            runtime.loop.add_signal_handler(number, stop, number)
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            with contextlib.suppress(NotImplementedError):
                runtime.loop.remove_signal_handler(number)
            signal.signal(number, handler or signal.SIG_DFL)
