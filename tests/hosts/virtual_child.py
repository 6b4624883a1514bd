"""A child OS process in virtual time, in which the bodies of tests run one after another."""

import asyncio
import functools
import importlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import perdure
from perdure.base.settings import Settings
from perdure.process.birth import Options, give_birth
from perdure.process.current import current
from perdure.process.hosts import child
from perdure.process.hosts.first_node import first_node_of
from perdure.process.hosts.launch import OsLaunch
from perdure.process.hosts.os_worker import OsWorker
from perdure.process.hosts.staff import Limits
from perdure.process.hosts.worker import Plan
from perdure.process.runtime import Runtime
from perdure.process.signal import stop_politely
from perdure.process.spawner import joined
from perdure.testing.clock import VirtualLoop
from perdure.testing.simulation import Leak

_PATIENCE = 15.0


class _Worker(OsWorker):
    entry = "tests.hosts.virtual_child"


class VirtualProgram:
    """A program with one OS worker in virtual time."""

    def __init__(self) -> None:
        self._began: Future[asyncio.AbstractEventLoop] = Future()
        threading.Thread(target=self._run, daemon=True).start()
        self._loop = self._began.result(_PATIENCE)

    def _run(self) -> None:
        perdure.run(self._main)

    async def _main(self) -> None:
        me = current()
        self._jobs: asyncio.Queue[Any] = asyncio.Queue()
        limits = Limits(1, None, dedicated=False, max_restarts=1000, max_seconds=1)
        launch = _Launch(first_node_of(me.runtime), Plan("worker", 65_536, None, None), limits)
        launch.begin()
        await launch.all_ready()
        self._began.set_result(me.loop)
        while True:
            call, done = await self._jobs.get()
            try:
                done.set_result(await _on_worker(launch, call))
            except BaseException as error:  # noqa: BLE001 - raised in the test
                done.set_exception(error)

    def run(
        self, call: tuple[Any, ...], seed: int | None, settings: Settings | None, patience: float
    ) -> Any:
        """Run the body of a test in the child; raise what it raises."""
        done: Future[Any] = Future()
        job = ((*call, seed, settings, patience), done)
        self._loop.call_soon_threadsafe(self._jobs.put_nowait, job)
        return done.result(_PATIENCE)


async def _on_worker(launch: OsLaunch, call: Any) -> Any:
    stand_in = launch.birth(None, be_a_test, call, Options(), None)
    await joined(stand_in)
    assert stand_in.outcome is not None
    if stand_in.outcome.error is not None:
        raise stand_in.outcome.error
    return stand_in.outcome.value


class _Launch(OsLaunch):
    def _hire(self, label: str, on_ready: Any, on_down: Any) -> OsWorker:
        return _Worker(self.node, self._plan, label, on_ready, on_down)


# In the child


def main(fd: int) -> None:
    """Be the child: an ordinary worker, but for its loop and its clock."""
    child.main(fd, VirtualLoop, _runtime_on)


def _runtime_on(loop: asyncio.AbstractEventLoop) -> Runtime:
    assert isinstance(loop, VirtualLoop)
    return Runtime(clock=loop.clock)


async def be_a_test(  # noqa: PLR0913, PLR0917 - what `simulate` takes
    module: str,
    name: str,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    seed: int | None,
    settings: Settings | None,
    patience: float,
) -> None:
    """Set the stage, run the body of a test, and look whether it left anything."""
    me = current()
    loop: Any = me.loop
    runtime, before = me.runtime, me.runtime.settings
    known = set(runtime.processes)
    del runtime.processes[me.pid]  # a stagehand is not seen
    _set_stage(runtime, loop, seed, settings, patience)
    body = functools.partial(_body(module, name), *args, **keywords)
    root = runtime.root = give_birth(runtime, None, body, (), Options())
    try:
        await joined(root)
        await _end_what_is_left(runtime, known)
    finally:
        runtime.root = None
        runtime.processes[me.pid] = me
        _set_stage(runtime, loop, None, before, 0.0)
    assert root.outcome is not None
    if root.outcome.error is not None:
        raise root.outcome.error
    runtime.deadlines.close()  # as the end of a runtime does
    timers = [handle for handle in loop._scheduled if not handle.cancelled()]  # noqa: SLF001
    if timers:
        raise Leak(f"left behind: timers {timers}")


def _set_stage(
    runtime: Runtime, loop: Any, seed: int | None, settings: Settings | None, patience: float
) -> None:
    if seed is not None and settings is None:
        settings = Settings(turn_steps=1)
    loop.clock.advance(-loop.clock.monotonic())  # nothing is armed: each test begins at zero
    fresh: Any = VirtualLoop(seed=seed)
    loop._random = fresh._random  # noqa: SLF001
    fresh.close()
    loop._selector._patience = patience  # noqa: SLF001
    runtime.use(settings or Settings())
    scheduler: Any = runtime.scheduler
    scheduler._shuffle = loop.shuffle if seed is not None else None  # noqa: SLF001


def _body(module: str, name: str) -> Callable[..., Any]:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return getattr(found, "__wrapped__", found)


async def _end_what_is_left(runtime: Runtime, known: set[Any]) -> None:
    """End what the body left behind, as the end of a program does."""
    for pid, left in tuple(runtime.processes.items()):
        if pid not in known and pid.target is not None:
            stop_politely(left, runtime.settings.stop_timeout)
    for pid, left in tuple(runtime.processes.items()):
        if pid not in known:
            await joined(left)
