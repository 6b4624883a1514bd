"""What a part of a worker does while the store fails: ask ever more seldom, and say so once."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, cast
from weakref import WeakSet

from msgspec.structs import replace

from perdure.base.codec import digest, encode
from perdure.base.errors import LeaseLost, StoreError, UnknownName
from perdure.base.retry import Retry, pause
from perdure.engine import events
from perdure.engine.handle import new_id
from perdure.engine.journal.run import Run
from perdure.engine.people.ask import alerts
from perdure.engine.worker.node import WorkerNode
from perdure.jobs.approval import Approval
from perdure.jobs.cron import CatchUp, check_cron, due, key, next_time
from perdure.jobs.definition import JobDefinition
from perdure.jobs.model import JobEvent, NewJob, Schedule, Write
from perdure.jobs.outbox import Notice, NoticeKind, NoticeState
from perdure.jobs.text_limits import check_given
from perdure.notify.people import ApprovalChannel
from perdure.otp.task_supervisor import TaskSupervisor
from perdure.store.store import Store

_log = logging.getLogger("perdure.worker")

_PAUSES: Final = Retry(initial_delay="250ms", max_delay="5s", jitter=0.5)
_SAY_AGAIN_AFTER: Final = 60.0


class Outage:
    """Counts the failures of one part; logs when they begin, once a minute, and when they end."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        self._what = what
        self._clock = clock
        self._failures = 0
        self._said_at: float | None = None
        self._is_told = False  # that it has begun, but not that it is over

    @property
    def delay(self) -> float:
        """The seconds to wait before the store is asked again; 0 while it answers."""
        return _PAUSES.delay(self._failures)

    def failed(self, error: StoreError) -> None:
        """Take note of a failure."""
        self._failures += 1
        now = self._clock()
        if self._said_at is None or now - self._said_at >= _SAY_AGAIN_AFTER:
            self._said_at, self._is_told = now, True
            _log.warning("%s: %s; trying again, ever more seldom", self._what, error)

    def over(self) -> None:
        """Take note that the store did what was asked."""
        if self._is_told:
            _log.warning("%s: the store works again", self._what)
        self._failures, self._is_told = 0, False


async def repeat(
    what: str,
    work: Callable[[], Awaitable[object]],
    every: float,
    clock: Callable[[], float],
    failed: Callable[[], None] = lambda: None,
) -> None:
    """Do something again and again, for ever; while the store fails, ever more seldom."""
    outage = Outage(what, clock)
    while True:
        try:
            await work()
            outage.over()
        except StoreError as error:
            failed()
            outage.failed(error)
        await pause(max(every, outage.delay))


# Jobs that are submitted again and again, by the rules of cron.


class Schedules:
    """The schedules of an app; its workers follow them, each time submitted once."""

    def __init__(
        self,
        store: Callable[[], Awaitable[Store]],
        new_job: Callable[[Any, tuple[Any, ...], dict[str, Any]], NewJob],
    ) -> None:
        self._store = store
        self._new_job = new_job

    async def put(
        self,
        name: str,
        cron: str,
        job: JobDefinition[..., Any],
        *args: Any,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
        **options: Any,
    ) -> str:
        """Keep a schedule; the same name of the same tenant replaces it.

        Call it at each start of your program: one whose `cron` and `timezone` are as before keeps
        a time that is due, and stays paused if somebody has paused it.

        Args:
            name: What the schedule is known by, to its tenant.
            cron: "0 3 * * *": minute, hour, day, month, day of the week.
            job: The job.
            *args: Its arguments.
            timezone: Where the hours are.
            catch_up: What to do for times at which no worker ran: "skip", "one" or "all".
            **options: As those of `App.submit`; `tenant` is also whose schedule it is.

        Returns:
            The schedule in words.

        Raises:
            DefinitionError: The expression or the time zone is none.
        """
        check_given(schedule=name)
        words = check_cron(cron, timezone)
        store = await self._store()
        made = Schedule(
            name=name,
            cron=cron,
            job=self._new_job(job, args, options),
            timezone=timezone,
            catch_up=catch_up,
            next_at=next_time(cron, timezone, await store.now()),
        )
        await store.put_schedule(made)
        return words

    async def list(self, *, tenant: str | None = None) -> list[Schedule]:
        """Give the schedules of a tenant, or all of them, by name."""
        return await (await self._store()).schedules(tenant)

    async def remove(self, name: str, *, tenant: str = "default") -> bool:
        """Forget a schedule; False if the tenant has none of that name."""
        return await (await self._store()).delete_schedule(tenant, name)

    async def pause(self, name: str, *, tenant: str = "default") -> None:
        """Let a schedule rest until `resume`.

        Raises:
            UnknownName: The tenant has none of that name.
        """
        await self._set(tenant, name, paused=True)

    async def resume(self, name: str, *, tenant: str = "default") -> None:
        """Let a schedule go on from now; the times in between are not made up for.

        Raises:
            UnknownName: The tenant has none of that name.
        """
        await self._set(tenant, name, paused=False)

    async def _set(self, tenant: str, name: str, *, paused: bool) -> None:
        store = await self._store()
        known = {each.name: each for each in await store.schedules(tenant)}
        if name not in known:
            raise UnknownName(f"there is no schedule {name!r} of tenant {tenant!r}")
        next_at = next_time(known[name].cron, known[name].timezone, await store.now())
        await store.pause_schedule(tenant, name, next_at, paused=paused)


