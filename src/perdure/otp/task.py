"""Task: one piece of work in a process of its own, and its result.

    task = Task.create(fetch, url)
    ...
    page = await task

The result comes through a slot of the task, not through the owner's mailbox, exactly once.
A task is linked to its owner: who crashes takes the other along,
but if the owner is just waiting for the task, it gets the failure there.
"""

import asyncio
import functools
import inspect
import logging
import sys
import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from functools import partial
from types import CodeType, FrameType
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    final,
    overload,
)

from perdure.base import telemetry
from perdure.base.duration import Duration, seconds, spell
from perdure.base.errors import (
    Killed,
    NoProcess,
    NotOwner,
    Shutdown,
    TaskExit,
    TaskTimeout,
    is_normal,
    is_planned,
)
from perdure.base.pid import MonitorRef, Pid
from perdure.base.result import Exited, Ok
from perdure.otp.supervision.spec import BRUTAL_KILL, BrutalKill, ChildSpec, RestartWord, Shutdowns
from perdure.otp.supervision.spec import child as process_child
from perdure.process.death import kill
from perdure.process.event import ExitResult
from perdure.process.process import Process
from perdure.process.relations import LEFT, Bonds, reach, spread
from perdure.process.report import call_of
from perdure.process.signal import unlink
from perdure.process.spawn import Options, give_birth
from perdure.process.timer import sleep
from perdure.process.waiter import Waiter, current, current_waiter

# Who collects the result of a process: a task, or a stream.
#
# A collector is told of the end before links are,
# so that an owner who waits for exactly this takes the failure there and does not die of it.

Ended = Exited[BaseException | None]


class Started:
    """The collector of a process whose result nobody wants: it only knows the callers."""

    __slots__ = ("callers",)

    def __init__(self, callers: tuple[Pid, ...]) -> None:
        self.callers = callers

    def collect(self, process: Process, outcome: ExitResult) -> None:
        """Drop the result."""


def callers_of(process: Process) -> tuple[Pid, ...]:
    """Name those on whose behalf a process works: who made its task, who made theirs, and so on."""
    return () if process.collector is None else process.collector.callers


def result_of(outcome: ExitResult) -> Ok[Any] | Ended:
    """Give how a process ended as a result; only a return is a value."""
    if outcome.error is None and outcome is not LEFT:
        return Ok(outcome.value)
    return Exited(outcome.error)


def consume_link(owner: Process | None, process: Process) -> bool:
    """Take the failure of a linked process out of its link; tell whether there was one to take.

    A trapping owner keeps the link: it asked to be told by an event.
    """
    if owner is None or owner.trap_links or process.bonds is None:
        return False
    if owner not in (process.bonds.links or ()):
        return False
    _cut(owner, process)
    return True


def _cut(owner: Process, process: Process) -> None:
    if owner.bonds is not None:
        owner.bonds.drop_link(process)
    if process.bonds is not None:
        process.bonds.drop_link(owner)


def untie(owner: Process, pid: Pid) -> None:
    """End the link of an owner to its process, and forget a notice of it."""
    unlink(owner, pid, flush=True)


# Tasks whose result nobody took: who made them, and where, told when their owner ends.
#
# Also tasks that live so long that they should be something else.

UNCOLLECTED_EVENT = ("perdure", "task", "uncollected")
LONG_EVENT = ("perdure", "task", "long")

_SHOWN = 10  # a report is read by a person

_log = logging.getLogger("perdure.task")


class Place:
    """A line of code: where a task was made."""

    __slots__ = ("_code", "_line")

    def __init__(self, frame: FrameType) -> None:
        # Not the frame itself: it would keep everything that the function knows.
        self._code: CodeType = frame.f_code
        self._line = frame.f_lineno

    def __str__(self) -> str:
        return f"{self._code.co_filename}:{self._line} in {self._code.co_qualname}"


def place_of_caller(depth: int) -> Place:
    """Give the line that called, so many calls above the function which asks."""
    look: Callable[[int], FrameType] = getattr(sys, "_getframe")  # noqa: B009 - see below
    # `inspect.stack` would look at every frame, and read their files.
    return Place(look(depth + 1))


