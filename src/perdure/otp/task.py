"""Task: one piece of work in a process of its own, and its result.

    task = Task.create(fetch, url)
    ...
    page = await task

The result comes through a slot of the task, not through the owner's mailbox, exactly once.
A task is linked to its owner: who crashes takes the other along,
but if the owner is just waiting for the task, it gets the failure there.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, ParamSpec, TypeVar, final, overload

from perdure.base.duration import Duration, seconds, spell
from perdure.base.errors import (
    Killed,
    NoProcess,
    NotOwner,
    Shutdown,
    TaskExit,
    TaskTimeout,
)
from perdure.base.pid import Pid, Ref
from perdure.base.result import Exited, Ok
from perdure.otp.collector import (
    Ended,
    Started,
    callers_of,
    consume_link,
    result_of,
    untie,
)
from perdure.otp.leftover import Place, forget, place_of_caller, remember, watch_length
from perdure.otp.spec import BRUTAL_KILL, BrutalKill, ChildSpec, RestartWord, Shutdowns
from perdure.otp.spec import child as process_child
from perdure.otp.wait import Wait, waited
from perdure.process.birth import Options, give_birth
from perdure.process.current import current
from perdure.process.death import kill
from perdure.process.event import ExitResult
from perdure.process.exits import spread
from perdure.process.process import Process
from perdure.process.reach import reach
from perdure.process.timer import sleep

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
        self.ref = Ref()
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
