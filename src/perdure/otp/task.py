"""Task: one piece of work in a process of its own, and its result.

    task = Task.create(fetch, url)
    ...
    page = await task

The result comes through a slot of the task, not through the owner's mailbox, exactly once.
A task is linked to its owner: if one crashes, so does the other. But an owner that is waiting for
the task at that moment gets the failure there instead. That works because the slot is the process's
*collector*: it is notified of the end before the links are, and removes the link (`consume_link`)
if somebody waits. If that wait is interrupted before it has raised the failure, the failure takes
effect as it would have without the wait: it ends the owner.
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
    ClassVar,
    Final,
    Generic,
    Literal,
    ParamSpec,
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
from perdure.base.foreign_name import ForeignName
from perdure.base.pid import MonitorRef, Pid
from perdure.base.result import Exited, Ok
from perdure.otp.supervision.spec import BRUTAL_KILL, BrutalKill, ChildSpec, RestartWord, Shutdowns
from perdure.otp.supervision.spec import child as process_child
from perdure.process.event import ExitResult
from perdure.process.exit_reason import EXIT_WITHOUT_VALUE, linked_reason
from perdure.process.lifecycle import kill, spawn_process
from perdure.process.process import Process, Relations, SpawnOptions, current
from perdure.process.relations import resolve, unlink
from perdure.process.report import call_of
from perdure.process.timer import sleep
from perdure.process.waiter import Waiter, current_waiter

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")  # of the functions that make a task: the class itself has no type there

Ended = Exited[BaseException | None]

_ALONE: Final = SpawnOptions()
_LINKED: Final = SpawnOptions(link=True)


@final
class Task(Generic[T]):
    """A handle to a running piece of work, for the process that owns it.

    Attributes:
        pid: The process that does the work; None if the task was made by `completed`.
        ref: Identifies this task.
        owner: The process that may collect the result.
        callers: The owner, the process that made the owner's task, and so on.
    """

    __slots__ = ("_slot",)

    await_many: ClassVar[Any] = ForeignName("await join_many(tasks, timeout)")
    yield_many: ClassVar[Any] = ForeignName("await poll_many(tasks, timeout)")

    def __init__(self, slot: "ResultSlot") -> None:
        """Make only the handle; `create` starts a task."""
        self._slot = slot

    def __repr__(self) -> str:
        slot = self._slot
        state = "collected" if slot.taken else "ended" if slot.ended else "running"
        return f"<task {self.pid or self.ref} of {self.owner}, {state}>"

    @property
    def pid(self) -> Pid | None:
        """The process that does the work; None if the task was made by `completed`."""
        return self._slot.pid

    @property
    def ref(self) -> MonitorRef:
        """Identifies this task."""
        return self._slot.ref

    @property
    def owner(self) -> Pid:
        """The process that may collect the result."""
        return self._slot.owner

    @property
    def callers(self) -> tuple[Pid, ...]:
        """The owner, the process that made the owner's task, and so on."""
        return self._slot.callers

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
        """Start a task, linked to the caller, which must collect the result.

        With `host=` it runs there, unless the function has a parameter of that name.

        Raises:
            SpawnError: It cannot be started; nothing was created.
        """
        owner = current("Task.create")
        options = _placed(fn, kwargs, _LINKED)
        slot = ResultSlot(owner, line_of_caller(1))
        process = spawn_process(owner.runtime, owner, bound(fn, kwargs), args, options)
        slot.fill_from(process)
        return Task(slot)

    @staticmethod
    def start(fn: Callable[P, Coroutine[Any, Any, Any]], *args: P.args, **kwargs: P.kwargs) -> Pid:
        """Start a task without a link and without a result; a crash is only logged."""
        options = _placed(fn, kwargs, _ALONE)
        return _start(bound(fn, kwargs), args, options)

    @staticmethod
    def start_link(
        fn: Callable[P, Coroutine[Any, Any, Any]], *args: P.args, **kwargs: P.kwargs
    ) -> Pid:
        """Start a task that is linked to the caller, without a result; return its pid."""
        options = _placed(fn, kwargs, _LINKED)
        return _start(bound(fn, kwargs), args, options)

    @staticmethod
    def completed(value: R) -> "Task[R]":
        """Return a task without a process that already has its result."""
        slot = ResultSlot(current("Task.completed"), line_of_caller(1))
        slot.outcome = ExitResult(value, None)
        return Task(slot)

    @staticmethod
    def child(
        fn: Callable[..., Coroutine[Any, Any, Any]],
        *args: Any,
        id: str | None = None,
        restart: RestartWord = "temporary",
        shutdown: Shutdowns = 5.0,
    ) -> ChildSpec:
        """Return the spec of a task as a child of a supervisor; by default it is not restarted."""
        return process_child(fn, *args, id=id, restart=restart, shutdown=shutdown)

    # Collect

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the result without a limit, and return it."""
        return self.join(None).__await__()

    async def join(self, timeout: Duration = 5.0) -> T:
        """Wait for the result, and return it.

        If the wait is interrupted or times out, the task continues and can be joined again.

        Raises:
            TaskExit: It ended without a result; `reason` is why.
            TaskTimeout: It has not ended in time, or its result was taken before.
            NotOwner: It belongs to another process.
        """
        limit = seconds(timeout)
        slot = self._slot
        slot.check_owner()
        if not await slot.wait(limit):
            forget(slot)
            raise slot.too_late(limit)
        return slot.take_value()

    async def poll(self, timeout: Duration = 5.0) -> Ok[T] | Ended | None:
        """Wait for the result, and return it; None means "not yet", and changes nothing.

        Raises:
            NotOwner: It belongs to another process.
            TaskTimeout: Its result was collected before, and there is no timeout to wait for.
        """
        limit = seconds(timeout)
        slot = self._slot
        slot.check_owner()
        if slot.taken and limit is not None:
            await sleep(limit)  # nothing can come any more; a loop of polls must not spin
            return None
        return slot.take() if await slot.wait(limit) else None

    async def shutdown(self, how: Duration | BrutalKill = 5.0) -> Ok[T] | Ended | None:
        """Stop the task and wait until it has ended.

        Args:
            how: How long it may clean up before it is killed; None = as long as it likes;
                `BRUTAL_KILL` = not at all.

        Returns:
            The result, if there was one or it came meanwhile; None if the shutdown ended it;
            otherwise how it ended.

        Raises:
            NotOwner: It belongs to another process.
        """
        grace = None if isinstance(how, BrutalKill) else seconds(how)
        slot = self._slot
        owner = slot.check_owner()
        if slot.taken:
            return Exited(NoProcess(slot.pid))
        process = slot.process()
        if process is not None:
            forget(slot)
            unlink(owner, process.pid, flush=True)
            _end(process, owner.pid, BRUTAL_KILL if isinstance(how, BrutalKill) else grace)
            await waited([slot], 1, None)
        planned = Killed if isinstance(how, BrutalKill) else Shutdown
        result: Ok[T] | Ended = slot.take()
        return None if isinstance(result, Exited) and isinstance(result.reason, planned) else result

    def ignore(self) -> Ok[T] | Ended | None:
        """Unlink the task and let it continue; a later result is dropped.

        Returns:
            The result, if there is one already.

        Raises:
            NotOwner: It belongs to another process.
        """
        slot = self._slot
        owner = slot.check_owner()
        if slot.ended:
            return slot.take()
        slot.drop()
        if slot.pid is not None:
            unlink(owner, slot.pid, flush=True)
        return None


# Collecting many tasks at once, with one timeout for all

OnTimeout: TypeAlias = Literal["nothing", "ignore", "kill_task"]
_ON_TIMEOUT = ("nothing", "ignore", "kill_task")


async def join_many(tasks: Iterable[Task[T]], timeout: Duration = 5.0) -> list[T]:
    """Wait for all tasks, and return their values in order.

    Raises:
        TaskExit: One ended without a result; raised without waiting for the others,
            which continue, and whose results are dropped.
        TaskTimeout: One has not ended in time, or its result was taken before.
        NotOwner: One belongs to another process.
    """
    limit = seconds(timeout)
    slots = [slot for _, slot in _checked(tasks)]
    for slot in slots:
        if slot.taken:
            raise slot.too_late(None)
    await waited(slots, len(slots), limit, fail_fast=True)
    try:
        for slot in slots:
            if slot.failed:
                slot.take_value()
        for slot in slots:
            if not slot.ended:
                raise slot.too_late(limit)
        return [slot.take_value() for slot in slots]
    finally:
        for slot in slots:
            slot.drop()


async def poll_many(
    tasks: Iterable[Task[T]],
    timeout: Duration = 5.0,
    limit: int | None = None,
    on_timeout: OnTimeout = "nothing",
) -> list[tuple[Task[T], Ok[T] | Ended | None]]:
    """Wait for tasks, and return each with its result, or None if it has none yet.

    Args:
        tasks: Which tasks.
        timeout: One timeout for all.
        limit: Return as soon as this many have ended.
        on_timeout: What happens to those that have not ended in time:
            `"nothing"`, they continue; `"ignore"`, they are unlinked too; `"kill_task"`, killed.

    Raises:
        NotOwner: One belongs to another process.
        ValueError: An option is out of its range.
    """
    within = seconds(timeout)
    _check_options(limit, on_timeout)
    many = _checked(tasks)
    enough = len(many) if limit is None else min(limit, len(many))
    in_time = await waited([slot for _, slot in many if not slot.taken], enough, within)
    results: dict[Task[T], Ok[T] | Ended | None] = {}
    for task, slot in many:
        results[task] = slot.take() if slot.ended else None
    if not in_time:
        for task, slot in many:
            if not slot.taken:
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


def _checked(tasks: Iterable[Task[T]]) -> "list[tuple[Task[T], ResultSlot]]":
    many = [(task, task._slot) for task in tasks]  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    for _, slot in many:
        slot.check_owner()
    if len(dict(many)) < len(many):
        raise ValueError("a task is in the list twice, but its result can be collected only once")
    return many


def _check_options(limit: Any, on_timeout: Any) -> None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise ValueError(f"limit is a number of tasks, or None for all; not {limit!r}")
    if on_timeout not in _ON_TIMEOUT:
        raise ValueError(f"on_timeout is one of {', '.join(_ON_TIMEOUT)}; not {on_timeout!r}")


# How a task is started and ended


def _start(fn: Callable[..., Coroutine[Any, Any, Any]], args: Any, options: SpawnOptions) -> Pid:
    parent = current("Task.start")
    process = spawn_process(parent.runtime, parent, fn, args, options)
    process.collector = NoResult((parent.pid, *callers_of(parent)))
    watch_length(process, line_of_caller(2))
    return process.pid


def _placed(fn: Callable[..., Any], kwargs: dict[str, Any], options: SpawnOptions) -> SpawnOptions:
    """Return options with `host` from the keyword arguments, unless it is for the function."""
    if "host" not in kwargs or "host" in inspect.signature(fn).parameters:
        return options
    return options._replace(host=kwargs.pop("host"))


def bound(
    fn: Callable[..., Coroutine[Any, Any, T]], kwargs: dict[str, Any]
) -> Callable[..., Coroutine[Any, Any, T]]:
    """Return the function with its keyword arguments bound, since spawning takes only a tuple."""
    return functools.partial(fn, **kwargs) if kwargs else fn


def _end(process: Process, sender: Pid, grace: float | BrutalKill | None) -> None:
    """Shut down or kill a process; the deadline holds even if nobody waits for it any more."""
    if isinstance(grace, BrutalKill) or grace == 0:
        kill(process)
        return
    process.exit_signal(sender, Shutdown())
    if grace is None:
        return
    relations = process.get_relations()
    when = process.loop.time() + grace
    if relations.cancel_timer is None or when < relations.cancel_timer.when():
        if relations.cancel_timer is not None:
            relations.cancel_timer.cancel()
        relations.cancel_timer = process.loop.call_at(when, kill, process)


# The slot of a result, which is the collector of the process


class NoResult:
    """The collector of a process whose result is not wanted: it only holds the callers."""

    __slots__ = ("callers",)

    def __init__(self, callers: tuple[Pid, ...]) -> None:
        self.callers = callers

    def collect(self, process: Process, outcome: ExitResult) -> None:
        """Drop the result."""


class ResultSlot:
    """The slot in which the result of a task arrives, and from which its owner takes it, once."""

    __slots__ = (
        "_consumed",
        "_function",
        "_made_at",
        "_wait",
        "callers",
        "outcome",
        "owner",
        "pid",
        "ref",
        "taken",
    )

    def __init__(self, owner: Process, made_at: "CodeLine") -> None:
        self.pid: Pid | None = None
        self.ref = MonitorRef()
        self.owner = owner.pid
        self.callers = (owner.pid, *callers_of(owner))
        self.outcome: ExitResult | None = None
        self.taken = False  # its result was taken, or will be dropped
        self._made_at = made_at
        self._function: object = None
        self._wait: TaskWait | None = None
        self._consumed = False  # its failure was taken out of its link, for a wait to raise it

    def fill_from(self, process: Process) -> None:
        """Become the collector of a new process, before it runs."""
        self.pid = process.pid
        self._function = process.function
        process.collector = self
        remember(self)
        watch_length(process, self._made_at)

    @property
    def ended(self) -> bool:
        """Whether it has a result that was not collected."""
        return self.outcome is not None

    @property
    def failed(self) -> bool:
        """Whether it has ended without a value."""
        return self.outcome is not None and isinstance(result_of(self.outcome), Exited)

    def process(self) -> Process | None:
        """Return the process; None if it is dead."""
        return None if self.pid is None else resolve(self.pid, current("a task").runtime)

    def describe(self) -> str:
        """Return what the task runs and where it was made, as text."""
        module = getattr(self._function, "__module__", "?")
        name = getattr(self._function, "__qualname__", repr(self._function))
        return f"{self.pid} {module}.{name} made at {self._made_at}"

    def check_owner(self) -> Process:
        """Return the running process; raise unless it owns the task."""
        me = current("a task")
        if me.pid is not self.owner:
            raise NotOwner(
                f"task {self.pid} must be asked by its owner {self.owner}, not by {me.pid}: "
                "let the owner send the result"
            )
        return me

    # Taking

    async def wait(self, limit: float | None) -> bool:
        """Wait for the result; return whether it came in time."""
        if self.taken:
            raise self.too_late(None)
        return await waited([self], 1, limit)

    def too_late(self, limit: float | None) -> TaskTimeout:
        """Return the error of a wait that ends without a result."""
        if limit is None:
            why = "its result was already collected"
        else:
            why = f"no result within {spell(limit)}"
        return TaskTimeout(TimeoutError(why), f"task {self.pid}")

    def take(self) -> Any:
        """Take the result, which must be there."""
        assert self.outcome is not None, "the task has no result yet"
        outcome = self.outcome
        self.drop()
        return result_of(outcome)

    def take_value(self) -> Any:
        """Take the value, or raise the reason why there is none."""
        result = self.take()
        if isinstance(result, Ok):
            return result.value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        raise TaskExit(result.reason, f"task {self.pid}")

    def drop(self) -> None:
        """Drop the result, and do not report that it was not collected."""
        self.taken = True
        self.outcome = None
        self._consumed = False
        forget(self)

    # Filling

    def collect(self, process: Process, outcome: ExitResult) -> None:
        """Store the outcome of the process; called at its death."""
        if self.taken:
            return
        self.outcome = outcome
        if self._wait is not None:
            self._consumed = outcome.error is not None and consume_link(self.owner.target, process)
            self._wait.ended(failed=self.failed)

    def begin_wait(self, wait: "TaskWait") -> None:
        """Register a wait, to be notified of the end."""
        self._wait = wait

    def end_wait(self, *, interrupted: bool) -> None:
        """Unregister the wait; a failure that it did not raise goes back to the link."""
        self._wait = None
        owner: Process | None = self.owner.target
        if interrupted and self._consumed and owner is not None:
            self._consumed = False
            assert self.outcome is not None
            assert self.outcome.error is not None
            assert self.pid is not None
            owner.force_exit(ExitResult(None, linked_reason(self.pid, self.outcome.error)))


def callers_of(process: Process) -> tuple[Pid, ...]:
    """Return on whose behalf a process works: the process that made its task, and so on."""
    return () if process.collector is None else process.collector.callers


def result_of(outcome: ExitResult) -> Ok[Any] | Ended:
    """Return the outcome of a process as a result; only a return counts as a value."""
    if outcome.error is None and outcome is not EXIT_WITHOUT_VALUE:
        return Ok(outcome.value)
    return Exited(outcome.error)


def consume_link(owner: Process | None, process: Process) -> bool:
    """Take the failure of a linked process out of its link; return whether there was a link.

    An owner that traps links keeps the link: it wants to be notified by an event.
    """
    if owner is None or owner.trap_links or owner.relations is None or process.relations is None:
        return False
    if owner not in (process.relations.links or ()):
        return False
    owner.relations.remove_link(process)
    process.relations.remove_link(owner)
    return True


# Waiting for slots: for one, for several, for the first of them, with a time limit


class TaskWait:
    """One wait: for a number of ends, or for one failure, if that is enough."""

    __slots__ = ("_fail_fast", "_missing", "_waiter", "expired", "over")

    def __init__(self, waiter: Waiter, missing: int, *, fail_fast: bool) -> None:
        self._waiter = waiter
        self._missing = missing
        self._fail_fast = fail_fast
        self.over = missing <= 0
        self.expired = False

    def ended(self, *, failed: bool) -> None:
        """Count one end."""
        self._missing -= 1
        if self._missing <= 0 or (failed and self._fail_fast):
            self.over = True
            self._waiter.wake()

    def expire(self) -> None:
        """Stop waiting: the time is up."""
        self.expired = True
        self._waiter.wake()


@types.coroutine
def waited(
    slots: Sequence[ResultSlot], count: int, limit: float | None, *, fail_fast: bool = False
) -> Generator[Any, None, bool]:
    """Wait until `count` of the tasks have ended, or with `fail_fast` one has failed.

    Returns:
        Whether that happened in time.
    """
    waiter = current_waiter()
    running = [slot for slot in slots if not slot.ended]
    wait = TaskWait(waiter, count - (len(slots) - len(running)), fail_fast=fail_fast)
    if fail_fast and any(slot.failed for slot in slots):
        wait.over = True
    if wait.over or limit == 0:
        return wait.over
    timer = None
    if limit is not None:
        timer = asyncio.get_running_loop().call_later(limit, wait.expire)
    for slot in running:
        slot.begin_wait(wait)
    finished = False
    try:
        while not wait.over and not wait.expired:
            yield waiter.pause()
        finished = True
    finally:
        if timer is not None:
            timer.cancel()
        for slot in running:
            slot.end_wait(interrupted=not finished)
    return wait.over


# Unawaited tasks: which code made them, reported when their owner ends

UNCOLLECTED_EVENT = ("perdure", "task", "uncollected")
LONG_EVENT = ("perdure", "task", "long")

_SHOWN = 10  # a report is read by people

_log = logging.getLogger("perdure.task")


class CodeLine:
    """A line of code: where a task was made."""

    __slots__ = ("_code", "_line")

    def __init__(self, frame: FrameType) -> None:
        # Not the frame itself: it would keep all local variables alive.
        self._code: CodeType = frame.f_code
        self._line = frame.f_lineno

    def __str__(self) -> str:
        return f"{self._code.co_filename}:{self._line} in {self._code.co_qualname}"


def line_of_caller(depth: int) -> CodeLine:
    """Return the line of a caller, this many calls above the current function."""
    look: Callable[[int], FrameType] = getattr(sys, "_getframe")  # noqa: B009 - see below
    # `inspect.stack` would look at every frame, and read their files.
    return CodeLine(look(depth + 1))


def remember(slot: ResultSlot) -> None:
    """Note that the owner must collect a result."""
    owner: Process | None = slot.owner.target
    if owner is None:
        return
    relations = owner.get_relations()
    if relations.unawaited is None:
        relations.unawaited = {}
        owner.at_exit(partial(_owner_ends, owner.pid, relations))
    relations.unawaited[slot] = None


def forget(slot: ResultSlot) -> None:
    """Note that the owner has collected the result, or need not any more."""
    owner: Process | None = slot.owner.target
    if owner is not None and owner.relations is not None and owner.relations.unawaited is not None:
        owner.relations.unawaited.pop(slot, None)


def _owner_ends(pid: Pid, relations: Relations) -> None:
    owner: Process | None = pid.target
    slots: list[ResultSlot] = list(relations.unawaited or ())
    if not slots or owner is None or owner.outcome is None:
        return
    reason = owner.outcome.error
    if not is_planned(reason):
        return  # its own failure is reported, and explains these
    if not is_normal(reason):  # stopped from outside: that its tasks still ran is not its mistake
        slots = [slot for slot in slots if slot.ended]
    if slots:
        _report_unawaited(owner, slots)


def _report_unawaited(owner: Process, slots: list[ResultSlot]) -> None:
    telemetry.execute(UNCOLLECTED_EVENT, {"count": len(slots)}, {"owner": owner.pid})
    more = len(slots) - _SHOWN
    lines = [f"  {slot.describe()}" for slot in slots[:_SHOWN]]
    _log.warning(
        "process %s (%s) ended and never asked for the result of %d of its tasks:\n%s%s\n"
        "Await each task, or give it up with ignore() or shutdown(); "
        "if nobody wants the result, use Task.start().",
        owner.pid,
        call_of(owner),
        len(slots),
        "\n".join(lines),
        f"\n  and {more} more" if more > 0 else "",
    )


# Tasks that run so long that they should be something else


class LongTaskWatch:
    """Warns once of a task that runs for long; checked by the runtime's deadlines."""

    __slots__ = ("_made_at", "_pid", "timer")

    def __init__(self, pid: Pid, made_at: CodeLine) -> None:
        self._pid = pid
        self._made_at = made_at
        self.timer: asyncio.TimerHandle | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing left to warn about."""
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
            self._made_at,
            spell(limit),
        )


def watch_length(process: Process, made_at: CodeLine) -> None:
    """Warn if a task still runs after the time limit in the settings."""
    limit = process.runtime.settings.long_task
    if limit is None:
        return
    watch: Any = LongTaskWatch(process.pid, made_at)
    process.runtime.deadlines.add(limit, watch)
    if watch.timer is not None:  # a timer of its own must not outlive the task
        process.at_exit(watch.timer.cancel)
