"""One child under supervision, and what others may know of it."""

import asyncio
import logging
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, cast

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
from perdure.base.result import Err, Ok
from perdure.otp.start import Ack
from perdure.otp.supervision.spec import (
    BRUTAL_KILL,
    IGNORE,
    ChildSpec,
    ChildType,
    Spawn,
    StartFunction,
)
from perdure.otp.supervision.strategy import Intensity, Restarts
from perdure.process.channel import Channel, select
from perdure.process.death import kill
from perdure.process.event import Cancel, Exit, ExitResult, LinkDown
from perdure.process.process import Process
from perdure.process.relations import reach, spread
from perdure.process.report import moment
from perdure.process.request import Request
from perdure.process.signal import link, monitor, unmonitor
from perdure.process.timer import after, sleep
from perdure.process.waiter import current

RESTARTING: Literal["restarting"] = "restarting"


class ChildInfo(NamedTuple):
    """A child as `which_children` shows it."""

    id: Hashable
    pid: Pid | Literal["restarting"] | None
    type: ChildType
    restarts: int


class Counts(NamedTuple):
    """What `count_children` counts."""

    specs: int
    active: int
    supervisors: int
    workers: int


class Ward:
    """One child under supervision, over all its lives."""

    __slots__ = (
        "failure",
        "handle",
        "last_pid",
        "process",
        "ref",
        "restarting",
        "restarts",
        "since",
        "spec",
    )

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.process: Process | None = None  # until its end has been dealt with
        self.last_pid: Pid | None = None
        self.ref: MonitorRef | None = None
        self.handle: Any = None  # what its start function gave
        self.restarting = False
        self.failure: BaseException | None = None  # why it is still restarting
        self.restarts = 0
        self.since = 0.0  # the loop's time of its last start

    @property
    def pid(self) -> Pid | Literal["restarting"] | None:
        """What others see as its pid."""
        if self.process is not None:
            return self.process.pid
        return RESTARTING if self.restarting else None

    def info(self, id: Hashable) -> ChildInfo:
        """Give what others may know of it."""
        return ChildInfo(id, self.pid, self.spec.type, self.restarts)


def count(wards: Iterable[Ward]) -> Counts:
    """Count children."""
    all_of_them = tuple(wards)
    supervisors = sum(ward.spec.type is ChildType.SUPERVISOR for ward in all_of_them)
    active = sum(ward.process is not None for ward in all_of_them)
    return Counts(len(all_of_them), active, supervisors, len(all_of_them) - supervisors)


# How a supervisor stops one child.


