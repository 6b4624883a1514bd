"""The runtime: all processes of one loop, from the root process to the last one stopped.

`run` creates a loop; `async with Runtime()` uses a loop that runs already, and makes the running
task the root process. Both use a `LoopRuntime`, which is what the kernel knows about one loop.

A stop goes from the top: first those whose parent is gone, then those that they leave behind. So
a supervisor stops its children in its own order, and only orphans are stopped from here.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Token
from types import GeneratorType, TracebackType
from typing import Any, Self, TypeVar

from perdure.base.clock import Clock, SystemClock
from perdure.base.errors import NotInProcess, Shutdown, SpawnError
from perdure.base.pid import Pid
from perdure.base.settings import Settings
from perdure.process.event import ExitResult
from perdure.process.lifecycle import (
    cancel,
    check_function,
    finish,
    keep_forever,
    kill,
    own_task,
    spawn_process,
    stop_gracefully,
)
from perdure.process.loop import new_loop, set_spin_time
from perdure.process.loop_watch import INLINE, ProcessWatch
from perdure.process.names import Names
from perdure.process.process import (
    Function,
    Host,
    MailboxBound,
    NodePort,
    Process,
    RemoteProcess,
    SpawnOptions,
    SpawnTarget,
)
from perdure.process.request import Deadlines
from perdure.process.scheduler import Scheduler, Shuffle
from perdure.process.waiter import CURRENT, RUNNING, WAITING

T = TypeVar("T")
Inner = Callable[..., "asyncio.Future[Any]"]

_ECHO = 0.05  # seconds within which the same signal is an echo: no person is that quick


LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def run(
    main: Function,
    *args: Any,
    settings: Settings | None = None,
    loop_factory: LoopFactory | None = None,
) -> Any:
    """Run `main` as the root process, and return its value or raise what it raised.

    When it has ended, every process that is left gets CANCEL and is killed after
    `settings.stop_timeout`.
    SIGINT and SIGTERM stop the root process in the same way: if it reads its events it gets
    CANCEL, otherwise its code is interrupted. A second signal kills.

    Args:
        main: An `async def` function.
        *args: Its arguments.
        settings: The settings of the runtime.
        loop_factory: Makes the asyncio loop; the usual one by default.

    Raises:
        KeyboardInterrupt: SIGINT ended the program.
        SystemExit: SIGTERM ended the program; the code is 143.
    """
    return run_in(LoopRuntime(settings), main, args, loop_factory)


def run_in(
    runtime: "LoopRuntime",
    main: Function,
    args: tuple[Any, ...],
    loop_factory: LoopFactory | None = None,
) -> Any:
    """Run `main` as the root process of a given runtime."""
    check_function(main, "run")
    check_no_loop("perdure.run()", _IN_A_LOOP, main.__module__)
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


_IN_A_LOOP = (
    "use `async with perdure.process.Runtime():` there, or process.spawn() if this is a process"
)


def check_no_loop(what: str, instead: str, module: str = "") -> None:
    """Check that no loop runs here yet.

    Args:
        what: What makes a loop of its own, for the message.
        instead: What to write where a loop runs.
        module: Where the function that is to be run was defined.

    Raises:
        RuntimeError: One does; the message says what to write.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if module == "__mp_main__":  # an OS worker imports the main module
        raise RuntimeError(
            "a worker imports this file too: "
            f'put {what} under `if __name__ == "__main__":`, so that it runs only once'
        )
    raise RuntimeError(
        f"{what} makes a loop of its own and cannot be called in a running event loop: {instead}"
    )


def close_loop(loop: asyncio.AbstractEventLoop, timeout: float) -> None:
    """Close a loop as `asyncio.run` does, but limit the wait for tasks that do not end."""
    try:
        loop.run_until_complete(_end_tasks(timeout))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


async def _end_tasks(timeout: float) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        done, refusing = await asyncio.wait(tasks, timeout=timeout)
        for task in done:
            if not task.cancelled():
                task.exception()  # nobody is left to ask for it
        for task in refusing:
            keep_forever(task)


