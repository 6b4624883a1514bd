"""What every supervisor does, whatever its strategy: start, watch and stop children, and end.

A supervisor is an ordinary process that traps links and answers requests.
It stops when it is asked to, by a request or by CANCEL, and when its parent exits or tells it to.
While it waits for a child to start, it goes on listening, so that a start that hangs is no trap.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from perdure.base.errors import BadReturn, Killed, ProcError, ProcessExit, Shutdown, StartError
from perdure.base.pid import Pid, Ref
from perdure.base.result import Err, Ok
from perdure.otp import report
from perdure.otp.farewell import Farewell
from perdure.otp.spec import IGNORE, ChildSpec, Spawn, StartFunction
from perdure.otp.start import Ack
from perdure.otp.strategy import Intensity, Restarts
from perdure.otp.ward import Ward, count
from perdure.process.channel import Channel, select
from perdure.process.current import current
from perdure.process.event import Cancel, Exit, ExitResult, LinkDown
from perdure.process.exits import spread
from perdure.process.process import Process
from perdure.process.reach import reach
from perdure.process.request import Request
from perdure.process.signal import link, monitor, unmonitor
from perdure.process.timer import after, sleep

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
        self._parent_ref: Ref | None = None
        self._by_ref: dict[Ref, Ward] = {}
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
                report.unknown_message(self, told)

    # Restarts

    def count_restart(self, ward: Ward, reason: BaseException | None) -> None:
        """Count one restart, also one that is tried again; too many of them are the end."""
        if self.history.too_many_with(self.me.loop.time()):
            report.gave_up(self, ward, reason)
            raise StopWanted(Shutdown(f"{self.label} restarted children too often"))
        if not ward.restarting:  # else its failure has been reported
            report.restarts(self, ward, reason)

    async def restart(self, ward: Ward) -> bool:
        """Start a child again; if that fails, note that it is to be tried again."""
        ward.restarting = True
        try:
            await self.start(ward)
        except StartError as error:
            ward.failure = error.reason
            self.retries[ward] = None
            report.restart_failed(self, ward, error)
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
            process.tie().supervision = partial(report.place, self, ward)
            ward.ref = monitor(self.me, pid)
        else:  # dead already: had it failed, the link would have told
            ward.ref = Ref()
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
                report.stopped(self, farewell.ward, farewell.process)
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
            ward.process, ward.ref = stray, Ref()
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
