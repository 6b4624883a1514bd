"""The restart loop: start children, watch them, restart them, stop them, and end.

Everything that keeps others alive is a kind of `RestartLoop`: a supervisor with its strategy, a
dynamic supervisor, a partition supervisor, a pool, the service of an entry. A kind defines which
children there are, which are restarted together and after which delay; all else is here.

A loop is an ordinary process that traps links. Everything that it receives comes through one queue,
in the order of arrival: ends of children, requests, events, messages. Four things shape the code:

**One relation for each child.** A child is linked, so that it ends with its supervisor, and the
kernel notifies the supervisor of the end through `Supervision.ended`, normal or not, exactly once.
The notification names the process, so an outdated one (the child was stopped meanwhile, or
started again) is recognised and dropped.

**A start that hangs does not block the loop.** While it waits for a child to start, it continues
to receive. A stop request aborts the start; everything else goes to the backlog, since the next
request must not touch a half-started child. A start function that is not ours runs in a task; ours
(`DirectStart`) are run directly, so that a restart takes only one turn.

**A stop cannot be interrupted**, not even by a stop request: its caller may rely on the child being
gone. So while it stops children, the loop waits only for their deaths, and reads nothing else.

**Whatever a start began is ended.** A start function may have linked processes to the supervisor
before it failed or was given up. Nothing else knows them, so they are stopped with the rest. If a
stop request aborts a start, what it began takes the place of the child: it may already be ready
without our knowing, others may depend on it, and it needs the shutdown time of its spec.
"""

import asyncio
import logging
import types
from collections import deque
from collections.abc import Generator, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from perdure.base import telemetry
from perdure.base.duration import spell
from perdure.base.errors import (
    BadReturn,
    Killed,
    ProcError,
    ProcessExit,
    Shutdown,
    StartError,
    describe,
    is_planned,
    safe_text,
)
from perdure.base.pid import MonitorRef, Pid
from perdure.base.restart import Intensity, RestartHistory, needs_restart
from perdure.base.result import Err, Ok
from perdure.otp.start import Ack
from perdure.otp.supervision.spec import (
    BRUTAL_KILL,
    IGNORE,
    ChildSpec,
    ChildType,
    DirectStart,
    SpawnStart,
    StartFunction,
)
from perdure.process.event import Cancel, Exit, ExitResult, LinkDown
from perdure.process.exit_reason import linked_reason
from perdure.process.lifecycle import kill, spawn_process
from perdure.process.process import MailboxChannel, Process, Supervision, current
from perdure.process.relations import link, monitor, resolve
from perdure.process.report import moment
from perdure.process.request import Request
from perdure.process.timer import sleep
from perdure.process.waiter import PARK

# How long a start function that is no longer wanted gets to clean up.
START_CLEANUP = 5.0

RESTARTING: Literal["restarting"] = "restarting"


class StopWanted(Exception):
    """Raised to leave whatever a loop does, and end it."""

    def __init__(self, reason: BaseException | None) -> None:
        super().__init__(reason)
        self.reason = reason


# Requests to a loop


class StopLoop(NamedTuple):
    """The request to end, for this reason."""

    reason: BaseException | None


class WhichChildren(NamedTuple):
    """The request for the list of children."""


class CountChildren(NamedTuple):
    """The request for the number of children."""


class ChildInfo(NamedTuple):
    """A child as `which_children` shows it."""

    id: Hashable
    pid: Pid | Literal["restarting"] | None
    type: ChildType
    restarts: int


class Counts(NamedTuple):
    """The result of `count_children`."""

    specs: int
    active: int
    supervisors: int
    workers: int