async def _serve(runtime: "LoopRuntime", main: Function, args: tuple[Any, ...]) -> ExitResult:
    runtime.open(asyncio.get_running_loop())
    runtime.start_watch()
    try:
        with _signals(runtime):
            root = spawn_process(runtime, None, main, args, SpawnOptions())
            runtime.root = root
            await runtime.wait_for(root)
            await runtime.stop()
    finally:
        runtime.close()
    assert root.outcome is not None
    return root.outcome


@contextlib.contextmanager
def _signals(runtime: "LoopRuntime") -> Generator[None, None, None]:
    """Shut down gracefully on SIGINT and SIGTERM, if this thread may handle signals."""
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


class Runtime:
    """The processes of an asyncio loop that runs already.

    `async with Runtime():` makes the running task the root process.
    At the end every process that is left is asked to end, and killed after `stop_timeout`.
    A program that has no loop yet uses `perdure.run`.
    """

    def __init__(self, settings: Settings | None = None, *, clock: Clock | None = None) -> None:
        """Start nothing yet.

        Args:
            settings: The settings of the runtime.
            clock: Measures the age of processes, and gives the wall time to the layers above.
        """
        self._runtime = LoopRuntime(settings, clock=clock)
        self._token: Token[Process] | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise NotInProcess("Runtime()")
        if CURRENT.get(None) is not None and CURRENT.get().pid.target is not None:
            raise RuntimeError("this code already runs in a process: do not open a second Runtime")
        runtime = self._runtime
        runtime.open(asyncio.get_running_loop())
        runtime.start_watch()
        runtime.root = AdoptedProcess(runtime, task)
        runtime.processes[runtime.root.pid] = runtime.root
        self._token = CURRENT.set(runtime.root)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:  # a bare bool tells type checkers that names of the body may be unbound
        runtime, root = self._runtime, self._runtime.root
        assert isinstance(root, AdoptedProcess)
        assert self._token is not None
        forced = root.outcome
        if root.pid.target is not None:  # not abandoned meanwhile
            finish(root, None, error)
        CURRENT.reset(self._token)
        try:
            await runtime.wait_for(root)
            await runtime.stop()
        finally:
            runtime.close()
        if forced is None or not root.absorb(error):
            return False
        if forced.error is not None:
            raise forced.error
        return True  # it ended itself, normally