class Owed(Protocol):
    """A task, as far as a report of it needs."""

    @property
    def ended(self) -> bool:
        """Whether it has a result that nobody took."""
        ...

    def story(self) -> str:
        """What it runs, and where it was made."""
        ...


def remember(owner: Process, task: Owed) -> None:
    """Note that an owner must ask for a result."""
    bonds = owner.tie()
    if bonds.uncollected is None:
        bonds.uncollected = {}
        bonds.at_death(partial(_owner_ends, owner.pid, bonds))
    bonds.uncollected[task] = None


def forget(owner: Process | None, task: Owed) -> None:
    """Note that an owner has asked, or need not any more."""
    if owner is not None and owner.bonds is not None and owner.bonds.uncollected is not None:
        owner.bonds.uncollected.pop(task, None)


def _owner_ends(pid: Pid, bonds: Bonds) -> None:
    owner: Process | None = pid.target
    tasks: list[Owed] = list(bonds.uncollected or ())
    if not tasks or owner is None or owner.outcome is None:
        return
    reason = owner.outcome.error
    if not is_planned(reason):
        return  # its failure is the story, and is told
    if not is_normal(reason):  # stopped from outside: what still ran is no mistake of it
        tasks = [task for task in tasks if task.ended]
    if tasks:
        _report(owner, tasks)


def _report(owner: Process, tasks: list[Owed]) -> None:
    telemetry.execute(UNCOLLECTED_EVENT, {"count": len(tasks)}, {"owner": owner.pid})
    more = len(tasks) - _SHOWN
    lines = [f"  {task.story()}" for task in tasks[:_SHOWN]]
    _log.warning(
        "process %s (%s) ended and never asked for the result of %d of its tasks:\n%s%s\n"
        "Await each task, or give it up with ignore() or shutdown(); "
        "if nobody wants the result, use Task.start().",
        owner.pid,
        call_of(owner),
        len(tasks),
        "\n".join(lines),
        f"\n  and {more} more" if more > 0 else "",
    )


