"""The runtime: all processes of one program, from the root process to the last one stopped."""

import asyncio
import signal
from collections.abc import Callable
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from perdure.base.clock import Clock, SystemClock
from perdure.base.errors import NotInProcess, Shutdown, SpawnError
from perdure.base.pid import Pid
from perdure.base.settings import Settings
from perdure.process import factory
from perdure.process.current import CURRENT
from perdure.process.death import finish, kill
from perdure.process.eager_loop import tune
from perdure.process.entry import Entry
from perdure.process.mailbox import Bound
from perdure.process.names import Names
from perdure.process.process import Process
from perdure.process.reach import Elsewhere
from perdure.process.request import Deadlines
from perdure.process.root import AdoptedProcess
from perdure.process.scheduler import Scheduler, Shuffle
from perdure.process.signal import stop_politely

if TYPE_CHECKING:
    from perdure.process.birth import Function, Options

INLINE = "inline"
_ECHO = 0.05  # seconds: sooner than a person can ask twice

T = TypeVar("T")


class Host(Protocol):
    """Where processes run that do not run on this loop."""

    def birth(
        self,
        runtime: "Runtime",
        parent: Process | None,
        function: "Function",
        args: tuple[Any, ...],
        options: "Options",
    ) -> Process:
        """Start a process there; give what stands in for it here."""
        ...


class Node(Protocol):
    """The border of a runtime to other loops."""

    stand_ins: dict[Pid, Any]

    def stand_in(self, pid: Pid) -> Process | None:
        """Give what stands in here for a process that runs elsewhere."""
        ...