class LoopRuntime:
    """What the kernel knows about one loop: its processes, its scheduler, its hosts.

    The kernel's own; users have `run` and `Runtime`.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        shuffle: Shuffle | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.mailbox_bound = MailboxBound(self.settings.mailbox_limit, self.settings.overflow)
        self._shuffle = shuffle
        self.clock = clock or SystemClock()
        self.now = self.clock.monotonic  # by which the age of a process is measured
        self.host_name = INLINE
        self.processes: dict[Pid, Process] = {}
        self.names: Names[Process] = Names()
        self.spawn_ids: dict[str, SpawnTarget] = {}
        self.root: Process | None = None
        self.watch: ProcessWatch | None = None  # names processes that hold up their loop
        self.process_class: type[Process] = Process
        self.hosts: dict[str, Host] = {}  # those that run
        self.node: NodePort | None = None  # its boundary to other loops, if there are any
        self._owned: dict[Callable[[], Any], Any] = {}
        self.stop_reason = Shutdown("the runtime stops")
        self._closers: list[Callable[[], None]] = []
        self.exit_waiters: list[asyncio.Future[None]] = []
        self.received: list[signal.Signals] = []  # those that asked the program to stop
        self._last_signal: tuple[signal.Signals, float] | None = None

    def use(self, settings: Settings) -> None:
        """Use other settings for processes that are started from now on."""
        self.settings = settings
        self.mailbox_bound = MailboxBound(settings.mailbox_limit, settings.overflow)
        self.scheduler = Scheduler(self.loop, settings, finish, self._shuffle)
        set_spin_time(self.loop, settings.busy_wait)

    # What processes ask of it

    def host_of(self, name: str) -> Host | None:
        """Return a running host; None for the running loop itself.

        Raises:
            SpawnError: There is none of that name.
        """
        if name == INLINE:
            return None
        host = self.hosts.get(name)
        if host is None:
            known = ", ".join(map(repr, (INLINE, *self.hosts)))
            raise SpawnError(f"unknown host {name!r}: the running hosts are {known}")
        return host

    def own(self, kind: Callable[[], T]) -> T:
        """Return the runtime's single object of a class from a higher layer, made on first use."""
        if kind not in self._owned:
            self._owned[kind] = kind()
        return self._owned[kind]

    def wake_exit_waiters(self) -> None:
        """Wake everybody who waits for processes to end."""
        waiters, self.exit_waiters = self.exit_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Start and end

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start using a loop."""
        self.loop = loop
        self.scheduler = Scheduler(loop, self.settings, finish, self._shuffle)
        set_spin_time(loop, self.settings.busy_wait)
        self.deadlines = Deadlines(loop)
        install(loop)

    def start_watch(self) -> None:
        """Watch the loop from a thread; not in virtual time."""
        if isinstance(self.clock, SystemClock):
            self.watch = ProcessWatch()
            self.watch.add(self)
            self.watch.start()
            self.at_close(self.watch.stop)

    def end_watch(self) -> None:
        """Name no process that holds up its loop: somebody else does, who knows more."""
        if self.watch is not None:
            self.watch.remove(self)

    def at_close(self, closer: Callable[[], None]) -> None:
        """Call a function when the runtime is closed."""
        self._closers.append(closer)

    def close(self) -> None:
        """End, and leave the loop as it was."""
        self.deadlines.close()
        uninstall(self.loop)
        for closer in self._closers:
            closer()

    async def stop(self, timeout: float | None = None, *, interrupt: bool = True) -> None:
        """End all processes: those without a living parent first, then the orphans they leave.

        Each gets CANCEL, and is killed after the timeout. With `interrupt`, one that does not
        read its events is interrupted at once, since nobody would read its CANCEL.
        """
        limit = self.loop.time() + (self.settings.stop_timeout if timeout is None else timeout)
        asked: set[Pid] = set()
        try:
            while self.processes:
                for process in self._orphans(asked):
                    asked.add(process.pid)
                    left = max(0.0, limit - self.loop.time())
                    if interrupt:
                        stop_gracefully(process, left)
                    else:
                        cancel(process, None, left, self.stop_reason.detail)
                await self._new_orphans(asked)
        except BaseException:  # the wait for the end was interrupted: kill
            self.kill_all()
            while self.processes:
                await self._next_exit()
            raise

    def _orphans(self, asked: set[Pid]) -> list[Process]:
        """Return the processes to stop now, youngest first: they have no parent to stop them."""
        return [
            process
            for process in reversed(self.processes.values())
            if process.pid not in asked
            and (process.parent is None or self._is_gone(process.parent))
        ]

    async def _new_orphans(self, asked: set[Pid]) -> None:
        """Wait until there may be new orphans: a parent has died, or a child was spawned.

        Looking through all processes at each death would be quadratic in their number.
        """
        known = set(self.processes)
        parents = {self.processes[pid].parent for pid in known - asked}
        while self.processes:
            await self._next_exit()
            youngest = next(reversed(self.processes), None)
            if youngest not in known or any(self._is_gone(parent) for parent in parents if parent):
                return

    def _is_gone(self, parent: Pid) -> bool:
        """Whether a parent cannot stop its children: it is dead, or lives elsewhere."""
        target: Process | None = parent.target
        remote = isinstance(target, RemoteProcess)
        return target is None or remote or target.runtime is not self

    def kill_all(self) -> None:
        """Kill every process."""
        for process in tuple(self.processes.values()):
            kill(process, self.stop_reason.detail)

    async def wait_for(self, process: Process) -> None:
        """Wait until a process is dead.

        By a callback of its own, and not by `exit_waiters`, which every death wakes.
        """
        if process.done():
            return
        ended: asyncio.Future[None] = self.loop.create_future()

        def on_end(_: object) -> None:
            if not ended.done():
                ended.set_result(None)

        process.add_done_callback(on_end)
        await ended

    async def _next_exit(self) -> None:
        waiter = self.loop.create_future()
        self.exit_waiters.append(waiter)
        await waiter

    def on_signal(self, number: signal.Signals) -> None:
        """Handle a signal that asks the program to stop."""
        if self.is_new_signal(number):
            self.interrupted(number)

    def is_new_signal(self, number: signal.Signals) -> bool:
        """Whether a signal is new: `timeout` sends one to a program, and again to its group."""
        now, last = self.loop.time(), self._last_signal
        self._last_signal = (number, now)
        return last is None or last[0] is not number or now - last[1] > _ECHO

    def interrupted(self, number: signal.Signals) -> None:
        """Shut down gracefully, since the user or the system asks for it; kill the second time."""
        self.received.append(number)
        if len(self.received) > 1:
            self.kill_all()
        elif self.root is not None and self.root.pid.target is not None:
            stop_gracefully(self.root, self.settings.stop_timeout)


class AdoptedProcess(Process):
    """An asyncio task that is the root process while it is inside `async with Runtime()`.

    asyncio keeps driving it; the kernel only gives it an identity, a mailbox and relations.
    """

    __slots__ = ("_interrupts", "task")

    def __init__(self, runtime: LoopRuntime, task: asyncio.Task[Any]) -> None:
        coro: Any = task.get_coro()
        super().__init__(runtime, _adopted, (), coro, None, {})
        self.task = task
        self.state = WAITING
        self._interrupts = 0

    def runs_now(self) -> bool:
        return asyncio.current_task() is self.task

    def interrupt(self) -> None:
        self._interrupts += 1
        self.task.cancel()

    def absorb(self, error: BaseException | None) -> bool:
        """Take back our own interrupts; return whether nobody else has cancelled the task.

        If somebody else has, that cancellation must propagate.
        """
        remaining = 0
        for _ in range(self._interrupts):
            remaining = self.task.uncancel()
        return remaining == 0 or not isinstance(error, asyncio.CancelledError)


async def _adopted() -> None:
    """Represent the code of an adopted task in listings."""


class TaskFactory:
    """The task factory of a loop: a task that a process starts belongs to that process.

    The runtimes on a loop share one.
    """

    def __init__(self, inner: Inner | None) -> None:
        self.inner = inner
        self.users = 0

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> "asyncio.Future[Any]":
        context = options.get("context")
        owner = CURRENT.get(None) if context is None else context.get(CURRENT)
        if _is_generator(coro):  # a wait of the kernel, which asyncio does not take for a coroutine
            coro = _awaited(coro)
        if self.inner is None:
            task = asyncio.Task(coro, loop=loop, **options)
        else:
            task = self._by_inner(owner, loop, coro, options)
        if owner is not None and owner.pid.target is not None:
            own_task(owner, task)  # pyright: ignore[reportArgumentType]
        return task

    def _by_inner(
        self,
        owner: "Process | None",
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any],
        options: dict[str, Any],
    ) -> "asyncio.Future[Any]":
        assert self.inner is not None
        if owner is None or owner.state != RUNNING:
            return self.inner(loop, coro, **options)
        # An eager factory runs the task right here: meanwhile it is not the process that runs.
        owner.state = WAITING
        try:
            return self.inner(loop, coro, **options)
        finally:
            owner.state = RUNNING


def _is_generator(given: object) -> bool:
    return isinstance(given, GeneratorType)


async def _awaited(wait: Awaitable[T]) -> T:
    return await wait


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Let the asyncio tasks of a loop belong to the processes that start them."""
    factory = loop.get_task_factory()
    if not isinstance(factory, TaskFactory):
        factory = TaskFactory(factory)
        loop.set_task_factory(factory)  # pyright: ignore[reportArgumentType]
    factory.users += 1


def uninstall(loop: asyncio.AbstractEventLoop) -> None:
    """Leave the loop as it was, when the last runtime leaves it."""
    factory = loop.get_task_factory()
    if isinstance(factory, TaskFactory):
        factory.users -= 1
        if factory.users == 0:
            loop.set_task_factory(factory.inner)