class SupervisedChild:
    """One child of a loop, over all its restarts."""

    __slots__ = (
        "failure",
        "handle",
        "last_pid",
        "loop",
        "next",
        "process",
        "restarting",
        "restarts",
        "since",
        "spec",
        "stopping",
        "supervisor",
        "timer",
        "watched",
    )

    supervisor: Process

    def __init__(self, spec: ChildSpec, loop: "RestartLoop") -> None:
        self.spec = spec
        self.loop = loop
        self.process: Process | None = None  # until its end has been handled
        self.watched: Pid | None = None  # its current process; ends of others are outdated
        self.last_pid: Pid | None = None
        self.handle: Any = None  # what its start function returned
        self.restarting = False
        self.stopping = False
        self.failure: BaseException | None = None  # why it is still restarting
        self.restarts = 0
        self.since = 0.0  # the loop's time of its last start
        self.timer: asyncio.TimerHandle | None = None  # of a restart after a delay, or of a kill
        self.next: Supervision | None = None  # another supervision of the same process

    @property
    def pid(self) -> Pid | Literal["restarting"] | None:
        """Its pid as others see it."""
        if self.process is not None:
            return self.process.pid
        return RESTARTING if self.restarting else None

    def info(self, id: Hashable) -> ChildInfo:
        """Return the child as `which_children` shows it."""
        return ChildInfo(id, self.pid, self.spec.type, self.restarts)

    def ended(self, process: Process, outcome: ExitResult) -> None:
        """Forward the end to the loop; called at the death of the process."""
        if self.next is not None:
            self.next.ended(process, outcome)
        if self.stopping:
            self.supervisor.wake()  # the loop waits for exactly this
        elif self.watched is process.pid:
            self.loop.inbox.put(ChildEnded(self, process.pid, outcome.error))

    def describe(self) -> str:
        """Return its supervisor and its number of restarts, for a crash report."""
        return f"{self.loop.place_of(self)}, restarted {times(self.restarts)} before"

    def disarm(self) -> None:
        """Cancel its timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class ChildEnded(NamedTuple):
    """In the queue of a loop: a process of a child ended."""

    child: SupervisedChild
    pid: Pid
    reason: BaseException | None


class RestartDue(NamedTuple):
    """In the queue of a loop: the delay before a restart is over."""

    child: SupervisedChild


_WAKE = object()  # in the queue of a loop: the start that it waits for has made progress


class RestartLoop:
    """The work of a supervisor; subclasses define what happens to which children.

    Attributes:
        label: Names it in reports.
        history: The restarts that still count.
        me: Its process.
        inbox: Everything that it receives.
        ending: Whether it is stopping; from then on no child may be added, since it would be left.
        retries: The children whose restart failed, to be retried at once.
    """

    me: Process
    inbox: MailboxChannel[Any]
    ack: Ack

    def __init__(self, label: str, intensity: Intensity | None) -> None:
        self.label = label
        self.history = RestartHistory(intensity)
        self.ending = False
        self.retries: dict[SupervisedChild, None] = {}
        self._opened = False
        self._parent: Pid | None = None
        self._parent_ref: MonitorRef | None = None
        self._backlog: deque[ChildEnded | RestartDue | Request[Any]] = deque()
        self._fallen: dict[Pid, BaseException] | None = None  # died by a link during a start

    def __repr__(self) -> str:
        return f"<{self.label}>"

    # What a subclass defines

    def children(self) -> Iterable[SupervisedChild]:
        """Return all children, in start order."""
        raise NotImplementedError

    async def begin(self) -> None:
        """Start the initial children."""

    def begun(self) -> None:
        """Tell the starter of the loop that it runs."""
        self.ack.ready(self.me, value=True)

    async def restart(self, child: SupervisedChild) -> None:
        """Restart a child that ended, now or later, and the children that are restarted with it."""
        await self.start_again(child)

    async def retry(self, child: SupervisedChild) -> None:
        """Restart a child whose last restart failed."""
        await self.restart(child)

    async def forget(self, child: SupervisedChild, reason: BaseException | None) -> None:
        """Handle the end of a child that is not restarted."""

    async def end_children(self) -> None:
        """Stop all children."""
        await self.stop(tuple(self.children()))

    async def answer(self, body: object) -> Any:
        """Handle a request: return the answer, or raise."""
        match body:
            case WhichChildren():
                return [each.info(self.id_of(each)) for each in reversed(tuple(self.children()))]
            case CountChildren():
                return count(self.children())
            case _:
                raise TypeError(f"{self.label} does not understand {body!r}")

    def id_of(self, child: SupervisedChild) -> Hashable:
        """Return the id by which others know a child."""
        return child.spec.id

    def take(self, told: object) -> None:
        """Handle anything other than a request, or the end of a child or of the parent."""
        if not isinstance(told, Exit | LinkDown) and told is not _WAKE:
            report_unknown(self, told)

    def cancelled(self, event: Cancel) -> None:  # noqa: ARG002 - for others
        """End because of a CANCEL."""
        raise StopWanted(None)

    def parent_ended(self, parent: Pid, error: BaseException | None) -> None:
        """End with the parent."""
        raise StopWanted(None if error is None else linked_reason(parent, error))

    # The core

    async def run(self, ack: Ack) -> BaseException | None:
        """Run the loop; return its exit reason."""
        self.ack = ack
        self.open(current("supervisor"))
        if ack.linked and self.me.parent is not None:  # else it depends on nobody
            self._parent = self.me.parent
            self._parent_ref = monitor(self.me, self._parent)
        try:
            await self.begin()
            self.begun()
            while True:
                await self.work()
        except StopWanted as stop:
            reason = stop.reason
        except StartError as error:  # of the first start; later ones are handled
            reason = Shutdown(error)
        self.ending = True
        await self._end_strays()
        await self.end_children()
        return reason

    def open(self, me: Process) -> None:
        """Get ready to watch children, once.

        A supervisor may be asked for a child, by its name, before it has run a line.
        """
        if self._opened:
            return
        self._opened = True
        self.me = me
        me.trap_links = True
        self.inbox = me.merge_channels()

    async def work(self) -> None:
        """Handle the next item."""
        if self.retries:  # what came before the next attempt is handled before it
            await sleep(0)
            self._drain()
        elif not self._backlog:  # otherwise it was filled while a child started
            self._sort(await self.inbox.receive())
        for _ in range(len(self._backlog)):
            await self._deal_with(self._backlog.popleft())
        for child in tuple(self.retries)[:1]:
            del self.retries[child]
            self.count_restart(child, child.failure)
            await self.retry(child)

    def _drain(self) -> None:
        for told in self.inbox.remove(lambda _: True):
            self._sort(told)

    def _sort(self, told: Any) -> None:
        """Put an item into the backlog, but obey a stop request at once."""
        kind: type[Any] = type(told)  # pyright: ignore[reportUnknownVariableType]
        if kind is ChildEnded or kind is RestartDue:
            self._backlog.append(told)
        elif isinstance(told, Request):
            if type(told.body) is StopLoop:
                raise StopWanted(told.body.reason)
            self._backlog.append(told)  # pyright: ignore[reportUnknownArgumentType]
        elif kind is Cancel:
            self.cancelled(told)
        elif kind is LinkDown and told.sender is self._parent:
            self.parent_ended(told.sender, told.error)
        elif kind is Exit and told.ref is self._parent_ref:
            self.parent_ended(told.sender, told.result.error)
        else:
            if kind is LinkDown and self._fallen is not None:
                self._fallen[told.sender] = told.error
            self.take(told)

    async def _deal_with(self, told: ChildEnded | RestartDue | Request[Any]) -> None:
        if isinstance(told, ChildEnded):
            if told.child.watched is told.pid:  # otherwise it was stopped meanwhile
                told.child.process = told.child.watched = None
                await self.child_ended(told.child, told.reason)
        elif isinstance(told, RestartDue):
            if told.child.timer is not None:  # otherwise it was stopped meanwhile
                told.child.timer = None
                await self.start_again(told.child)
        elif not told.done:
            try:
                told.reply(Ok(await self.answer(told.body)))
            except (ProcError, ValueError, TypeError) as error:
                told.reply(Err(error))

    # Restarts

    async def child_ended(self, child: SupervisedChild, reason: BaseException | None) -> None:
        """Handle the end of a child."""
        if self.needs_restart(child, reason):
            self.count_restart(child, reason)
            await self.restart(child)
        else:
            await self.forget(child, reason)

    def needs_restart(self, child: SupervisedChild, reason: BaseException | None) -> bool:
        """Whether a child that ended is restarted."""
        return needs_restart(child.spec.restart, reason)

    def count_restart(self, child: SupervisedChild, reason: BaseException | None) -> None:
        """Count one restart, including retries; give up if there are too many."""
        if self.history.record(self.me.loop.time()):
            report_gave_up(self, child, reason)
            raise StopWanted(Shutdown(f"{self.label} restarted children too often"))
        if not child.restarting:  # otherwise its failure has been reported
            report_restart(self, child, reason)

    async def start_again(self, child: SupervisedChild) -> bool:
        """Restart a child; return whether that succeeded."""
        child.restarting = True
        try:
            await self.start(child)
        except StartError as error:
            child.failure = error.reason
            self.restart_failed(child, error)
            return False
        child.restarts += 1
        return True

    def restart_failed(self, child: SupervisedChild, error: StartError) -> None:
        """Schedule another attempt at a restart that failed."""
        self.retries[child] = None
        report_restart_failed(self, child, error)

    def restart_later(self, child: SupervisedChild, delay: float) -> None:
        """Restart a child after a delay."""
        child.restarting = True
        child.timer = self.me.loop.call_later(delay, self.inbox.put, RestartDue(child))

    # Starting

    async def start(self, child: SupervisedChild) -> Any:
        """Start a child and return the result of its start function.

        Raises:
            StartError: It did not start.
        """
        start = child.spec.start
        try:
            if isinstance(start, SpawnStart):
                me = self.me
                process = spawn_process(me.runtime, me, start.function, start.args, start.options)
                self.watch(child, process, process.pid)
            elif isinstance(start, DirectStart) and start.is_direct():
                await self._start_directly(child, start)
            else:
                await self._call(child, start)
        except StopWanted:
            raise
        except (Exception, ProcessExit) as error:  # noqa: BLE001 - told to who waits for the start
            reason = first_reason(error)
            raise StartError(child.spec.id, reason) from reason
        child.restarting = False
        return child.handle

    def watch(self, child: SupervisedChild, process: Process, handle: Any) -> None:
        """Supervise a living process as this child, from now on."""
        child.handle = handle
        child.since = self.me.loop.time()
        child.process, child.supervisor = process, self.me
        child.last_pid = child.watched = process.pid
        relations = process.get_relations()
        child.next, relations.supervision = relations.supervision, child
        if relations.links is None or self.me not in relations.links:
            link(self.me, process)

    async def _start_directly(self, child: SupervisedChild, start: DirectStart) -> None:
        """Spawn the process directly, and wait for its acknowledgement in our own inbox."""
        process, ack = start.begin(self.me, self._wake_up)
        self.watch(child, process, None)
        try:
            while not ack.done and not process.done():
                self._sort(await self.inbox.receive())
            if ack.done:
                child.handle = start.handle(process, None)
                return
            assert process.outcome is not None
            if process.outcome.error is not None:
                raise process.outcome.error
            child.handle = start.handle(process, process.outcome.value)
        finally:
            if not ack.done:  # what its death has put into the queue no longer counts
                child.process = child.watched = None
                kill(process, "its start was aborted")

    def _wake_up(self) -> None:
        self.inbox.put(_WAKE)

    async def _call(self, child: SupervisedChild, start: StartFunction) -> None:
        """Run a start function as a task inside this process, and continue to receive."""
        task = self.me.loop.create_task(_called(start))
        task.add_done_callback(lambda _: self._wake_up())
        self._fallen = {}
        try:
            while not task.done():
                self._sort(await self.inbox.receive())
            if task.cancelled():
                raise Killed("its start function was cancelled")
            self._attach(child, task.result())
        except StopWanted:
            task.cancel()
            await asyncio.wait([task], timeout=START_CLEANUP)
            if strays := self._strays():  # the last one was most likely meant to be the child
                self.watch(child, strays[-1], strays[-1].pid)
            raise
        finally:
            self._fallen = None

    def _attach(self, child: SupervisedChild, given: Any) -> None:
        """Use the result of a start function as this child."""
        child.handle = given
        if given is IGNORE:
            return
        pid = given if isinstance(given, Pid) else getattr(given, "pid", None)
        if not isinstance(pid, Pid):
            raise BadReturn(
                f"its start function returned {given!r} instead of a pid, a handle or IGNORE"
            )
        process = resolve(pid, self.me.runtime)
        if process is not None:
            self.watch(child, process, given)
            return
        # Dead already: if it had failed, its link would have reported it.
        self._drain()
        child.last_pid = child.watched = pid
        child.since = self.me.loop.time()
        self._backlog.append(ChildEnded(child, pid, (self._fallen or {}).get(pid)))

    # Stopping

    async def stop(self, children: Sequence[SupervisedChild]) -> None:
        """Stop children concurrently, and wait until they are dead."""
        stopping = [child for child in children if self._begin_stop(child)]
        try:
            for child in stopping:
                process = child.process
                assert process is not None
                await _gone(process)
                child.process = None
                self.stopped(child, process)
        finally:
            for child in stopping:
                child.disarm()
                child.stopping = False

    def _begin_stop(self, child: SupervisedChild) -> bool:
        """Ask a child to end; return whether there is a process to wait for."""
        child.restarting = False
        child.watched = None
        child.disarm()
        self.retries.pop(child, None)
        process = child.process
        if process is None:
            return False
        child.stopping = True
        if not process.done():
            self.ask_to_end(child, process)
        return True

    def ask_to_end(self, child: SupervisedChild, process: Process) -> None:
        """Ask a process to end, and kill it when its time is up."""
        shutdown = child.spec.shutdown
        if shutdown is BRUTAL_KILL:
            kill(process)
            return
        process.exit_signal(self.me.pid, Shutdown())
        if isinstance(shutdown, float):
            late = "it did not stop in time"
            child.timer = self.me.loop.call_later(shutdown, kill, process, late)

    def stopped(self, child: SupervisedChild, process: Process) -> None:
        """Handle that a child was stopped."""
        report_stopped(self, child, process)

    async def _end_strays(self) -> None:
        """Stop the processes that failed or abandoned start functions left, youngest first."""
        for stray in reversed(self._strays()):
            kind = "worker" if loop_of(stray) is None else "supervisor"
            start = SpawnStart(stray.function, stray.args)
            child = SupervisedChild(ChildSpec(stray.pid, start, type=kind), self)
            self.watch(child, stray, stray.pid)
            await self.stop([child])

    def _strays(self) -> list[Process]:
        """Return linked processes of start functions that are not children, oldest first."""
        known = {child.process for child in self.children()}
        links = self.me.get_relations().links or {}
        return [peer for peer in links if peer.parent is self.me.pid and peer not in known]

    # Reports

    def place_of(self, child: SupervisedChild) -> str:
        """Return the supervisor of a child and its id, for a crash report."""
        return f"{self.label} {self.me.pid} as {safe_text(child.spec.id)}, {child.spec.restart}"


async def run_loop(ack: Ack, loop: RestartLoop) -> None:
    """Run a supervisor: the body of its process."""
    reason = await loop.run(ack)
    if reason is not None:
        raise reason


def loop_of(process: Process) -> RestartLoop | None:
    """Return the loop of a supervisor process; None if it is not a supervisor."""
    return process.args[1] if process.function is run_loop else None


def count(children: Iterable[SupervisedChild]) -> Counts:
    """Return the counts of some children."""
    all_of_them = tuple(children)
    supervisors = sum(child.spec.type is ChildType.SUPERVISOR for child in all_of_them)
    active = sum(child.process is not None for child in all_of_them)
    return Counts(len(all_of_them), active, supervisors, len(all_of_them) - supervisors)


def first_reason(error: BaseException) -> BaseException:
    """Return the original error, without the errors that only name the child."""
    while isinstance(error, StartError):
        error = error.reason
    return error


@types.coroutine
def _gone(process: Process) -> Generator[Any, None, None]:
    """Wait until a child is dead; `SupervisedChild.ended` wakes us."""
    while not process.done():
        yield PARK


async def _called(start: StartFunction) -> Any:
    given: Any = start()
    return await given if hasattr(given, "__await__") else given


# Reports of a supervisor: which child, its supervisor, since when, how often, and why.
#
# The traceback of a crash is in the report of the process that crashed, which comes before.

_log = logging.getLogger("perdure.supervisor")

RESTART_EVENT = ("perdure", "supervisor", "restart")
RETRY_EVENT = ("perdure", "supervisor", "restart_failed")
GIVE_UP_EVENT = ("perdure", "supervisor", "give_up")


def report_restart(loop: RestartLoop, child: SupervisedChild, reason: BaseException | None) -> None:
    """Report that a child ended and is restarted."""
    if telemetry.has_handlers(RESTART_EVENT):
        _emit(RESTART_EVENT, loop, child, reason)
    level = logging.INFO if is_planned(reason) else logging.WARNING
    _write(level, loop, "restarts a child", child, reason)


def report_restart_failed(loop: RestartLoop, child: SupervisedChild, error: StartError) -> None:
    """Report that a child could not be restarted, and will be tried again."""
    _emit(RETRY_EVENT, loop, child, error.reason)
    what = "could not restart a child and tries again"
    _write(logging.WARNING, loop, what, child, error.reason)


def report_gave_up(loop: RestartLoop, child: SupervisedChild, reason: BaseException | None) -> None:
    """Report that there were too many restarts."""
    _emit(GIVE_UP_EVENT, loop, child, reason)
    what = "gives up: it stops all its children and ends"
    _write(logging.ERROR, loop, what, child, reason)


def report_stopped(loop: RestartLoop, child: SupervisedChild, process: Process) -> None:
    """Report that a child did not stop as it should."""
    error = process.outcome.error if process.outcome is not None else None
    if not is_planned(error) and child.spec.shutdown is not BRUTAL_KILL:
        what = "stopped a child, which did not end as requested"
        _write(logging.WARNING, loop, what, child, error)


def report_unknown(loop: RestartLoop, message: object) -> None:
    """Report an unexpected message to a supervisor."""
    with suppress(Exception):
        text = safe_text(message)
        _log.warning("%s %s ignored an unexpected message: %s", loop.label, loop.me.pid, text)


def _write(
    level: int, loop: RestartLoop, what: str, child: SupervisedChild, reason: BaseException | None
) -> None:
    if loop.me.runtime.settings.report_crashes and _log.isEnabledFor(level):
        with suppress(Exception):  # a broken log handler must not end a supervisor
            text = _circumstances(loop, child, reason)
            _log.log(level, "%s %s %s\n%s", loop.label, loop.me.pid, what, text)


def _emit(
    event: telemetry.Event, loop: RestartLoop, child: SupervisedChild, reason: BaseException | None
) -> None:
    telemetry.execute(
        event,
        {"restarts": loop.history.recent},
        {"supervisor": loop.me.pid, "child": child.spec.id, "reason": reason},
    )


def _circumstances(loop: RestartLoop, child: SupervisedChild, reason: BaseException | None) -> str:
    age = loop.me.loop.time() - child.since
    since = f"{moment(loop.me, age)} ({spell(round(age, 3))})"
    limit = loop.history.intensity
    lines = [
        f"  child: {safe_text(child.spec.id)}, {child.spec.restart} {child.spec.type}",
        f"  why: {describe(reason)}",
        f"  since: {since}, restarted {times(child.restarts)} before",
    ]
    if limit is not None:
        lines.append(
            f"  restarts of all children: {loop.history.recent} in the last "
            f"{limit.window}, {limit.max_restarts} are allowed"
        )
    return "\n".join(lines)


def times(number: int) -> str:
    """Return a number of times as text."""
    return "once" if number == 1 else f"{number} times"