# The calendar: submits what is scheduled, once, whichever worker comes first.


_LOOK_EVERY = 1.0


async def follow_calendar(node: WorkerNode) -> None:
    """Look again and again for schedules that are due; for ever."""
    await repeat("running schedules", partial(_look, node), _LOOK_EVERY, node.loop.time)


async def _look(node: WorkerNode) -> None:
    now = await node.store.now()
    for schedule in await node.store.schedules():
        await _try_to_follow(node, schedule, now)


async def _try_to_follow(node: WorkerNode, schedule: Schedule, now: float) -> None:
    """Follow one schedule; one that cannot be followed must not stop the others."""
    if schedule.paused or schedule.next_at is None:
        return
    try:
        await _follow(node, schedule, schedule.next_at, now)
    except StoreError:
        raise
    except Exception:  # noqa: BLE001 - it is told, and the others are followed
        _log.exception("schedule %s cannot be followed", schedule.name)


async def _follow(node: WorkerNode, schedule: Schedule, next_at: float, now: float) -> None:
    if next_at > now:
        return
    found = due(schedule.cron, schedule.timezone, next_at, now, cast("CatchUp", schedule.catch_up))
    jobs = [_job_for(schedule, time) for time in found.times]
    # Only the worker that still finds the old time there submits: the others came too late.
    if await node.store.fire(schedule, found.next_at, jobs):
        node.poke()


def _job_for(schedule: Schedule, time: float) -> NewJob:
    return replace(schedule.job, id=new_id(), key=key(schedule.name, time))


# The clerk: looks at the clock for approvals, and reminds, escalates and expires.


async def watch_clock(node: WorkerNode) -> None:
    """Look again and again, for ever; whichever worker comes first does it."""
    work = partial(_look_at_approvals, node)
    await repeat("looking at the clock for approvals", work, _LOOK_EVERY, node.loop.time)


async def _look_at_approvals(node: WorkerNode) -> None:
    if await node.store.let_time_pass():
        node.told.set()
        node.poke()


# The courier: delivers what people must be told, at least once, by the channels of the app.
#
# Each delivery is a process of its own, with a deadline, and each channel has room of its own:
# whoever does not answer delays nobody else.


AT_ONCE: Final = 20  # deliveries by one channel
DELIVERY_TIMEOUT: Final = 60.0  # for all of one delivery …
_LEASE: Final = 120.0  # … after which another worker may take it


async def deliver_notices(node: WorkerNode, deliveries: str) -> None:
    """Deliver what is due, for ever. `deliveries` is the supervisor of their processes."""
    courier = Courier(node, deliveries)
    outage = Outage("delivering notices", node.loop.time)
    while True:
        node.told.clear()
        try:
            await courier.take()
            outage.over()
        except StoreError as error:
            outage.failed(error)
            await pause(outage.delay)
        try:
            async with asyncio.timeout(_LOOK_EVERY):
                await node.told.wait()
        except TimeoutError:
            pass  # others write notices, too