class LongWatch:
    """Warns once of a task that lives long; looked at by the time-outs of the runtime."""

    __slots__ = ("_pid", "_place", "timer")

    def __init__(self, pid: Pid, place: Place) -> None:
        self._pid = pid
        self._place = place
        self.timer: asyncio.TimerHandle | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing to warn of any more."""
        return self._pid.target is None

    def expire(self, limit: float) -> None:
        """Warn."""
        process: Process | None = self._pid.target
        if process is None:
            return
        telemetry.execute(LONG_EVENT, {"limit": limit}, {"pid": self._pid})
        _log.warning(
            "task %s (%s), made at %s, still runs after %s.\n"
            "If it is a loop without an end, make it a GenServer or a child of a supervisor: "
            "nobody restarts a task. If it is only slow, raise the setting `long_task`.",
            self._pid,
            call_of(process),
            self._place,
            spell(limit),
        )


def watch_length(process: Process, place: Place) -> None:
    """Warn if a task still runs after the time that the settings give."""
    limit = process.runtime.settings.long_task
    if limit is None:
        return
    watch: Any = LongWatch(process.pid, place)
    process.runtime.deadlines.add(limit, watch)
    if watch.timer is not None:  # a timer of its own must not outlive the task
        process.tie().at_death(watch.timer.cancel)


# To wait for tasks: for one, for several, for the first of them, up to a limit.


class Awaited(Protocol):
    """A task, as far as a wait needs."""

    @property
    def ended(self) -> bool:
        """Whether it has a result."""
        ...

    @property
    def failed(self) -> bool:
        """Whether it has ended without a value."""
        ...

    def begin_wait(self, wait: "Wait") -> None:
        """Tell this wait of the end."""

    def end_wait(self, *, interrupted: bool) -> None:
        """Tell nobody any more."""


class Wait:
    """One wait: so many ends are missing, or one failure, if that is enough."""

    __slots__ = ("_hasty", "_missing", "_waiter", "expired", "over")

    def __init__(self, waiter: Waiter, missing: int, *, hasty: bool) -> None:
        self._waiter = waiter
        self._missing = missing
        self._hasty = hasty
        self.over = missing <= 0
        self.expired = False

    def ended(self, *, failed: bool) -> None:
        """Count one end."""
        self._missing -= 1
        if self._missing <= 0 or (failed and self._hasty):
            self.over = True
            self._waiter.wake()

    def expire(self) -> None:
        """Stop waiting: the time is up."""
        self.expired = True
        self._waiter.wake()


@types.coroutine
def waited(
    tasks: Sequence[Awaited], count: int, limit: float | None, *, hasty: bool = False
) -> Generator[Any, None, bool]:
    """Wait until `count` of the tasks have ended, or with `hasty` one has failed.

    Returns:
        Whether that came before the time was up.
    """
    waiter = current_waiter()
    running = [task for task in tasks if not task.ended]
    wait = Wait(waiter, count - (len(tasks) - len(running)), hasty=hasty)
    if hasty and any(task.failed for task in tasks):
        wait.over = True
    if wait.over or limit == 0:
        return wait.over
    timer = _timer(limit, wait)
    for task in running:
        task.begin_wait(wait)
    finished = False
    try:
        yield from _pause(wait, waiter)
        finished = True
    finally:
        if timer is not None:
            timer.cancel()
        for task in running:
            task.end_wait(interrupted=not finished)
    return wait.over


def _pause(wait: Wait, waiter: Waiter) -> Generator[Any, None, None]:
    while not wait.over and not wait.expired:
        yield waiter.pause()


def _timer(limit: float | None, wait: Wait) -> asyncio.TimerHandle | None:
    return None if limit is None else asyncio.get_running_loop().call_later(limit, wait.expire)


P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")  # of the functions that make a task: the class itself has no type there

_ALONE: Final = Options()
_LINKED: Final = Options(link=True)


@final
class Task(Generic[T]):
    """A running piece of work, seen by the process that owns it.

    Attributes:
        pid: The process that does the work; None if the task was made by `completed`.
        ref: Names this task, and no other.
        owner: The process that may ask for the result.
        callers: The owner, who made its task, and so on.
    """

    __slots__ = (
        "_consumed",
        "_function",
        "_outcome",
        "_place",
        "_taken",
        "_wait",
        "callers",
        "owner",
        "pid",
        "ref",
    )

    def __init__(self, owner: Process, place: Place) -> None:
        """Make the handle alone; `create` is what users call."""
        self.pid: Pid | None = None
        self.ref = MonitorRef()
        self.owner = owner.pid
        self.callers = (owner.pid, *callers_of(owner))
        self._place = place
        self._function: object = None
        self._outcome: ExitResult | None = None
        self._wait: Wait | None = None
        self._taken = False  # its result was taken, or will be dropped
        self._consumed = False  # its failure was taken out of its link, for a wait to give it

    def __repr__(self) -> str:
        state = "collected" if self._taken else "ended" if self._outcome else "running"
        return f"<task {self.pid or self.ref} of {self.owner}, {state}>"

    # Start

    @overload
    @staticmethod
    def create(
        fn: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> "Task[R]": ...
    @overload
    @staticmethod
    def create(
        fn: Callable[..., Coroutine[Any, Any, R]], *args: Any, host: str | None, **kwargs: Any
    ) -> "Task[R]": ...
    @staticmethod
    def create(fn: Callable[..., Coroutine[Any, Any, R]], *args: Any, **kwargs: Any) -> "Task[R]":
        """Start a task, linked to the caller, who must collect the result.

        With `host=` it runs there, unless the function has a parameter of that name.

        Raises:
            SpawnError: It cannot be started; nothing was created.
        """
        owner = current("Task.create")
        options = _placed(fn, kwargs, _LINKED)
        task: Task[R] = Task(owner, place_of_caller(1))
        process = give_birth(owner.runtime, owner, bound(fn, kwargs), args, options)
        task.take_over(process)
        return task

    @staticmethod
    def start(fn: Callable[P, Coroutine[Any, Any, Any]], *args: P.args, **kwargs: P.kwargs) -> Pid:
        """Start a task on its own: no link, no result; a crash is only logged."""
        options = _placed(fn, kwargs, _ALONE)
        return _start(bound(fn, kwargs), args, options)

    @staticmethod
    def start_link(
        fn: Callable[P, Coroutine[Any, Any, Any]], *args: P.args, **kwargs: P.kwargs
    ) -> Pid:
        """Start a task that is linked to the caller and gives no result."""
        options = _placed(fn, kwargs, _LINKED)
        return _start(bound(fn, kwargs), args, options)

    @staticmethod
    def completed(value: R) -> "Task[R]":
        """Give a task without a process whose result is there already."""
        task: Task[R] = Task(current("Task.completed"), place_of_caller(1))
        task._outcome = ExitResult(value, None)
        return task

    @staticmethod
    def child(
        fn: Callable[..., Coroutine[Any, Any, Any]],
        *args: Any,
        id: str | None = None,
        restart: RestartWord = "temporary",
        shutdown: Shutdowns = 5.0,
    ) -> ChildSpec:
        """Describe a task as the child of a supervisor; unlike others it is not restarted."""
        return process_child(fn, *args, id=id, restart=restart, shutdown=shutdown)

    def take_over(self, process: Process) -> None:
        """Become the task of a process that was just born, before it runs."""
        self.pid = process.pid
        self._function = process.function
        process.collector = self
        owner: Process | None = self.owner.target
        if owner is not None:
            remember(owner, self)
        watch_length(process, self._place)

    # Collect

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the result, without a limit."""
        return self.join(None).__await__()

    async def join(self, timeout: Duration = 5.0) -> T:
        """Wait for the result.

        If the wait is interrupted, or its time is up, the task goes on and can be asked again.

        Raises:
            TaskExit: It ended without a result; `reason` is why.
            TaskTimeout: It has not ended in time, or its result was taken before.
            NotOwner: It belongs to another process.
        """
        limit = seconds(timeout)
        self.check_owner()
        if not await self._has_ended(limit):
            forget(self.owner.target, self)
            raise self.too_late(limit)
        return self.value()

    async def poll(self, timeout: Duration = 5.0) -> Ok[T] | Ended | None:
        """Wait for the result; None says "not yet", and leaves everything as it was.

        Raises:
            NotOwner: It belongs to another process.
            TaskTimeout: Its result was taken before, and there is no limit to wait for.
        """
        limit = seconds(timeout)
        self.check_owner()
        if self._taken and limit is not None:
            await sleep(limit)  # nothing can come any more; whoever polls in a loop must not spin
            return None
        return self.result() if await self._has_ended(limit) else None

    async def _has_ended(self, limit: float | None) -> bool:
        if self._taken:
            raise self.too_late(None)
        return await waited([self], 1, limit)

    async def shutdown(self, how: Duration | BrutalKill = 5.0) -> Ok[T] | Ended | None:
        """End the task and wait until it is down.

        Args:
            how: How long it may clean up before it is killed; None = as long as it likes;
                `BRUTAL_KILL` = not at all.

        Returns:
            The result, if there was one or came meanwhile; None if it ended because of this;
            otherwise how it ended.

        Raises:
            NotOwner: It belongs to another process.
        """
        grace = None if isinstance(how, BrutalKill) else seconds(how)
        owner = self.check_owner()
        if self._taken:
            return Exited(NoProcess(self.pid))
        process = self.process()
        if process is not None:
            forget(owner, self)
            untie(owner, process.pid)
            _end(process, owner.pid, BRUTAL_KILL if isinstance(how, BrutalKill) else grace)
            await waited([self], 1, None)
        return self._result_of_shutdown(how)

    def _result_of_shutdown(self, how: Duration | BrutalKill) -> Ok[T] | Ended | None:
        planned = Killed if isinstance(how, BrutalKill) else Shutdown
        result = self.result()
        return None if isinstance(result, Exited) and isinstance(result.reason, planned) else result

    def ignore(self) -> Ok[T] | Ended | None:
        """Let the task go on alone: unlinked, and a later result is dropped.

        Returns:
            The result, if it is there already.

        Raises:
            NotOwner: It belongs to another process.
        """
        owner = self.check_owner()
        if self._outcome is not None:
            return self.result()
        self.drop()
        if self.pid is not None:
            untie(owner, self.pid)
        return None

    # What waits and reports ask

    @property
    def ended(self) -> bool:
        """Whether it has a result that nobody took."""
        return self._outcome is not None

    @property
    def failed(self) -> bool:
        """Whether it has ended without a value."""
        return self._outcome is not None and isinstance(result_of(self._outcome), Exited)

    def process(self) -> Process | None:
        """Give the process while it is alive."""
        return None if self.pid is None else reach(self.pid, current("a task").runtime)

    def story(self) -> str:
        """Tell what it runs, and where it was made."""
        module = getattr(self._function, "__module__", "?")
        name = getattr(self._function, "__qualname__", repr(self._function))
        return f"{self.pid} {module}.{name} made at {self._place}"

    def check_owner(self) -> Process:
        """Give the running process if it owns the task."""
        me = current("a task")
        if me.pid is not self.owner:
            raise NotOwner(
                f"task {self.pid} must be asked by its owner {self.owner}, not by {me.pid}: "
                "let the owner send the result"
            )
        return me

    def too_late(self, limit: float | None) -> TaskTimeout:
        """Make the error of a wait that ends without a result."""
        if limit is None:
            why = "its result was taken before, and there is only one"
        else:
            why = f"no result within {spell(limit)}"
        return TaskTimeout(TimeoutError(why), f"task {self.pid}")

    @property
    def taken(self) -> bool:
        """Whether the result was taken, or will be dropped."""
        return self._taken

    def drop(self) -> None:
        """Want no result any more, nor a report that nobody asked for it."""
        self._taken = True
        self._outcome = None
        self._consumed = False
        forget(self.owner.target, self)

    def result(self) -> Ok[T] | Ended:
        """Take the result, which is there."""
        assert self._outcome is not None
        outcome = self._outcome
        self.drop()
        return result_of(outcome)

    def value(self) -> T:
        """Take the value, or raise why there is none."""
        result = self.result()
        if isinstance(result, Ok):
            return result.value
        raise TaskExit(result.reason, f"task {self.pid}")

    # The end

    def collect(self, process: Process, outcome: ExitResult) -> None:
        """Take the result of the process; called by its death."""
        if self._taken:
            return
        self._outcome = outcome
        if self._wait is not None:
            self._consumed = outcome.error is not None and consume_link(self.owner.target, process)
            self._wait.ended(failed=self.failed)

    def begin_wait(self, wait: Wait) -> None:
        """Let a wait be told of the end."""
        self._wait = wait

    def end_wait(self, *, interrupted: bool) -> None:
        """Let nobody be told any more; a failure that was not given goes back to the link."""
        self._wait = None
        owner: Process | None = self.owner.target
        if interrupted and self._consumed and owner is not None:
            self._consumed = False
            outcome = self._outcome
            assert outcome is not None
            assert outcome.error is not None
            assert self.pid is not None
            owner.condemn(ExitResult(None, spread(self.pid, outcome.error)))


