"""A child OS process in virtual time, in which the bodies of tests run one after another."""

import asyncio
import importlib
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import hypothesis
from _pytest.mark.structures import ParameterSet

import perdure
from perdure import testing
from perdure.base.settings import Settings
from perdure.process import offload
from perdure.process.api import wait_exit
from perdure.process.hosts import child
from perdure.process.hosts.host import OsHost
from perdure.process.hosts.root_node import root_node_of
from perdure.process.hosts.workers import HostLimits, OsWorker, WorkerOptions
from perdure.process.lifecycle import PLAIN, spawn_process, stop_gracefully
from perdure.process.process import Process, SpawnOptions, current
from perdure.process.runtime import LoopRuntime
from perdure.testing import simulation
from perdure.testing.clock import Deadlock, VirtualLoop
from perdure.testing.simulation import Leak

_PATIENCE = 280.0  # less than the longest test may take; others end by their own limit


class _Worker(OsWorker):
    entry = "tests.support.virtual_child"


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
        limits = HostLimits(1, None, dedicated=False, max_restarts=1000, max_seconds=1)
        host = _Host(root_node_of(me.runtime), WorkerOptions("worker", 65_536, None, None), limits)
        host.start()
        await host.all_ready()
        self._began.set_result(me.loop)
        while True:
            call, done = await self._jobs.get()
            try:
                done.set_result(await _on_worker(me, host, call))
            except BaseException as error:  # noqa: BLE001 - raised in the test
                done.set_exception(error)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function of this module as a process in the child; raise what it raises."""
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._jobs.put_nowait, ((function, args), done))
        return done.result(_PATIENCE)


async def _on_worker(
    me: Process, host: OsHost, call: tuple[Callable[..., Any], tuple[Any, ...]]
) -> Any:
    proxy = host.spawn(me.runtime, None, *call, SpawnOptions())
    await wait_exit(proxy)
    assert proxy.outcome is not None
    if proxy.outcome.error is not None:
        raise proxy.outcome.error
    return proxy.outcome.value


class _Host(OsHost):
    def _new_worker(self, label: str, on_ready: Any, on_down: Any) -> OsWorker:
        return _Worker(self._node, self._options, label, on_ready, on_down)


# In the child


def main(fd: int) -> None:
    """Be the child: an ordinary worker, but for its loop and its clock."""
    child.main(fd, _patient_loop, _runtime_on)


def _patient_loop() -> VirtualLoop:
    """Make a loop that waits for the next test without a limit."""
    loop = VirtualLoop()
    selector: Any = getattr(loop, "_selector")  # noqa: B009
    jump: Callable[..., Any] = selector.select

    def select(timeout: float | None = None) -> Any:
        while True:
            try:
                return jump(timeout)
            except Deadlock:
                if _on_stage:
                    raise

    selector.select = select
    return loop


_on_stage: list[Process] = []  # the roots of what is performed now


def _runtime_on(loop: asyncio.AbstractEventLoop) -> LoopRuntime:
    assert isinstance(loop, VirtualLoop)
    return LoopRuntime(clock=loop.clock)


class Show(NamedTuple):
    """How `simulate` is to run something."""

    seed: int | None = None
    settings: Settings | None = None
    patience: float = 0.0


async def be_a_body(
    module: str, name: str, args: tuple[Any, ...], keywords: dict[str, Any], show: Show
) -> None:
    """Run the body of a simulated test."""
    test = _found(module, name)
    await _perform(partial(getattr(test, "__wrapped__", test), *args, **keywords), show)


async def be_a_test(
    module: str, name: str, keywords: dict[str, Any], places: dict[str, int]
) -> None:
    """Run a whole test, in a thread, and on this loop what it simulates."""
    hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None)
    hypothesis.settings.load_profile("ci")
    me = current()
    testing.simulate = simulation.simulate = partial(_simulate, _runtime(me))
    test = _found(module, name)
    keywords |= {each: parameters(test, each)[place] for each, place in places.items()}
    with _unseen(me):
        await offload(partial(test, **keywords))


def parameters(test: Any, name: str) -> list[Any]:
    """Give all values of a parameter of a test."""
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            told: Any = mark.args[0]
            names = [each.strip() for each in told.split(",")] if isinstance(told, str) else told
            if name in names:
                sets = [
                    ParameterSet.extract_from(each, force_tuple=len(names) == 1)
                    for each in mark.args[1]
                ]
                place = names.index(name)
                return [each.values[place] for each in sets]
    return []


def _simulate(runtime: LoopRuntime, main: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Take the place of `simulate`, in the thread of a test."""
    done: Future[Any] = Future()

    def begin() -> None:
        spawn_process(runtime, None, _tell_of, (done, partial(main, *args), Show(**options)), PLAIN)

    runtime.loop.call_soon_threadsafe(begin)
    return done.result(_PATIENCE)


async def _tell_of(done: "Future[Any]", body: Callable[..., Any], show: Show) -> None:
    try:
        done.set_result(await _perform(body, show))
    except BaseException as error:  # noqa: BLE001 - raised in the test
        done.set_exception(error)


def _runtime(process: Process) -> LoopRuntime:
    assert isinstance(process.runtime, LoopRuntime)
    return process.runtime


async def _perform(body: Callable[..., Any], show: Show) -> Any:
    """Set the stage, run a body as root process, and look whether it left anything."""
    me = current()
    loop: Any = me.loop
    runtime, before = _runtime(me), me.runtime.settings
    known = set(runtime.processes)
    with _unseen(me):
        _set_stage(runtime, loop, show)
        root = runtime.root = spawn_process(runtime, None, body, (), PLAIN)
        _on_stage.append(root)
        try:
            await wait_exit(root)
            await _end_what_is_left(runtime, known)
        finally:
            _on_stage.clear()
            runtime.root = None
            _set_stage(runtime, loop, Show(settings=before))
    assert root.outcome is not None
    if root.outcome.error is not None:
        raise root.outcome.error
    runtime.deadlines.close()  # as the end of a runtime does
    timers = [handle for handle in loop._scheduled if not handle.cancelled()]  # noqa: SLF001
    if timers:
        raise Leak(f"left behind: timers {timers}")
    return root.outcome.value


@contextmanager
def _unseen(stagehand: Process) -> Generator[None]:
    """Hide a process from the test."""
    processes = stagehand.runtime.processes
    del processes[stagehand.pid]
    try:
        yield
    finally:
        processes[stagehand.pid] = stagehand


def _set_stage(runtime: LoopRuntime, loop: Any, show: Show) -> None:
    seed, settings, patience = show
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


def _found(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


async def _end_what_is_left(runtime: LoopRuntime, known: set[Any]) -> None:
    """End what the body left behind, as the end of a program does."""
    for pid, left in tuple(runtime.processes.items()):
        if pid not in known and pid.target is not None:
            stop_gracefully(left, runtime.settings.stop_timeout)
    for pid, left in tuple(runtime.processes.items()):
        if pid not in known:
            await wait_exit(left)