class Courier:
    """Takes notices, and starts a process to deliver each."""

    def __init__(self, node: WorkerNode, deliveries: str) -> None:
        self._node = node
        self._deliveries = deliveries
        self._channels = {channel.name: channel for channel in node.policy.channels}
        self._sending: Counter[str] = Counter()

    async def take(self) -> None:
        """Take what is due, for every channel as much as it has room for."""
        for name, channel in self._channels.items():
            if room := AT_ONCE - self._sending[name]:
                for notice in await self._node.store.take_notices([name], room, _LEASE):
                    self._sending[name] += 1
                    TaskSupervisor.start_child(self._deliveries, self._work, channel, notice)

    async def _work(self, channel: ApprovalChannel, notice: Notice) -> None:
        """Deliver one; another worker gets it if this one dies in between."""
        try:
            approval = None
            if notice.approval_id is not None:
                approval = await self._node.store.approval(notice.approval_id)
            await self._settle(channel, notice, approval)
        except StoreError as error:  # it is due again after its lease
            _log.warning("delivering notices: %s", error)
        finally:
            self._sending[channel.name] -= 1
            self._node.told.set()  # there is room, and perhaps another for the same recipient

    async def _settle(
        self, channel: ApprovalChannel, notice: Notice, approval: Approval | None
    ) -> None:
        store = self._node.store
        now = await store.now()
        try:
            async with asyncio.timeout(DELIVERY_TIMEOUT):
                told, *more = await _told(channel, notice, approval, now)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a channel does, it is tried again
            now = await store.now()
            told = notice.failed(_why(error), now)
            more = _instead(told, self._channels, now)
            _log.warning("%s could not be told by %s: %s", told.kind, told.channel, told.error)
        await store.give_back(told, *more)


async def _told(
    channel: ApprovalChannel, notice: Notice, approval: Approval | None, now: float
) -> list[Notice]:
    """Tell one recipient, or find out who they are; give the notice as it is then, and new ones."""
    if notice.recipient:
        return [notice.delivered(await channel.deliver(notice, approval, notice.recipient))]
    recipients = dict.fromkeys(await channel.recipients(notice, approval))
    if not recipients:
        raise LookupError("there is nobody to tell")
    return [notice.addressed(), *[notice.to(each, now) for each in recipients]]


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"TimeoutError: no answer within {DELIVERY_TIMEOUT:g} seconds"
    return f"{type(error).__name__}: {error}"


def _instead(notice: Notice, channels: dict[str, ApprovalChannel], now: float) -> list[Notice]:
    """Say by the other channels that one has given up."""
    if notice.state is not NoticeState.GIVEN_UP or notice.kind is NoticeKind.UNDELIVERED:
        return []
    whom = f" for {notice.recipient}" if notice.recipient else ""
    text = f"{notice.channel} did not take {notice.kind}{whom}: {notice.error}"
    return [
        Notice(
            id=digest("undelivered", notice.id, name)[:32],
            tenant=notice.tenant,
            kind=NoticeKind.UNDELIVERED,
            job_id=notice.job_id,
            channel=name,
            due_at=now,
            data=encode({"text": text}),
        )
        for name in channels
        if name != notice.channel
    ]


# The lookout: tells people of jobs without progress, which nobody else will start again.


async def look_out(node: WorkerNode) -> None:
    """Look for stuck jobs again and again, for ever."""
    told = WeakSet[Run]()
    while True:
        stuck = [run for run in node.runs.values() if run.is_ours() and not node.gets_on(run)]
        for run in stuck:
            if run not in told and await _tell(node, run):
                told.add(run)
        await pause(node.settings.heartbeat)


async def _tell(node: WorkerNode, run: Run) -> bool:
    """Write it into the job's log, and alert people: once, whichever worker has it.

    Returns:
        False: the store does not answer, so it must be tried again.
    """
    text = (
        f"{_what(run)} has shown no progress for {node.settings.stuck_after:g} seconds. "
        "It still runs, and is not started again. If it is only slow, let it call ctx.progress() "
        "now and then, or give it a timeout=. If it hangs, cancel the job; with a timeout=, and "
        'isolation="process" if it does not await, such a step ends by itself'
    )
    _log.warning("job %s is stuck: %s", run.job.id, text)
    # Not by `run.write`: that would be taken for progress.
    stuck = Write(
        job_id=run.job.id,
        owner=node.owner,
        epoch=run.epoch,
        events=(JobEvent(type="job.stuck", data={"why": text}, actor=node.owner),),
        notices=alerts(run, NoticeKind.STUCK, "no progress", text),
    )
    try:
        await node.store.write(stuck)
    except StoreError as error:
        _log.warning("telling of a stuck job: %s", error)
        return False
    except LeaseLost:
        return True  # whoever has the job now looks out for it
    node.told.set()
    events.stuck(run, text)
    return True


def _what(run: Run) -> str:
    steps = sorted(operation.entry.id for operation in run.working)
    return ", ".join(steps) if steps else "its code"