def _placed(fn: Callable[..., Any], kwargs: dict[str, Any], options: Options) -> Options:
    """Take `host` out of the keyword arguments, if it is not for the function itself."""
    if "host" not in kwargs or "host" in inspect.signature(fn).parameters:
        return options
    return options._replace(host=kwargs.pop("host"))


def bound(
    fn: Callable[..., Coroutine[Any, Any, T]], kwargs: dict[str, Any]
) -> Callable[..., Coroutine[Any, Any, T]]:
    """Give the function with its keyword arguments in it; processes are born with a tuple."""
    return functools.partial(fn, **kwargs) if kwargs else fn


def _start(fn: Callable[..., Coroutine[Any, Any, Any]], args: Any, options: Options) -> Pid:
    parent = current("Task.start")
    process = give_birth(parent.runtime, parent, fn, args, options)
    process.collector = Started((parent.pid, *callers_of(parent)))
    watch_length(process, place_of_caller(2))
    return process.pid


def _end(process: Process, sender: Pid, grace: float | BrutalKill | None) -> None:
    """End a process politely or not; the deadline holds even if nobody waits for it any more."""
    if isinstance(grace, BrutalKill) or grace == 0:
        kill(process)
        return
    process.exit_signal(sender, Shutdown())
    if grace is None:
        return
    bonds = process.tie()
    when = process.loop.time() + grace
    if bonds.deadline is None or when < bonds.deadline.when():
        if bonds.deadline is not None:
            bonds.deadline.cancel()
        bonds.deadline = process.loop.call_at(when, kill, process)