class Farewell:
    """The stop of one child: a polite signal, a limit, a kill."""

    def __init__(self, me: Process, ward: Ward) -> None:
        assert ward.process is not None
        self.ward = ward
        self.process = process = ward.process
        self._gone: Channel[None] = Channel()
        self._timer: asyncio.TimerHandle | None = None
        process.add_done_callback(self._is_gone)
        shutdown = ward.spec.shutdown
        if shutdown is BRUTAL_KILL:
            kill(process)
        elif not process.done():
            process.exit_signal(me.pid, Shutdown())
            if shutdown is not None:
                self._timer = me.loop.call_later(shutdown, kill, process, "it did not stop in time")

    def _is_gone(self, _: object) -> None:
        self.forget()
        self._gone.close()

    async def over(self) -> None:
        """Wait until the process is dead."""
        await select(self._gone)

    def forget(self) -> None:
        """Disarm the kill."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


# What a supervisor reports: which child, under whom, since when, how often, and why.
#
# The traceback of a crash is in the report of the process that crashed, which comes before.

_log = logging.getLogger("perdure.supervisor")

RESTART_EVENT = ("perdure", "supervisor", "restart")
RETRY_EVENT = ("perdure", "supervisor", "restart_failed")
GIVE_UP_EVENT = ("perdure", "supervisor", "give_up")


def restarts(oversight: "Oversight", ward: Ward, reason: BaseException | None) -> None:
    """Tell that a child ended and is restarted."""
    _tell(RESTART_EVENT, oversight, ward, reason)
    level = logging.INFO if is_planned(reason) else logging.WARNING
    _write(level, oversight, "restarts a child", ward, reason)


def restart_failed(oversight: "Oversight", ward: Ward, error: StartError) -> None:
    """Tell that a child could not be started again, and that it will be tried once more."""
    _tell(RETRY_EVENT, oversight, ward, error.reason)
    what = "could not restart a child and tries again"
    _write(logging.WARNING, oversight, what, ward, error.reason)


def gave_up(oversight: "Oversight", ward: Ward, reason: BaseException | None) -> None:
    """Tell that there were too many restarts."""
    _tell(GIVE_UP_EVENT, oversight, ward, reason)
    what = "gives up: it stops all its children and ends"
    _write(logging.ERROR, oversight, what, ward, reason)


def stopped(oversight: "Oversight", ward: Ward, process: Process) -> None:
    """Tell that a child that was to stop did not stop as it should."""
    error = process.outcome.error if process.outcome is not None else None
    if not is_planned(error) and ward.spec.shutdown is not BRUTAL_KILL:
        what = "stopped a child, which ended otherwise than asked"
        _write(logging.WARNING, oversight, what, ward, error)


def place(oversight: "Oversight", ward: Ward) -> str:
    """Say under whom a child runs, and how often it was restarted: for its crash."""
    return (
        f"{_who(oversight)} as {safe_text(ward.spec.id)}, "
        f"{ward.spec.restart}, restarted {times(ward.restarts)} before"
    )


def unknown_message(oversight: "Oversight", message: object) -> None:
    """Tell that somebody sent to a supervisor what it has no use for."""
    with suppress(Exception):
        _log.warning("%s got a message and ignores it: %s", _who(oversight), safe_text(message))


def _write(
    level: int, oversight: "Oversight", what: str, ward: Ward, reason: BaseException | None
) -> None:
    if oversight.me.runtime.settings.report_crashes:
        with suppress(Exception):  # no broken log handler ends a supervisor
            _log.log(
                level,
                "%s %s\n%s",
                _who(oversight),
                what,
                _circumstances(oversight, ward, reason),
            )


def _tell(
    event: telemetry.Event, oversight: "Oversight", ward: Ward, reason: BaseException | None
) -> None:
    if telemetry.has_handlers(event):
        telemetry.execute(
            event,
            {"restarts": len(oversight.history)},
            {"supervisor": oversight.me.pid, "child": ward.spec.id, "reason": reason},
        )


def _who(oversight: "Oversight") -> str:
    return f"{oversight.label} {oversight.me.pid}"


def _circumstances(oversight: "Oversight", ward: Ward, reason: BaseException | None) -> str:
    limit = oversight.intensity
    return (
        f"  child: {safe_text(ward.spec.id)}, {ward.spec.restart} {ward.spec.type}\n"
        f"  why: {describe(reason)}\n"
        f"  since: {_since(oversight, ward)}, restarted {times(ward.restarts)} before\n"
        f"  restarts of all children: {len(oversight.history)} in the last "
        f"{spell(limit.max_seconds)}, {limit.max_restarts} are allowed"
    )


def _since(oversight: "Oversight", ward: Ward) -> str:
    """Spell when the child was last started, by the wall clock and as a span."""
    age = oversight.me.loop.time() - ward.since
    return f"{moment(oversight.me, age)} ({spell(round(age, 3))})"


def times(count: int) -> str:
    """Spell how often."""
    return "once" if count == 1 else f"{count} times"


# What every supervisor does, whatever its strategy: start, watch and stop children, and end.
#
# A supervisor is an ordinary process that traps links and answers requests.
# It stops when it is asked to, by a request or by CANCEL, and when its parent exits or tells it to.
# While it waits for a child to start, it goes on listening, so that a start that hangs is no trap.

# How long a start function that is no longer wanted gets to clean up.
START_CLEANUP = 5.0


class StopWanted(Exception):
    """Leads out of whatever a supervisor does, to its end."""

    def __init__(self, reason: BaseException | None) -> None:
        super().__init__(reason)
        self.reason = reason


class Stop(NamedTuple):
    """The request to end, for this reason."""

    reason: BaseException | None


class WhichChildren(NamedTuple):
    """The request for the list of children."""


class CountChildren(NamedTuple):
    """The request for the number of children."""


class Oversight:
    """The work of a supervisor; its kinds say what happens to whom."""

    def __init__(self, label: str, intensity: Intensity) -> None:
        self.label = label
        self.intensity = intensity
        self.history = Restarts(intensity)
        self.me: Process
        self._opened = False
        self._parent: Pid | None = None
        self._parent_ref: MonitorRef | None = None
        self._by_ref: dict[MonitorRef, Ward] = {}
        self._backlog: deque[Exit | Request[Any]] = deque()  # told, and not yet dealt with
        self._fallen: dict[Pid, BaseException] | None = None  # who died by a link during a start
        self.ending = False
        self.retries: dict[Ward, None] = {}  # whose restart failed and is tried again

    def __repr__(self) -> str:
        return f"<{self.label}>"

    # What a kind of supervisor says

    def wards(self) -> Iterable[Ward]:
        """Give all children, in start order."""
        raise NotImplementedError

    async def begin(self) -> None:
        """Start what is to be started first."""

    async def ended(self, ward: Ward, reason: BaseException | None) -> None:
        """Deal with the end of a child."""
        raise NotImplementedError

    async def try_again(self, ward: Ward) -> None:
        """Start a child whose restart failed."""
        raise NotImplementedError

    async def answer(self, body: object) -> Any:
        """Do what was requested and give the answer, or raise it."""
        match body:
            case WhichChildren():
                return [ward.info(self.id_of(ward)) for ward in reversed(tuple(self.wards()))]
            case CountChildren():
                return count(self.wards())
            case _:
                raise TypeError(f"{self.label} does not understand {body!r}")

    def id_of(self, ward: Ward) -> Hashable:
        """Give the id by which others know a child."""
        return ward.spec.id

    async def end_children(self) -> None:
        """Stop all children."""
        raise NotImplementedError

    # The core

    async def run(self, ack: Ack) -> BaseException | None:
        """Live; give the reason of the end."""
        self.open(current("supervisor"))
        try:
            await self.begin()
            ack.ready(self.me, value=True)
            while True:
                await self._next_work()
        except StopWanted as stop:
            reason = stop.reason
        except StartError as error:  # of the first start; later ones are dealt with
            reason = Shutdown(error)
        self.ending = True  # from now on nobody may add a child: it would be left behind
        await self._end_strays()
        await self.end_children()
        return reason

    def open(self, me: Process) -> None:
        """Get ready to watch over children, once.

        Who knows its name may ask it for a child before it has run a line.
        """
        if self._opened:
            return
        self._opened = True
        self.me = me
        me.trap_links = True
        self._channels = (me.events(), me.requests(), me.inbox())
        self._parent = me.parent
        if me.parent is not None:
            self._parent_ref = monitor(me, me.parent)

    async def _next_work(self) -> None:
        while not (self._backlog or self.retries):
            await self._take_in()
        if self.retries:  # what came before the next try is dealt with before it
            await sleep(0)
            await self._take_in_all()
        for _ in range(len(self._backlog)):
            await self._deal_with(self._backlog.popleft())
        for ward in tuple(self.retries)[:1]:
            del self.retries[ward]
            await self.try_again(ward)

    async def _deal_with(self, told: Exit | Request[Any]) -> None:
        if isinstance(told, Exit):
            ward = self._by_ref.pop(told.ref, None)
            if ward is not None:  # else it was stopped meanwhile
                ward.process = None
                await self.ended(ward, told.result.error)
        elif not told.done:
            try:
                told.reply(Ok(await self.answer(told.body)))
            except (ProcError, ValueError, TypeError) as error:
                told.reply(Err(error))

    async def _take_in(self, *cases: Channel[Any]) -> None:
        found = await select(*cases, *self._channels)
        if found.channel not in cases:
            self._sort(found.value)

    async def _take_in_all(self) -> None:
        while not (found := await select(*self._channels, default=True)).default:
            self._sort(found.value)

    def _sort(self, told: object) -> None:
        match told:
            case Request(body=Stop(reason=reason)):
                raise StopWanted(reason)
            case Cancel():
                raise StopWanted(None)
            case LinkDown(sender=sender, error=error) if sender is self._parent:
                raise StopWanted(spread(sender, error))
            case Exit(ref=ref, sender=sender, result=result) if ref is self._parent_ref:
                error = result.error
                raise StopWanted(None if error is None else spread(sender, error))
            case LinkDown(sender=sender, error=error):
                if self._fallen is not None:
                    self._fallen[sender] = error
            case Exit() | Request():
                self._backlog.append(cast("Exit | Request[Any]", told))
            case _:
                unknown_message(self, told)

    # Restarts

    def count_restart(self, ward: Ward, reason: BaseException | None) -> None:
        """Count one restart, also one that is tried again; too many of them are the end."""
        if self.history.too_many_with(self.me.loop.time()):
            gave_up(self, ward, reason)
            raise StopWanted(Shutdown(f"{self.label} restarted children too often"))
        if not ward.restarting:  # else its failure has been reported
            restarts(self, ward, reason)

    async def restart(self, ward: Ward) -> bool:
        """Start a child again; if that fails, note that it is to be tried again."""
        ward.restarting = True
        try:
            await self.start(ward)
        except StartError as error:
            ward.failure = error.reason
            self.retries[ward] = None
            restart_failed(self, ward, error)
            return False
        ward.restarts += 1
        return True

    # Starting

    async def start(self, ward: Ward) -> Any:
        """Start a child and give what its start function gave.

        Raises:
            StartError: It did not start.
        """
        self.retries.pop(ward, None)
        start = ward.spec.start
        self._fallen = {}
        try:
            given = start.birth(self.me).pid if isinstance(start, Spawn) else await self._call(ward)
            await self._attach(ward, given)
        except StopWanted:
            raise
        except (Exception, ProcessExit) as error:  # noqa: BLE001 - told to who waits for the start
            reason = first_reason(error)
            raise StartError(ward.spec.id, reason) from reason
        finally:
            self._fallen = None
        ward.restarting = False
        return given

    async def _call(self, ward: Ward) -> Any:
        """Run a start function, as a task inside this process, and go on listening."""
        task = self.me.loop.create_task(_called(ward.spec.start))
        done: Channel[None] = Channel()
        task.add_done_callback(lambda _: done.close())
        try:
            while not task.done():
                await self._take_in(done)
        except StopWanted:
            task.cancel()
            await select(done, after(START_CLEANUP))
            raise
        if task.cancelled():
            raise Killed("its start function was cancelled")
        return task.result()

    async def _attach(self, ward: Ward, given: Any) -> None:
        if given is IGNORE:
            return
        pid = given if isinstance(given, Pid) else getattr(given, "pid", None)
        if not isinstance(pid, Pid):
            raise BadReturn(f"its start function gave {given!r}, no pid, handle or IGNORE")
        if pid.target is None:
            await self._take_in_all()
        self.adopt(ward, pid, given)

    def adopt(self, ward: Ward, pid: Pid, handle: Any) -> None:
        """Watch over a process as this child, from now on."""
        ward.handle = handle
        ward.last_pid = pid
        ward.since = self.me.loop.time()
        process = reach(pid, self.me.runtime)
        if process is not None:
            ward.process = process
            link(self.me, process)
            process.tie().supervision = partial(place, self, ward)
            ward.ref = monitor(self.me, pid)
        else:  # dead already: had it failed, the link would have told
            ward.ref = MonitorRef()
            reason = (self._fallen or {}).get(pid)
            self._backlog.append(Exit(pid, ExitResult(None, reason), ward.ref))
        self._by_ref[ward.ref] = ward

    # Stopping

    async def stop(self, wards: Sequence[Ward]) -> None:
        """Stop children, all at once, and wait until they are gone."""
        farewells = [Farewell(self.me, ward) for ward in wards if self._release(ward)]
        try:
            for farewell in farewells:
                await farewell.over()
                stopped(self, farewell.ward, farewell.process)
                farewell.ward.process = None
        finally:
            for farewell in farewells:
                farewell.forget()

    def _release(self, ward: Ward) -> bool:
        """Take a child out of the watch; tell whether there is a process to stop."""
        ward.restarting = False
        self.retries.pop(ward, None)
        if ward.ref is None:
            return False
        self._by_ref.pop(ward.ref, None)
        unmonitor(self.me, ward.ref, flush=False)
        ward.ref = None
        return ward.process is not None

    async def _end_strays(self) -> None:
        """Stop what start functions began that failed or were given up, the youngest first."""
        known = {ward.process for ward in self.wards()}
        links = self.me.tie().links or {}
        strays = [peer for peer in links if peer.parent is self.me.pid and peer not in known]
        for stray in reversed(strays):
            kind = "worker" if oversight_of(stray) is None else "supervisor"
            ward = Ward(ChildSpec(stray.pid, Spawn(stray.function, stray.args), type=kind))
            ward.process, ward.ref = stray, MonitorRef()
            await self.stop([ward])


async def oversee(ack: Ack, oversight: Oversight) -> None:
    """Be a supervisor: the function of its process."""
    reason = await oversight.run(ack)
    if reason is not None:
        raise reason


async def _called(start: StartFunction) -> Any:
    given: Any = start()
    return await given if hasattr(given, "__await__") else given


def first_reason(error: BaseException) -> BaseException:
    """Give what went wrong, from under the errors that only say which child it was."""
    while isinstance(error, StartError):
        error = error.reason
    return error


def oversight_of(process: Process) -> Oversight | None:
    """Give the inside of a process that is a supervisor; None if it is none."""
    return process.args[1] if process.function is oversee else None