class Runtime:
    """All processes of one asyncio loop.

    `async with Runtime():` makes the running task the root process, for programs that already
    have a loop; `perdure.run(main)` makes the loop too.
    At the end everything that is left is asked to end, and killed after `stop_timeout`.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        shuffle: Shuffle | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.bound = Bound(self.settings.mailbox_limit, self.settings.overflow)
        self._shuffle = shuffle
        self.clock = clock or SystemClock()
        self.now = self.clock.monotonic  # by which the age of a process is measured
        self.host_name = INLINE
        self.processes: dict[Pid, Process] = {}
        self.names = Names()
        self.entries: dict[str, Entry] = {}  # what can be spawned by an id
        self.root: Process | None = None
        self.kind: type[Process] = Process  # of those that are born here
        self.hosts: dict[str, Host] = {}  # that run, by their names
        self.node: Node | None = None  # its border to other loops, if there is any
        self._owned: dict[Callable[[], Any], Any] = {}
        self.stopping = Shutdown("the runtime stops")
        self._closers: list[Callable[[], None]] = []
        self.burials: list[asyncio.Future[None]] = []
        self.received: list[signal.Signals] = []  # that ask the program to stop
        self._last_signal: tuple[signal.Signals, float] | None = None
        self._token: Token[Process] | None = None

    def use(self, settings: Settings) -> None:
        """Have other bounds from now on, for processes that are still to be born."""
        self.settings = settings
        self.bound = Bound(settings.mailbox_limit, settings.overflow)
        self.scheduler = Scheduler(self.loop, settings, self._shuffle)
        tune(self.loop, settings.busy_wait)

    # What processes ask of it

    def host_of(self, name: str) -> "Host | None":
        """Give a host that runs; None for the running loop itself.

        Raises:
            SpawnError: There is none of that name.
        """
        if name == INLINE:
            return None
        host = self.hosts.get(name)
        if host is None:
            known = ", ".join(map(repr, (INLINE, *self.hosts)))
            raise SpawnError(f"unknown host {name!r}: those that run here are {known}")
        return host

    def own(self, kind: Callable[[], T]) -> T:
        """Give the one object of a class that a layer above keeps here, made when first needed."""
        if kind not in self._owned:
            self._owned[kind] = kind()
        return self._owned[kind]

    def tell_of_burial(self) -> None:
        """Wake who waits for processes to be gone."""
        burials, self.burials = self.burials, []
        for burial in burials:
            if not burial.done():
                burial.set_result(None)

    # Begin and end

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Move in on a loop."""
        self.loop = loop
        self.scheduler = Scheduler(loop, self.settings, self._shuffle)
        tune(loop, self.settings.busy_wait)
        self.deadlines = Deadlines(loop)
        factory.install(loop)

    def at_close(self, closer: Callable[[], None]) -> None:
        """Call something when the runtime has moved out."""
        self._closers.append(closer)

    def close(self) -> None:
        """Move out, and leave the loop as it was."""
        self.deadlines.close()
        factory.uninstall(self.loop)
        for closer in self._closers:
            closer()

    async def stop(self, timeout: float | None = None) -> None:
        """End all processes: those without a living parent first, then those they leave."""
        limit = self.loop.time() + (self.settings.stop_timeout if timeout is None else timeout)
        asked: set[Pid] = set()
        try:
            while self.processes:
                for process in self._orphans(asked):
                    asked.add(process.pid)
                    stop_politely(process, max(0.0, limit - self.loop.time()))
                await self._new_orphans(asked)
        except BaseException:  # whoever waits for the end was interrupted: no more patience
            self.kill_all()
            while self.processes:
                await self._next_burial()
            raise

    def _orphans(self, asked: set[Pid]) -> list[Process]:
        """Give those to be stopped now, youngest first: nobody above them will do it."""
        return [
            process
            for process in reversed(self.processes.values())
            if process.pid not in asked
            and (process.parent is None or self._is_gone(process.parent))
        ]

    async def _new_orphans(self, asked: set[Pid]) -> None:
        """Wait until there may be some: a parent has died, or a child was born.

        To look through all processes at each of their deaths would be too dear if they are many.
        """
        known = set(self.processes)
        parents = {self.processes[pid].parent for pid in known - asked}
        while self.processes:
            await self._next_burial()
            youngest = next(reversed(self.processes), None)
            if youngest not in known or any(self._is_gone(parent) for parent in parents if parent):
                return

    def _is_gone(self, parent: Pid) -> bool:
        """Tell whether a parent cannot stop its children: it is dead, or lives elsewhere."""
        target: Process | None = parent.target
        elsewhere = isinstance(target, Elsewhere)  # in another OS process
        return target is None or elsewhere or target.runtime is not self

    def kill_all(self) -> None:
        """Kill every process."""
        for process in tuple(self.processes.values()):
            kill(process, self.stopping.detail)

    async def wait_for(self, process: Process) -> None:
        """Wait until a process is buried."""
        while process.pid.target is not None:
            await self._next_burial()

    async def _next_burial(self) -> None:
        burial = self.loop.create_future()
        self.burials.append(burial)
        await burial

    def on_signal(self, number: signal.Signals) -> None:
        """Obey a signal that asks the program to stop."""
        if self.hears(number):
            self.interrupted(number)

    def hears(self, number: signal.Signals) -> bool:
        """Tell whether a signal is a new one: `timeout` sends one to a program and to its group."""
        now, last = self.loop.time(), self._last_signal
        self._last_signal = (number, now)
        return last is None or last[0] is not number or now - last[1] > _ECHO

    def interrupted(self, number: signal.Signals) -> None:
        """Stop in order, because the user or the system asks for it; the second time at once."""
        self.received.append(number)
        if len(self.received) > 1:
            self.kill_all()
        elif self.root is not None and self.root.pid.target is not None:
            stop_politely(self.root, self.settings.stop_timeout)

    # The running task as root process

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise NotInProcess("Runtime()")
        if CURRENT.get(None) is not None and CURRENT.get().pid.target is not None:
            raise RuntimeError("this code already runs in a process: it needs no second Runtime")
        self.open(asyncio.get_running_loop())
        self.root = AdoptedProcess(self, task)
        self.processes[self.root.pid] = self.root
        self._token = CURRENT.set(self.root)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:  # a bare bool tells type checkers that names of the body may be unbound
        root = self.root
        assert isinstance(root, AdoptedProcess)
        assert self._token is not None
        condemned = root.outcome
        if root.pid.target is not None:  # not abandoned meanwhile
            finish(root, None, error)
        CURRENT.reset(self._token)
        try:
            await self.wait_for(root)
            await self.stop()
        finally:
            self.close()
        if condemned is None or not root.absorb(error):
            return False
        if condemned.error is not None:
            raise condemned.error
        return True  # it ended itself, normally