# To collect many tasks at once, with one limit for all.


OnTimeout: TypeAlias = Literal["nothing", "ignore", "kill_task"]
_ON_TIMEOUT = ("nothing", "ignore", "kill_task")


async def join_many(tasks: Iterable[Task[T]], timeout: Duration = 5.0) -> list[T]:
    """Wait for all tasks, and give their values in order.

    Raises:
        TaskExit: One ended without a result: at once, without waiting for the others,
            which go on, and whose results are dropped.
        TaskTimeout: One has not ended in time, or its result was taken before.
        NotOwner: One belongs to another process.
    """
    limit = seconds(timeout)
    many = _checked(tasks)
    for task in many:
        if task.taken:
            raise task.too_late(None)
    await waited(many, len(many), limit, hasty=True)
    try:
        failed = next((task for task in many if task.failed), None)
        if failed is not None:
            failed.value()
        for task in many:
            if not task.ended:
                raise task.too_late(limit)
        return [task.value() for task in many]
    finally:
        for task in many:
            task.drop()


async def poll_many(
    tasks: Iterable[Task[T]],
    timeout: Duration = 5.0,
    limit: int | None = None,
    on_timeout: OnTimeout = "nothing",
) -> list[tuple[Task[T], Ok[T] | Ended | None]]:
    """Wait for tasks, and give each with its result, or None if it has none yet.

    Args:
        tasks: Which tasks.
        timeout: One limit for all.
        limit: Return as soon as so many have ended.
        on_timeout: What becomes of those that have not ended when the time is up:
            `"nothing"`, they go on; `"ignore"`, they go on alone; `"kill_task"`, they are killed.

    Raises:
        NotOwner: One belongs to another process.
        ValueError: An option is out of its range.
    """
    within = seconds(timeout)
    _check_options(limit, on_timeout)
    many = _checked(tasks)
    enough = len(many) if limit is None else min(limit, len(many))
    in_time = await waited([task for task in many if not task.taken], enough, within)
    results: dict[Task[T], Ok[T] | Ended | None] = {}
    for task in many:
        results[task] = task.result() if task.ended else None
    if not in_time:
        for task in many:
            if not task.taken:
                results[task] = await _end_late(task, on_timeout)
    return list(results.items())


async def _end_late(task: Task[T], how: OnTimeout) -> Ok[T] | Ended | None:
    match how:
        case "nothing":
            return None
        case "ignore":
            return task.ignore()
        case "kill_task":
            return await task.shutdown(BRUTAL_KILL)


def _checked(tasks: Iterable[Task[T]]) -> list[Task[T]]:
    many = list(tasks)
    for task in many:
        task.check_owner()
    if len(set(many)) < len(many):
        raise ValueError("a task is in the list twice, but gives its result once")
    return many


def _check_options(limit: Any, on_timeout: Any) -> None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise ValueError(f"limit is a number of tasks, or None for all; not {limit!r}")
    if on_timeout not in _ON_TIMEOUT:
        raise ValueError(f"on_timeout is one of {', '.join(_ON_TIMEOUT)}; not {on_timeout!r}")
